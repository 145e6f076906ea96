"""The machine's clocks, as decisions and displays read them."""

import time
from datetime import UTC

from watchdog.clock import Clock


def test_an_instant_has_all_three_clocks_of_one_moment() -> None:
    """Wall time is UTC and aware; the boot clock goes on while the machine sleeps."""
    clock = Clock()
    before = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME), time.time()
    now = clock.now()
    after = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME), time.time()
    for low, at, high in zip(before, (now.mono, now.boot, now.wall.timestamp()), after, strict=True):
        assert low - 1e-5 <= at <= high + 1e-5  # a datetime ends at microseconds
    assert now.wall.tzinfo is UTC
    assert now.boot >= now.mono
    assert now.mono <= clock.mono() <= time.monotonic()


def test_the_offset_lies_between_what_both_clocks_say() -> None:
    """A change of it is a step of the wall clock."""
    low = time.time() - time.monotonic()
    offset = Clock().offset()
    high = time.time() - time.monotonic()
    assert min(low, high) - 1 < offset < max(low, high) + 1
