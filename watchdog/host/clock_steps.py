"""Steps of the wall clock seen by this daemon and earlier ones: nothing falls due because of one.

Found by the difference between wall clock and boot time, also for times without a daemon; not across a reboot, where
the duration of the power-off is unknown.
"""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from watchdog.clock import Clock
from watchdog.concurrency.threads import Pool
from watchdog.core.steps import ClockReading, ClockStep, credit, step_between, with_step

NAME = "clock.json"
MOST = 64  # steps remembered, the newest
WRITE_EVERY = 60.0  # seconds of boot time between two stored readings


class Steps:
    """Used wherever a stored wall time is compared with now."""

    def __init__(self, state_dir: str, clock: Clock, boot_id: str) -> None:
        self._path = os.path.join(state_dir, NAME)
        self._clock = clock
        self._boot_id = boot_id
        self._disk = Pool(1, self._path)
        self._steps: list[ClockStep] = []
        self._written = float("-inf")
        self._listeners: list[Callable[[timedelta], None]] = []
        self._last = self._read() or self._reading()

    def subscribe(self, shift: Callable[[timedelta], None]) -> None:
        """Call this with each step from now on; the next `look` also finds one from before this start."""
        self._listeners.append(shift)

    def look(self) -> timedelta:
        """Find out whether the clock was set since the last reading, and by how much."""
        former, now = self._last, self._reading()
        self._last = now
        by = step_between(former, now)
        if by:
            self._steps = with_step(self._steps, by, now.wall)[-MOST:]
            for listener in self._listeners:
                listener(by)
        if by or now.boot - self._written >= WRITE_EVERY:
            self._written = now.boot
            self._disk.submit(self._write, _json(now, self._steps))
        return by

    def credit(self, keep: timedelta) -> timedelta:
        """How much longer than `keep` something must be kept by the wall clock."""
        self.look()
        return credit(self._steps, keep, self._last.wall)

    def _reading(self) -> ClockReading:
        now = self._clock.now()
        return ClockReading(now.wall, now.boot, self._boot_id)

    def _read(self) -> ClockReading | None:
        """The reading of an earlier daemon; None: there is no usable one."""
        with suppress(OSError, ValueError, KeyError, TypeError, OverflowError):
            with open(self._path, opener=_at_once) as file:
                data = json.loads(file.read(65_536))
            self._steps = [ClockStep(_time(one["at"]), timedelta(seconds=one["by"])) for one in data["steps"]][-MOST:]
            return ClockReading(_time(data["wall"]), float(data["boot"]), str(data["boot_id"]))
        return None

    def _write(self, text: str) -> None:
        try:
            with open(
                os.open(f"{self._path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w"
            ) as file:
                file.write(text)
            os.replace(f"{self._path}.new", self._path)
        except OSError:
            return  # a step while no daemon runs then stays unknown; the next minute tries again


def _at_once(path: str, flags: int) -> int:
    """Opening a FIFO in its place would wait for a writer and hang the start."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _time(epoch: float) -> datetime:
    return datetime.fromtimestamp(epoch, UTC)


def _json(last: ClockReading, steps: list[ClockStep]) -> str:
    told = [{"at": step.at.timestamp(), "by": step.by.total_seconds()} for step in steps]
    return json.dumps({"wall": last.wall.timestamp(), "boot": last.boot, "boot_id": last.boot_id, "steps": told})
