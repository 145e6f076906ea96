"""APScheduler, made proof against clocks that jump.

APScheduler 3 counts wall-clock time: set back an hour it sleeps an hour, set forward a year it lists three million
missed runs (its issues 339, 1066). So: a trigger that never has a backlog, and a quarter-second tick on the monotonic
clock that puts every job right when the wall clock was moved.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.base import BaseTrigger

from watchdog.clock import Clock
from watchdog.logs import Log

TICK = 0.25
PATIENCE = 30.0  # seconds at least until a scheduler counts as dead: a registry that is away may take 20 of a sweep
STEP = 0.02  # seconds; NTP slews at most 0.5 ms a second


class Every(BaseTrigger):  # type: ignore[misc] # apscheduler ships no types
    """Fires now, then an interval after each look; a missed run is never made up for.

    `due` is the same instant on the monotonic clock: whatever the wall clock was when the run was planned, it tells
    where the run belongs.
    """

    def __init__(self, interval: timedelta, clock: Clock) -> None:
        self.interval = interval
        self.due = clock.mono()
        self._clock = clock

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime:
        """The next run, from now and never from the past."""
        wait = timedelta() if previous is None else self.interval
        self.due = self._clock.mono() + wait.total_seconds()
        return now + wait


class Schedule:
    """Runs coroutines at intervals; `dead` is set when the scheduler stopped running them and no nudge helped."""

    def __init__(self, clock: Clock, log: Log) -> None:
        self._clock = clock
        self._log = log
        self._scheduler = AsyncIOScheduler(
            timezone=UTC, job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
        )
        self._offset = clock.offset()
        self._ticking: asyncio.Task[None] | None = None
        self._watched: timedelta | None = None
        self._watched_name = ""
        self._since = 0.0  # seconds, as our own ticks saw them, since the watched job last ended
        self._running = 0
        self.dead = asyncio.Event()

    def every(
        self, interval: timedelta, name: str, job: Callable[[], Awaitable[None]], *, watched: bool = False
    ) -> None:
        """Run `job` now and then at each interval. A `watched` one that stops running is a reason to exit."""

        async def run() -> None:
            self._running += watched
            try:
                await job()
            finally:
                self._running -= watched
                if watched:
                    self._since = 0.0

        if watched:
            self._watched, self._watched_name = interval, name
        self._scheduler.add_job(run, Every(interval, self._clock), id=name, name=name)

    def change(self, name: str, interval: timedelta) -> None:
        """Another interval for a job; its next run is now."""
        job = self._scheduler.get_job(name)
        job.trigger.interval = interval
        if name == self._watched_name:
            self._watched = interval
        self._move(job, datetime.now(UTC))

    def start(self) -> None:
        """Begin; needs a running loop."""
        self._offset = self._clock.offset()
        self._scheduler.start()
        self._ticking = asyncio.create_task(self._tick(), name="clock tick")

    def pause(self) -> None:
        """Start no further run; one that is running goes on."""
        if self._ticking is not None:
            self._ticking.cancel()
        self._scheduler.pause()

    def shutdown(self) -> None:
        """End the scheduler. It cancels what still runs, so `pause` and wait first."""
        self._scheduler.shutdown(wait=False)

    async def _tick(self) -> None:
        while True:
            before = self._clock.mono()
            await asyncio.sleep(TICK)
            # A tick that comes late (we were stopped, starved or suspended) says nothing about the scheduler.
            self._since += min(self._clock.mono() - before, 2 * TICK)
            offset = self._clock.offset()
            if abs(offset - self._offset) > STEP:
                self._follow(offset - self._offset)
            self._offset = offset
            self._check()

    def _follow(self, step: float) -> None:
        """Put every job where it belongs on the wall clock of now.

        Not "move it by the step": a run that came between the step and this tick has planned its next one by the new
        time already.
        """
        if abs(step) >= 1:
            self._log.event("clock.stepped", seconds=round(step, 3))
        for job in self._scheduler.get_jobs():
            now = self._clock.now()
            self._move(job, now.wall + timedelta(seconds=job.trigger.due - now.mono))
        self._scheduler.wakeup()

    def _check(self) -> None:
        """Nudge a scheduler that is late for its watched job; three intervals (or `PATIENCE`) without an end: death."""
        if self._watched is None:
            return
        interval = self._watched.total_seconds()
        if self._since > max(3 * interval, PATIENCE):
            self.dead.set()
        elif self._since > 1.5 * interval and not self._running:
            for job in self._scheduler.get_jobs():
                self._move(job, datetime.now(UTC))
            self._scheduler.wakeup()

    def _move(self, job: object, when: datetime) -> None:
        self._scheduler.modify_job(job.id, next_run_time=when)  # type: ignore[attr-defined] # apscheduler ships no types
