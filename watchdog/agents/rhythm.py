"""When an agent speaks: its last word, and the pauses between its words, by which others' silence is judged."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from watchdog.core.witnesses import Witness, comes_back

ZERO = timedelta()
PAUSES = 8  # after so many words a longer pause before them counts a third as much


@dataclass(slots=True)
class Rhythm:
    """Its words as instants."""

    beats: int = 0
    renewed: int = 0  # those that speak against a stall: all but beats whose progress stands still
    last_heartbeat: datetime | None = None
    spoke: float | None = None  # monotonic instant of the last word
    returned: float | None = None  # when it spoke last after a pause that was longer than its rhythm
    pause: timedelta | None = None  # the longest of its last pauses between two words, of which older ones count less

    def hear(self, mono: float, wall: datetime) -> None:
        """It speaks."""
        self.beats += 1
        self.spoke, self.last_heartbeat = mono, wall

    def renew(self) -> None:
        """Its word speaks against a stall."""
        self.renewed += 1

    def note_pause(self, mono: float, after: timedelta, age: timedelta) -> None:
        """How long it was quiet before a word, where that was to be expected: longer than allowed is no rhythm."""
        if self.spoke is None:
            return
        pause, former = timedelta(seconds=max(0.0, mono - self.spoke)), self.pause or ZERO
        if pause > comes_back(Witness(0, pause, after, age, self.pause)):
            self.returned = mono
        if pause > after:
            return
        self.pause = max(pause, former - (former - pause) / PAUSES)

    def restore(self, beats: int, last_heartbeat: datetime | None) -> None:
        """What an earlier daemon heard."""
        self.beats, self.last_heartbeat = beats, last_heartbeat
