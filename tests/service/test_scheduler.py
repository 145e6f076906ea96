"""A stepped wall clock moves no run by more than a second, and costs nothing (case H3)."""

import asyncio
import logging
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
import time_machine

from watchdog.clock import Clock
from watchdog.service import scheduler as module
from watchdog.service.scheduler import IntervalTrigger, Scheduler
from watchdog.telemetry.logger import get_logger

INTERVAL = timedelta(seconds=0.5)


class Runs:
    """Counts runs by the monotonic clock, which no step touches."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.changed = asyncio.Event()

    async def __call__(self) -> None:
        self.at.append(time.monotonic())
        self.changed.set()

    async def reach(self, count: int, seconds: float = 20) -> None:
        async with asyncio.timeout(seconds):
            while len(self.at) < count:
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three short intervals are enough; the real daemon waits longer, however short its interval."""
    assert module.PATIENCE >= 10
    monkeypatch.setattr(module, "PATIENCE", 1.0)


@pytest.mark.parametrize(
    "step",
    [timedelta(hours=-1), timedelta(seconds=-0.3), timedelta(hours=1), timedelta(days=365), timedelta(days=-365)],
    ids=str,
)
def test_a_step_of_the_wall_clock_moves_no_run(step: timedelta) -> None:
    """Each gap between two runs stays within the interval plus one second."""

    async def main() -> tuple[list[float], float]:
        schedule, runs = Scheduler(Clock(), get_logger()), Runs()
        schedule.every(INTERVAL, "sweep", runs, watched=True)
        schedule.start()
        await runs.reach(2)
        spent = time.process_time()
        with time_machine.travel(datetime.now(UTC) + step, tick=True):
            await runs.reach(5)
        await runs.reach(8)
        schedule.pause()
        schedule.shutdown()
        assert not schedule.dead.is_set()
        return runs.at, time.process_time() - spent

    at, cpu = asyncio.run(main())

    gaps = [later - earlier for earlier, later in pairwise(at)]
    assert max(gaps) < INTERVAL.total_seconds() + 1
    assert min(gaps) > 0.1
    assert cpu < 1


@pytest.mark.parametrize("step", [timedelta(hours=-1), timedelta(days=365)], ids=str)
def test_one_jobs_run_after_a_step_moves_no_other_job(step: timedelta) -> None:
    """Each was planned by the time before the step, and the first run after it checks all of them."""

    async def main() -> tuple[list[float], list[float]]:
        schedule, often, seldom = Scheduler(Clock(), get_logger()), Runs(), Runs()
        schedule.every(INTERVAL, "sweep", often, watched=True)
        schedule.every(timedelta(seconds=2), "orders", seldom)
        schedule.start()
        await often.reach(2)
        with time_machine.travel(datetime.now(UTC) + step, tick=True):
            await seldom.reach(3)
        schedule.pause()
        schedule.shutdown()
        return often.at, seldom.at

    for at, interval in zip(asyncio.run(main()), (0.5, 2), strict=True):
        gaps = [later - earlier for earlier, later in pairwise(at)]
        assert interval - 0.1 < min(gaps)
        assert max(gaps) < interval + 0.5


def test_a_trigger_never_has_a_backlog() -> None:
    """Fifty years later the next run is one interval away."""
    now = datetime(2080, 1, 1, tzinfo=UTC)

    assert now + INTERVAL == IntervalTrigger(INTERVAL, Clock()).get_next_fire_time(
        datetime(2030, 1, 1, tzinfo=UTC), now
    )
    assert now == IntervalTrigger(INTERVAL, Clock()).get_next_fire_time(None, now)


def test_a_job_that_raises_comes_again() -> None:
    """An error affects only its run."""

    async def main() -> int:
        count, third = 0, asyncio.Event()

        async def job() -> None:
            nonlocal count
            count += 1
            if count == 3:
                third.set()
            raise ValueError("one run's fault")

        schedule = Scheduler(Clock(), get_logger())
        schedule.every(timedelta(seconds=0.1), "sweep", job)
        schedule.start()
        async with asyncio.timeout(60):
            await third.wait()
        schedule.pause()
        schedule.shutdown()
        return count

    assert asyncio.run(main()) >= 3


def test_a_job_that_raises_each_time_is_reported_once() -> None:
    """Case H19: not at each run, and again after it had worked in between."""
    told: list[str] = []

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    async def main() -> None:
        count, done = 0, asyncio.Event()

        async def job() -> None:
            nonlocal count
            count += 1
            if count == 9:
                done.set()
            if count != 4:
                raise ValueError(f"one run's fault, {count}")

        schedule = Scheduler(Clock(), get_logger())
        schedule.every(timedelta(seconds=0.05), "orders", job)
        schedule.start()
        async with asyncio.timeout(60):
            await done.wait()
        schedule.pause()
        schedule.shutdown()

    handler = Told()
    logging.getLogger().addHandler(handler)
    try:
        asyncio.run(main())
    finally:
        logging.getLogger().removeHandler(handler)
    failed = [line for line in told if "job.recovered" not in line]
    assert len(failed) == 2, told  # runs 1 and 5
    assert all("job.failed" in line for line in failed)


def test_a_job_cancelled_by_shutdown_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """A daemon that is stopped while it searches for leftovers: its log ended with a traceback of apscheduler's."""

    async def main() -> None:
        schedule, begun = Scheduler(Clock(), get_logger()), asyncio.Event()

        async def long() -> None:
            begun.set()
            await asyncio.sleep(100)

        schedule.every(INTERVAL, "reap", long)
        schedule.start()
        async with asyncio.timeout(60):
            await begun.wait()
        schedule.pause()
        schedule.shutdown()
        await asyncio.sleep(0.1)

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert caplog.messages == []


def test_a_failure_of_the_schedulers_watchdog_is_noticed(impatient: None) -> None:
    """Case H12: its own error, too, ends the daemon; otherwise the scheduler could stop later, unnoticed."""

    async def main() -> None:
        schedule, runs = Scheduler(Clock(), get_logger()), Runs()
        schedule.every(timedelta(seconds=0.3), "sweep", runs, watched=True)
        schedule.start()
        await runs.reach(1)
        schedule._check = lambda: 1 / 0  # type: ignore[method-assign,assignment] # any error
        async with asyncio.timeout(60):
            await schedule.dead.wait()
        schedule.pause()
        schedule.shutdown()

    asyncio.run(main())


def test_a_scheduler_that_runs_nothing_any_more_is_dead(impatient: None) -> None:
    """Three intervals without a run, and no nudge helped: `dead` is set, and the daemon exits with 70 (case H12)."""

    async def main() -> None:
        schedule, runs = Scheduler(Clock(), get_logger()), Runs()
        schedule.every(timedelta(seconds=0.3), "sweep", runs, watched=True)
        schedule.start()
        await runs.reach(1)
        schedule._scheduler.pause()
        async with asyncio.timeout(60):
            await schedule.dead.wait()
        schedule.shutdown()

    asyncio.run(main())


def test_a_run_that_never_returns_is_dead_too(impatient: None) -> None:
    """Case H1: nothing else would ever be polled again, so the daemon exits for its supervisor to restart it."""

    async def main() -> None:
        schedule, begun = Scheduler(Clock(), get_logger()), asyncio.Event()

        async def job() -> None:
            begun.set()
            await asyncio.Event().wait()

        schedule.every(timedelta(seconds=0.3), "sweep", job, watched=True)
        schedule.start()
        async with asyncio.timeout(60):
            await begun.wait()
            await schedule.dead.wait()
        schedule.pause()
        schedule.shutdown()

    asyncio.run(main())
