"""The only reader of clocks. Decisions use `mono`; `wall` is for display, `boot` tells a suspend from a pause."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Instant:
    """One reading of the three clocks: seconds of CLOCK_MONOTONIC and CLOCK_BOOTTIME, and UTC wall time."""

    mono: float
    boot: float
    wall: datetime


class Clock:
    """The machine's clocks; tests use another implementation."""

    def now(self) -> Instant:
        """All three at once."""
        return Instant(time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME), datetime.now(UTC))

    def mono(self) -> float:
        """Seconds of CLOCK_MONOTONIC."""
        return time.monotonic()

    def offset(self) -> float:
        """Wall minus monotonic time in seconds; a change of it is a step of the wall clock."""
        return time.time() - time.monotonic()
