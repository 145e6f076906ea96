"""Who falls silent is asked for within `after + confirm_sweeps x interval + 1 s`: in 1,000 of 1,000 runs."""

import asyncio
import heapq
import os
import random
import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from tests.faults.crash.own import own_daemon
from tests.tables import FULL, SEED
from tests.verdicts.hours import CONFIG, MovedClock
from watchdog.agents.agent import Agent
from watchdog.core.agent import Beat, Policy, Registration, Status
from watchdog.core.kill import Reason
from watchdog.processes import identity
from watchdog.service.wiring import Parts

FLEETS, SIZE = 10, 100  # runs together: 1,000; every other fleet is five small ones, whose looks are fewer
SHARE = 4  # and a fraction of the fleets where CI has not the time for all
LIMITS = """
[sweep]
interval_seconds = {interval}
[stall]
after_seconds = {after}
[kill]
max_per_minute = 100000
[hold]
mass_stall_count = 100000
cpu_pressure_percent = 100
"""
EARLY = 0.02  # seconds after a deadline that `service` looks again


@dataclass(frozen=True)
class Rhythm:
    """How a fleet is watched, in seconds."""

    interval: float
    confirm: int
    cost: float  # what each look takes


@dataclass
class Run:
    """One agent that beats for a while and then never again; when its end was asked for."""

    agent: Agent
    after: float
    last: float
    asked: float | None = None

    @property
    def late(self) -> float:
        """Seconds from its last beat."""
        return (self.asked or float("inf")) - self.last


@contextmanager
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    """A process that all of a fleet's agents are: what is looked at is when, not whom. It lives as long as we do."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()  # one that is stopped as well


async def fleet_of(size: int, directory: Path, rhythm: Rhythm, chance: random.Random, pid: int) -> list[Run]:
    """One real sweeper and its registry, on a clock that we move; orders are noted and not carried out."""
    text = CONFIG + LIMITS.format(interval=rhythm.interval, after=2 * rhythm.interval)
    clock = MovedClock()
    async with own_daemon(directory, text=text, clock=clock) as daemon:
        runs = [_admitted(daemon, rhythm, chance, pid) for _ in range(size)]
        by_agent = {run.agent.agent_id: run for run in runs}

        async def request(agent: Agent, reason: Reason, *_: object) -> str:
            assert reason is Reason.STALLED
            by_agent[agent.agent_id].asked = clock.ahead
            agent.ending.request_id = "noted"
            return "noted"

        daemon.kills.request = request  # type: ignore[assignment]
        await _watched(daemon, clock, rhythm, chance, runs)
        for run in runs:
            daemon.tracker.forget(run.agent)
        return runs


def _admitted(daemon: Parts, rhythm: Rhythm, chance: random.Random, pid: int) -> Run:
    found, agent_id = identity.read_identity(pid, daemon.host), secrets.token_hex(16)
    after = rhythm.interval * chance.uniform(2, 12)
    reg = Registration(agent_id, f"a-{agent_id[:8]}", os.getuid(), daemon.host, daemon.boot_id, identity=found)
    agent = Agent(reg, Policy(after=timedelta(seconds=after), confirm_sweeps=rhythm.confirm), Status.RUNNING)
    daemon.tracker.admit(agent)
    return Run(agent, after, last=chance.uniform(0, 20 * rhythm.interval))


async def _watched(daemon: Parts, clock: MovedClock, rhythm: Rhythm, chance: random.Random, runs: list[Run]) -> None:
    """As `service` does: a look at its start, then at each interval, and one when a silence could become too long.

    Each takes its time.
    """
    words = [(when, run.agent.agent_id) for run in runs for when in _beats(run, chance)]
    heapq.heapify(words)
    agents = {run.agent.agent_id: run.agent for run in runs}
    end = max(run.last + run.after for run in runs) + (rhythm.confirm + 3) * rhythm.interval
    scheduled, look = rhythm.interval, 0.0
    while clock.ahead < end:
        while words and words[0][0] <= look:
            when, agent_id = heapq.heappop(words)
            agents[agent_id].beat(Beat(), clock.mono() - clock.ahead + when, clock.now().wall)
        clock.ahead = look
        await daemon.sweeper.sweep()
        free = look + rhythm.cost  # and an early one waits four times as long again, a second at most
        while scheduled <= free:
            scheduled += rhythm.interval
        early = max(look + daemon.watched.next_deadline() + EARLY, free + min(1.0, 4 * rhythm.cost))
        look = min(scheduled, early)


def _beats(run: Run, chance: random.Random) -> list[float]:
    """From the start on, never silent for too long, at last at `run.last`."""
    found, when = [], 0.0
    while when < run.last:
        found.append(when)
        when += run.after * chance.uniform(0.05, 0.9)
    return [*found, run.last]


RHYTHMS = [Rhythm(10, 2, 0.05), Rhythm(10, 1, 0.0), Rhythm(1, 2, 0.1), Rhythm(30, 3, 0.2), Rhythm(5, 2, 0.0)]


@pytest.mark.faults
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(FLEETS if FULL or SEED is None else FLEETS // SHARE))
def test_the_end_of_who_falls_silent_is_asked_for_in_time(number: int) -> None:
    """Not before its time either: a real sweeper, and 100 agents each at a random point of its looks."""
    rhythm = RHYTHMS[number % len(RHYTHMS)]
    chance = random.Random(f"{SEED} {number}")
    with tempfile.TemporaryDirectory(prefix="aw-", dir="/tmp") as directory, sleeping() as process:
        runs = [
            run
            for size in ([SIZE] if number % 2 else [SIZE // 5] * 5)
            for run in asyncio.run(fleet_of(size, Path(directory), rhythm, chance, process.pid))
        ]
    promise = rhythm.confirm * rhythm.interval + 1
    late = [run for run in runs if not 0 <= run.late - run.after <= promise]
    told = [f"{run.late:.2f} s after its last beat, limit {run.after:.2f}, promise {promise:g}" for run in late]
    assert not told, f"{len(told)} of {len(runs)}:\n" + "\n".join(told[:20])
    assert len(runs) == SIZE
