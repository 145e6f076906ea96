"""What a vendor's own session file says now, against what its hooks said last. Pure.

Hooks tell of events, and there is none for some ends (Esc in Claude Code). The file tells of a state: what is so now,
and since when. It counts when the hooks have been silent for a while, so that none is on its way, and unless it
lags behind them. The next hook's word counts again.
"""

from datetime import timedelta

from watchdog.core.model import State

QUIET = timedelta(seconds=5)  # a hook that a busy machine delays comes within that
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


def quiet_for(after: timedelta) -> timedelta:
    """How long its hooks have to be silent before the file is asked."""
    return min(QUIET, after / 4)
