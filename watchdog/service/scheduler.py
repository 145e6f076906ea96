"""APScheduler, protected against clock jumps.

APScheduler 3 uses wall-clock time: set back an hour it sleeps an hour, set forward a year it lists three million missed
runs (its issues 339, 1066). But asyncio's timer, on the monotonic clock, wakes it. So this module uses a trigger that
never has a backlog, and before APScheduler reads the wall clock, moves every job to its right time on that clock.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.base import BaseTrigger

from watchdog.clock import Clock
from watchdog.config.settings import Settings
from watchdog.telemetry.logger import EventLogger

TICK = 5.0  # seconds at most between two checks whether the scheduler still runs the watched job
PATIENCE = 30.0  # seconds at least until a scheduler counts as dead: a missing registry may take 20 of a sweep
STEP = 0.02  # seconds; NTP slews at most 0.5 ms a second


class IntervalTrigger(BaseTrigger):  # type: ignore[misc] # apscheduler ships no types
    """Fires now, then one interval after each evaluation; a missed run is never made up for.

    `due` is the same instant on the monotonic clock: it gives the right time of the run, whatever the wall clock was
    when the run was planned.
    """

    def __init__(self, interval: timedelta, clock: Clock) -> None:
        self.interval = interval
        self.due = clock.mono()
        self._clock = clock

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime:
        """The next run, relative to now and never in the past."""
        wait = timedelta() if previous is None else self.interval
        self.due = self._clock.mono() + wait.total_seconds()
        return now + wait


class _Scheduler(AsyncIOScheduler):  # type: ignore[misc] # apscheduler ships no types
    """Calls `before` each time before it reads the wall clock: woken by its own timer, or by a change of a job."""

    def __init__(self, before: Callable[[], None], **options: object) -> None:
        super().__init__(**options)
        self._before = before

    def wakeup(self) -> None:
        """Run what is due and plan the next wake-up."""
        self._before()
        super().wakeup()


class Scheduler:
    """Runs coroutines at intervals; `dead` is set when the scheduler stopped running them and no nudge helped."""

    def __init__(self, clock: Clock, log: EventLogger) -> None:
        self._clock = clock
        self._log = log
        self._scheduler = _Scheduler(
            self._follow, timezone=UTC, job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
        )
        self._offset = clock.offset()
        self._each_sweep: set[str] = set()  # jobs at the interval of the sweeps
        self._ticking: asyncio.Task[None] | None = None
        self._watched: timedelta | None = None
        self._watched_name = ""
        self._since = 0.0  # seconds, as our own ticks saw them, since the watched job last ended
        self._running = 0
        self._failed: set[str] = set()  # jobs whose last run raised: reported once
        self.dead = asyncio.Event()

    def every(
        self, interval: timedelta, name: str, job: Callable[[], Awaitable[None]], *, watched: bool = False
    ) -> None:
        """Run `job` now and then at each interval. If a `watched` job stops running, the daemon exits."""

        async def run() -> None:
            self._running += watched
            try:
                await job()
                if name in self._failed:
                    self._failed.discard(name)
                    self._log.event("job.recovered", job=name)
            except asyncio.CancelledError:
                return  # by `shutdown`: no error, and apscheduler would log a traceback of it
            except Exception as error:  # noqa: BLE001 - the next run comes, and does not report the same again
                if name not in self._failed:
                    self._failed.add(name)
                    self._log.event("job.failed", job=name, exc_info=error)
            finally:
                self._running -= watched
                if watched:
                    self._since = 0.0

        if watched:
            self._watched, self._watched_name = interval, name
        self._scheduler.add_job(run, IntervalTrigger(interval, self._clock), id=name, name=name)

    def each_sweep(
        self, settings: Settings, name: str, job: Callable[[], Awaitable[None]], *, watched: bool = False
    ) -> None:
        """The same at the interval of the sweeps, which a reload may change."""
        self._each_sweep.add(name)
        self.every(settings.interval, name, job, watched=watched)

    def apply(self, settings: Settings) -> None:
        """Apply the sweeps' interval to the jobs that follow it."""
        for name in self._each_sweep:
            if self._scheduler.get_job(name).trigger.interval != settings.interval:
                self.change(name, settings.interval)

    def change(self, name: str, interval: timedelta) -> None:
        """Change the interval of a job; its next run is now."""
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
        self._ticking.add_done_callback(self._ticked)

    def pause(self) -> None:
        """Start no further run; one that is running finishes."""
        if self._ticking is not None:
            self._ticking.cancel()
        self._scheduler.pause()

    def shutdown(self) -> None:
        """End the scheduler. It cancels running jobs, so `pause` and wait first."""
        self._scheduler.shutdown(wait=False)

    def _ticked(self, task: "asyncio.Task[None]") -> None:
        """The watchdog task of the scheduler failed; nothing would notice the scheduler dying."""
        if not task.cancelled() and task.exception() is not None:
            self.dead.set()

    async def _tick(self) -> None:
        tick = TICK if self._watched is None else min(TICK, self._watched.total_seconds() / 4)
        while True:
            before = self._clock.mono()
            await asyncio.sleep(tick)
            # A late tick (we were stopped, starved or suspended) says nothing about the scheduler.
            self._since += min(self._clock.mono() - before, 2 * tick)
            self._check()

    def _follow(self) -> None:
        """Move every job to its right time on the present wall clock, if that was set.

        Not by the size of the step: a run between the step and this check has planned its next one by the new time
        already.
        """
        former, self._offset = self._offset, self._clock.offset()
        step = self._offset - former
        if abs(step) <= STEP:
            return
        if abs(step) >= 1:
            self._log.event("clock.stepped", seconds=round(step, 3))
        for job in self._scheduler.get_jobs():
            now = self._clock.now()
            self._move(job, now.wall + timedelta(seconds=job.trigger.due - now.mono))

    def _check(self) -> None:
        """Nudge a scheduler that is late for its watched job; three intervals (or `PATIENCE`) without an end: dead."""
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
