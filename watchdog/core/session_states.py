"""What a vendor's own session file says now, against what its hooks said last. Pure.

Hooks tell of events, and there is none for some ends (Esc in Claude Code, a turn that fails in Codex). The file tells
of a state: what is so now, and since when. It counts when the hooks have been silent for a while, so that none is on
its way, and unless it lags behind them. The next hook's word counts again.
"""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from watchdog.core.model import State

QUIET = timedelta(seconds=5)  # a hook that a busy machine delays comes within that
_BEGUN, _OVER = "task_started", frozenset({"task_complete", "turn_aborted"})  # as Codex 0.171 writes it
# By what was said: what ends it. Nothing here wakes who rests: a hook tells of each prompt.
_ENDS = {
    State.WORKING: (State.IDLE, State.WAITING),
    State.WAITING: (State.IDLE, State.WORKING),
}


def ended_by(said: State | None, said_at: float, listed: State | None, listed_at: float | None) -> State | None:
    """The state that the file's word makes of it; None: the hooks' word stands. Times are epoch seconds."""
    if said is None or listed is None or listed not in _ENDS.get(said, ()):
        return None
    if listed_at is not None and listed_at < said_at - QUIET.total_seconds():
        return None  # from before that word: it is not kept up to date
    return listed


def turn_over(lines: Sequence[str]) -> float | None:
    """When the last turn ended, by the last lines of Codex' own file of a session (epoch seconds); None: it goes on,
    or they do not say."""
    for line in reversed(lines):
        if '"event_msg"' not in line:
            continue
        try:
            found: Any = json.loads(line)
            kind = found["payload"]["type"] if found["type"] == "event_msg" else None
            if kind == _BEGUN:
                return None
            if kind in _OVER:
                return datetime.fromisoformat(found["timestamp"]).timestamp()
        except (ValueError, TypeError, KeyError, RecursionError):  # half of a line, or another format
            continue
    return None


def quiet_for(after: timedelta) -> timedelta:
    """How long its hooks have to be silent before the file is asked."""
    return min(QUIET, after / 4)
