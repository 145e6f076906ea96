"""Compares a vendor's session file with what its hooks reported last. Pure.

Hooks report events, and some ends have none (Esc in Claude Code, a failed turn in Codex, Esc in a tool or at a dialog
of Gemini CLI). The file holds a state and its time. It counts when the hooks have been silent for a while, so that none
is on its way, and only if it is not older than their last report. The next hook counts again.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from watchdog.core.agent import State

QUIET = timedelta(seconds=5)  # within which a hook delayed by a busy machine arrives
# A log records each prompt in order: a hook of the turn that it reports as over may come this much later.
LOGGED = timedelta(seconds=60)
AGAIN = 0.2  # seconds within which an old record may be rewritten; no person types a prompt so soon
# By reported state: the listed states that end it. None wakes an idle agent: a hook reports each prompt.
_ENDS = {
    State.WORKING: (State.IDLE, State.WAITING),
    State.WAITING: (State.IDLE, State.WORKING),
}


@dataclass(frozen=True, slots=True)
class _Said:
    """What a line of such a log reports: that a turn is over, or continues. `at`: epoch seconds."""

    over: bool
    at: float


def ended_by(
    said: State | None, said_at: float, listed: State | None, listed_at: float | None, lag: timedelta = QUIET
) -> State | None:
    """The state according to the file; None: what the hooks `said` stands. Times are epoch seconds.

    `lag`: how much older than the hooks' last report it may be.
    """
    if said is None or listed is None or listed not in _ENDS.get(said, ()):
        return None
    if listed_at is not None and listed_at < said_at - lag.total_seconds():
        return None  # older than that report: the file is not kept up to date
    return listed


def turn_over(vendor: str, lines: Sequence[str]) -> float | None:
    """When the last turn ended, by the last lines of that vendor's session file (epoch seconds).

    None: it continues, or they do not say.
    """
    begun = float("-inf")
    for line in reversed(lines):
        try:
            said = _OF[vendor](line)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):  # a partial line, or another format
            continue
        if said is not None and said.at < begun - AGAIN:
            return None
        if said is not None and said.over:
            return said.at
        begun = max(begun, begun if said is None else said.at)
    return None


def _codex(line: str) -> _Said | None:
    """What a line of Codex 0.171 reports about a turn, or None."""
    if '"event_msg"' not in line:
        return None
    found: Any = json.loads(line)
    kind = found["payload"]["type"] if found["type"] == "event_msg" else None
    if kind == "task_started":
        return _Said(over=False, at=float("inf"))
    return _said(found, over=True) if kind in ("task_complete", "turn_aborted") else None


def _gemini(line: str) -> _Said | None:
    """The same for Gemini CLI 0.61, which records nothing when a turn ends well.

    The record of a turn that a person cancelled is followed by the cancelled calls and their answers; and the start of
    the turn may be written once more, with the time of the cancellation.
    """
    if line.startswith('{"$set"'):  # a rewrite of the whole session
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
    """How long the hooks must be silent before the file is read."""
    return min(QUIET, after / 4)
