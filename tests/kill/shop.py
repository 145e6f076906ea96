"""A kill worker with real parts and one running agent, a real process."""

import asyncio
import contextlib
import os
import secrets
import subprocess
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ParamSpec, TypeVar

from watchdog.agents import judging
from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.history import EventRecorder
from watchdog.agents.holds import Holds
from watchdog.agents.tracker import AgentTracker
from watchdog.agents.watched_time import WatchedTime
from watchdog.cleanup.runner import CleanupRunner
from watchdog.clock import Clock
from watchdog.config.paths import places_for
from watchdog.config.schema import Config
from watchdog.config.settings import settings_of
from watchdog.core.agent import Beat, Policy, Registration, Status, Verdict
from watchdog.core.kill import KillOptions, Reason
from watchdog.core.process import TreeMember
from watchdog.core.verdict import Judgement
from watchdog.helpers.pool import HelperPool
from watchdog.helpers.users import Users
from watchdog.intake.notify_sockets import NotifySockets
from watchdog.kill.ask import StopRequest
from watchdog.kill.claim import Claim
from watchdog.kill.close import Close
from watchdog.kill.evidence import EvidenceCollector
from watchdog.kill.worker import KillStages, KillWorker
from watchdog.probes.panes import Panes
from watchdog.probes.process_scan import ProcessScanner
from watchdog.processes import identity
from watchdog.processes.signals import Guard
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.registry import Registry
from watchdog.registry.rows import HoldRow, RequestRow
from watchdog.telemetry.logger import get_logger
from watchdog.telemetry.metrics import Metrics

P = ParamSpec("P")
T = TypeVar("T")
SETTINGS = settings_of(Config.model_validate({"kill": {"parallel": 4}, "hook": []}), None, places_for(0, {}))
HOST = identity.this_host(None)
AGENT = secrets.token_hex(16)  # what other tests start beside us may carry a fixed one as its mark


