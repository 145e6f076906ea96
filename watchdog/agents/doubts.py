"""What looks have made of a silence so far: how often it was found too long, and until when it cannot be."""

from dataclasses import dataclass
from datetime import timedelta

ZERO = timedelta()


@dataclass(slots=True)
class Doubts:
    """Over with its next word."""

    settled_until: timedelta = ZERO  # the age up to which time alone cannot change that it is healthy
    late_looks: int = 0
    looked: float | None = None  # monotonic instant of the last counted late look

    def too_soon(self, now: float, interval: float) -> bool:
        """Whether a look now comes too soon after the last late one to count as another."""
        return self.looked is not None and now - self.looked < 0.9 * interval

    def late(self, now: float, interval: float) -> None:
        """A look has found it late."""
        if not self.too_soon(now, interval):
            self.late_looks, self.looked = self.late_looks + 1, now

    def none(self) -> None:
        """A look has found it well, or what looks have found does not count."""
        self.late_looks, self.looked = 0, None

    def spoke(self) -> None:
        """It has said a word: the next late look is the first, also one that follows at once."""
        self.late_looks = 0

    def keep(self, late_looks: int) -> None:
        """What it said changes nothing of what was confirmed."""
        self.late_looks = late_looks

    def looked_at(self, now: float) -> None:
        """Of a copy: what is shown now is no further look."""
        self.looked = None if self.looked is None else now

    def settle(self, until: timedelta) -> None:
        """Nothing but a word can change what is made of it up to that age."""
        self.settled_until = until

    def unsettle(self) -> None:
        """It is to be judged anew by the next look."""
        self.settled_until = ZERO
