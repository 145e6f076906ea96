"""Steps of the wall clock, and how they distort the age of things that only carry a wall time. Pure.

After a step forward, everything stored before looks older than it is by the size of the step. So while something could
be due too early because of it, it is kept longer by that much. A step back makes things look younger, which is safe.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

NOTHING = timedelta()
SMALL = timedelta(seconds=1)  # smaller changes are not counted as steps


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The wall clock and one that cannot be set. `boot`: seconds since that boot, including suspend."""

    wall: datetime
    boot: float
    boot_id: str = ""


@dataclass(frozen=True, slots=True)
class ClockStep:
    """A step of the wall clock by `by`; `at` is its time according to the clock as it is now."""

    at: datetime
    by: timedelta


def step_between(former: ClockReading, now: ClockReading) -> timedelta:
    """By how much the wall clock was set since `former`; zero across a reboot, where that is not known."""
    if former.boot_id != now.boot_id:
        return NOTHING
    by = now.wall - former.wall - timedelta(seconds=now.boot - former.boot)
    return by if abs(by) > SMALL else NOTHING


def with_step(steps: Iterable[ClockStep], by: timedelta, now: datetime) -> list[ClockStep]:
    """The steps and a new one at `now`; the times of the earlier steps are shifted to the new clock."""
    return [*(ClockStep(step.at + by, step.by) for step in steps), ClockStep(now, by)]


def credit(steps: Iterable[ClockStep], keep: timedelta, now: datetime) -> timedelta:
    """How much longer than `keep` something must be kept by the wall clock to really be kept that long."""
    return sum((step.by for step in steps if step.by > NOTHING and now - step.at < keep), NOTHING)