class Delayed(AsyncRegistry):
    """Does something else just before its next write by that method: the delay in which an agent beats."""

    before: tuple[str, Callable[[], object]] | None = None
    claims = 0

    async def write(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self.claims += getattr(method, "__name__", "") == "claim_agent"
        if self.before is not None and getattr(method, "__name__", "") == self.before[0]:
            (_, do), self.before = self.before, None
            do()
        return await super().write(method, *args, **kwargs)


class Sparing(Fleet):
    """Lets programs of some names live, whatever a policy says."""

    spare: frozenset[str] = frozenset()

    def guard(self, agent: Agent, host: str) -> Guard:
        return Guard(host=host, spare=self.spare)


class Shop:
    """A kill worker with real parts and one running agent, a real process."""

    def __init__(self, directory: Path, held: contextlib.ExitStack) -> None:
        self.clock, log, self.fleet = Clock(), get_logger(), Sparing()
        self.settings = SETTINGS
        self.registry = Delayed(Registry(f"sqlite:///{directory}/registry.db").open())
        held.callback(self.registry.close)
        executor = ThreadPoolExecutor(1)
        held.callback(executor.shutdown)
        self.tracker = AgentTracker(self.fleet, NotifySockets(str(directory)), self.clock, log)
        self.owners, self.holds = HelperPool(), Holds()
        self.recorder = recorder = EventRecorder(self.registry, self.clock, log)
        cleanup = CleanupRunner(self.settings, self.owners, self.registry, self.clock, recorder, self.fleet)
        metrics = Metrics()
        self.users, self.watched = Users(self.clock, log), WatchedTime(self.settings, self.fleet, self.clock)
        panes, scanner = Panes(self.registry, self.owners), ProcessScanner(self.fleet, executor, HOST)

        self.stages = stages = KillStages(
            EvidenceCollector(self.clock, self.holds, self.owners, panes, self.watched),
            StopRequest(self.registry, self.clock, self.holds, self.owners, recorder),
            Claim(self.registry, self.clock, self.tracker, self.holds, self.fleet),
            self.fleet,
            scanner,
            Close(self.registry, self.clock, self.tracker, cleanup, recorder, metrics, self.owners),
        )
        self.worker = KillWorker(self.settings, self.registry, self.clock, stages, recorder, self.users)

    async def admit(self, process: subprocess.Popen[bytes]) -> Agent:
        """The process as an agent that has beaten once and was then found stalled."""
        found = identity.read_identity(process.pid, HOST)
        now = datetime.now(UTC)
        reg = Registration(
            AGENT, "alpha", os.getuid(), HOST, identity.boot_id(), identity=found, created_at=now, source="run"
        )
        await self.registry.write(self.registry.agents.add, reg, Status.RUNNING, now, "test", None)
        agent = Agent(reg, Policy(), Status.RUNNING)
        agent.heartbeat.said.promise(True)
        self.tracker.admit(agent)
        self.beat(agent)
        judging.remember(agent, Judgement(Verdict.STALLED, "silent"), self.clock.mono(), 1.0)
        return agent

    def beat(self, agent: Agent) -> None:
        agent.beat(Beat(), self.clock.mono(), self.clock.now().wall)

    async def order(self, agent: Agent) -> str:
        """What a sweep does for a stalled agent."""
        return await self.worker.request(
            agent, Reason.STALLED, KillOptions(), "daemon", "silent", beats=agent.judged.renewed_judged
        )

    def hold(self, agent_id: str | None) -> None:
        """An operator's hold on that agent, or on all."""
        self.holds.put(HoldRow(1, agent_id, "debugging", 0, datetime.now(UTC)))

    async def history(self, agent: Agent) -> list[str]:
        """The events of the agent, in order, without the first."""
        events = await self.registry.read(self.registry.history.events, 0, agent_id=agent.agent_id)
        return [event.event for event in events][1:]

    async def tried(self, times: int) -> None:
        """Wait for so many attempts more, begun and ended."""
        goal = self.registry.claims + times + 1
        async with asyncio.timeout(60):
            while self.registry.claims < goal:
                await asyncio.sleep(0.01)

    async def told(self, agent: Agent) -> tuple[Status, list[str]]:
        """The status in the registry, and the statuses of all orders."""
        row = await self.registry.read(self.registry.agents.get, agent.agent_id)
        orders = await self.registry.read(self.registry.kills.requests_of, agent.agent_id)
        assert row is not None
        return row.status, [order.status for order in orders]


@contextlib.asynccontextmanager
async def shop(directory: Path) -> AsyncIterator[tuple[Shop, Agent, subprocess.Popen[bytes]]]:
    with contextlib.ExitStack() as held, subprocess.Popen(["sleep", "1000"], start_new_session=True) as process:
        made = Shop(directory, held)
        try:
            yield made, await made.admit(process), process
        finally:
            await made.worker.close()
            await made.owners.close()
            made.tracker.close()
            for agent in made.fleet:
                agent.tree.close()
            process.kill()


ASK = KillOptions(ask=timedelta(seconds=60))


async def asking(made: Shop, agent: Agent, options: KillOptions, by: str = "daemon") -> str:
    """An order that asks first, and has come that far."""
    reason = Reason.STALLED if by == "daemon" else Reason.STOP
    order = await made.worker.request(agent, reason, options, by, "silent", beats=agent.judged.renewed_judged)
    async with asyncio.timeout(60):
        while agent.ending.asked is None or "stop.asked" not in await made.history(agent):
            await asyncio.sleep(0.01)
    return order


async def left_by_a_daemon(made: Shop, agent: Agent, step: str) -> RequestRow:
    """An order as a daemon left it that died right after that intent."""
    registry, now = made.registry, datetime.now(UTC)
    options = {
        "force": False,
        "grace_seconds": None,
        "cleanup": True,
        "beats": agent.heartbeat.rhythm.beats,
        "why": "silent",
    }
    await made.registry.write(
        registry.kills.open_request, "r1", agent.agent_id, Reason.STALLED, by="daemon", now=now, options=options
    )
    assert await made.registry.write(registry.kills.claim_request, "r1", "daemon 1", now)
    running, ending = {Status.RUNNING}, Status.ENDING
    await made.registry.write(
        registry.agents.transition, agent.agent_id, running, ending, now=now, who="daemon 1", why="silent"
    )
    assert agent.identity is not None
    member = TreeMember(identity=agent.identity, parent_pid=1, uid=0, name="sleep", state="S", via="main")
    await made.registry.write(registry.kills.save_step, "r1", step, members=[asdict(member)])
    agent.status = ending  # as it was read at the start
    left = await made.registry.read(registry.kills.request, "r1")
    assert left is not None
    return left
