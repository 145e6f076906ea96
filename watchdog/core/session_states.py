"""What a vendor's own session file says now, against what its hooks said last. Pure.

Hooks tell of events, and there is none for some ends (Esc in Claude Code, a turn that fails in Codex, Esc in a tool or
at a dialog of Gemini CLI). The file tells of a state: what is so now, and since when. It counts when the hooks have
been silent for a while, so that none is on its way, and unless it lags behind them. The next hook's word counts again.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from watchdog.core.agent import State

QUIET = timedelta(seconds=5)  # a hook that a busy machine delays comes within that
# A log has each prompt in its order: a hook of the turn that it calls over may have come as much later.
LOGGED = timedelta(seconds=60)
AGAIN = 0.2  # seconds within which what was there before is written once more; no person types a prompt so soon
# By what was said: what ends it. Nothing here wakes an idle agent: a hook reports each prompt.
_ENDS = {
    State.WORKING: (State.IDLE, State.WAITING),
    State.WAITING: (State.IDLE, State.WORKING),
}


@dataclass(frozen=True, slots=True)
class _Said:
    """What a line of such a log says: that a turn is over, or goes on (epoch seconds)."""

    over: bool
    at: float


def ended_by(
    said: State | None, said_at: float, listed: State | None, listed_at: float | None, lag: timedelta = QUIET
) -> State | None:
    """The state that the file's word makes of it; None: the hooks' word stands. Times are epoch seconds.

    `lag`: so much older than the hooks' last word it may be.
    """
    if said is None or listed is None or listed not in _ENDS.get(said, ()):
        return None
    if listed_at is not None and listed_at < said_at - lag.total_seconds():
        return None  # from before that word: it is not kept up to date
    return listed


def turn_over(vendor: str, lines: Sequence[str]) -> float | None:
    """When the last turn ended, by the last lines of that vendor's own file of a session (epoch seconds); None: it goes
    on, or they do not say."""
    begun = float("-inf")
    for line in reversed(lines):
        try:
            said = _OF[vendor](line)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):  # half of a line, or another format
            continue
        if said is not None and said.at < begun - AGAIN:
            return None
        if said is not None and said.over:
            return said.at
        begun = max(begun, begun if said is None else said.at)
    return None


def _codex(line: str) -> _Said | None:
    """What a line of Codex 0.171 says of a turn, or None."""
    if '"event_msg"' not in line:
        return None
    found: Any = json.loads(line)
    kind = found["payload"]["type"] if found["type"] == "event_msg" else None
    if kind == "task_started":
        return _Said(over=False, at=float("inf"))
    return _said(found, over=True) if kind in ("task_complete", "turn_aborted") else None


def _gemini(line: str) -> _Said | None:
    """The same of Gemini CLI 0.61, which writes no word of a turn that ends well.

    Behind its word of one that a person broke off follow the calls that this cancelled, and their answers; and what the
    turn began with may be written once more, with the time of that word.
    """
    if line.startswith('{"$set"'):  # all of it once more
        return None
    found: Any = json.loads(line)
    match found.get("type"):
        case "info" if found["content"] == "Request cancelled.":
            return _said(found, over=True)
        case "gemini":
            calls = found.get("toolCalls") or [{}]
            return None if all(call.get("status") == "cancelled" for call in calls) else _said(found, over=False)
        case "user":
            parts = found["content"] or [{}]
            return None if all("functionResponse" in part for part in parts) else _said(found, over=False)
    return None


def _said(found: Any, *, over: bool) -> _Said:
    return _Said(over, datetime.fromisoformat(found["timestamp"]).timestamp())


_OF: Mapping[str, Callable[[str], _Said | None]] = {"codex": _codex, "gemini": _gemini}


def quiet_for(after: timedelta) -> timedelta:
    """How long its hooks have to be silent before the file is asked."""
    return min(QUIET, after / 4)
