"""What an agent said of itself last: its state, its note, its tool, how far it has come."""

from dataclasses import dataclass
from datetime import datetime

from watchdog.core.agent import Beat, State


@dataclass(slots=True)
class Said:
    """Each as it was said last."""

    promised: bool = False
    state: State | None = None
    state_at: datetime | None = None  # when it said its state last; a daemon that was restarted does not know
    finished: bool = False  # it said in so many words that its work is done; the end of a session or process is no such
    note: str | None = None  # as it was said; kept and shown only by `hide_secrets`
    tool: str | None = None  # likewise
    progress: float | None = None

    def promise(self, promised: bool) -> None:
        """Its silence means something from now on, or (False) nothing any more."""
        self.promised = promised

    def hear(self, beat: Beat, wall: datetime) -> None:
        """Take one word."""
        if beat.promises or beat.state is not None:
            self.state, self.state_at = beat.state or State.WORKING, wall
            self.finished = self.state is State.DONE and (self.finished or _is_done(beat))
        if beat.tool is not None:
            self.tool = beat.tool or None
        if beat.progress is not None:
            self.progress = beat.progress
        if beat.note is not None:
            self.note = beat.note

    def restore(
        self, state: State | None, note: str | None, tool: str | None, progress: float | None, *, finished: bool
    ) -> None:
        """What an earlier daemon heard."""
        self.state, self.note, self.tool, self.progress, self.finished = state, note, tool, progress, finished


def _is_done(beat: Beat) -> bool:
    """Whether `done` is said of the work: STOPPING=1, which promises nothing, and a session's end mean the process.

    A program that is told to end says these as well, in the middle of its work.
    """
    return beat.promises and beat.session_ended is None
