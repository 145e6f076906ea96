"""Steps of the wall clock, and what they take from the age of things that only carry a wall time. Pure.

What was put away before a step forward looks older by it than it is. So for as long as something could still be due
too early by that step, it is kept for so much longer. A step back makes things look younger: that keeps them longer.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

NOTHING = timedelta()
SMALL = timedelta(seconds=1)  # below which a change of the clock is none


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The wall clock beside one that cannot be set. `boot`: seconds since that boot, suspended or not."""

    wall: datetime
    boot: float
    boot_id: str = ""


@dataclass(frozen=True, slots=True)
class ClockStep:
    """The wall clock was set by so much; `at` is when, by the clock as it is now."""

    at: datetime
    by: timedelta


def step_between(former: ClockReading, now: ClockReading) -> timedelta:
    """By how much the wall clock was set since then; nothing over a restart of the machine: that is not known."""
    if former.boot_id != now.boot_id:
        return NOTHING
    by = now.wall - former.wall - timedelta(seconds=now.boot - former.boot)
    return by if abs(by) > SMALL else NOTHING


def with_step(steps: Iterable[ClockStep], by: timedelta, now: datetime) -> list[ClockStep]:
    """These and one more: the clock was set, and shows `now`. Of those before it shows another time from then on."""
    return [*(ClockStep(step.at + by, step.by) for step in steps), ClockStep(now, by)]


def credit(steps: Iterable[ClockStep], keep: timedelta, now: datetime) -> timedelta:
    """How much longer than `keep` something is to be kept by the wall clock, to be kept that long in truth."""
    return sum((step.by for step in steps if step.by > NOTHING and now - step.at < keep), NOTHING)
