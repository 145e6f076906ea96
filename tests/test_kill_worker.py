"""A beat withdraws an order for silence, whenever it comes between the look and the first signal, over restarts too."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from watchdog import kill_worker
from watchdog.chronicle import Chronicle
from watchdog.clock import Clock
from watchdog.closing import Closing
from watchdog.core.model import Beat, KillOptions, Policy, Reason, Registration, Status, Verdict
from watchdog.core.verdict import Judgement
from watchdog.errors import RegistryUnavailable
from watchdog.fleet import Agent, Fleet
from watchdog.hearing import Hearing
from watchdog.journal import Cleanup
from watchdog.kill_worker import KillWorker
from watchdog.logs import get_logger
from watchdog.metrics import Metrics
from watchdog.owners import Owners
from watchdog.processes import identity
from watchdog.processes.signals import Guard
from watchdog.registry.store import AsyncStore, Store
from watchdog.scan import Scanner

P = ParamSpec("P")
T = TypeVar("T")
HOST = identity.this_host(None)


class Delayed(AsyncStore):
    """Does something else just before its next write by that method: the delay in which an agent speaks."""

    before: tuple[str, Callable[[], None]] | None = None
    claims = 0

    async def write(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self.claims += getattr(method, "__name__", "") == "claim_request"
        if self.before is not None and getattr(method, "__name__", "") == self.before[0]:
            (_, do), self.before = self.before, None
            do()
        return await super().write(method, *args, **kwargs)


class Shop:
    """A kill worker with real parts and one running agent, a real process."""

    def __init__(self, directory: Path, held: contextlib.ExitStack) -> None:
        self.clock, log, self.fleet = Clock(), get_logger(), Fleet()
        self.spare: frozenset[str] = frozenset()
        self.store = Delayed(Store(f"sqlite:///{directory}/registry.db").open())
        held.callback(self.store.close)
        executor = ThreadPoolExecutor(1)
        held.callback(executor.shutdown)
        self.hearing = Hearing(self.fleet, str(directory), self.clock, lambda: None, log)
        self.owners = Owners()
        chronicle = Chronicle(self.store, self.clock, log)
        cleanup = Cleanup((), self.owners, self.store, self.clock, chronicle, fleet=self.fleet, observe=False)
        metrics = Metrics(dict, dict)
        self.worker = KillWorker(
            store=self.store,
            clock=self.clock,
            scanner=Scanner(self.fleet, executor, HOST),
            hearing=self.hearing,
            closing=Closing(self.store, self.clock, self.hearing, cleanup, chronicle, metrics, log),
            guard=lambda _: Guard(host=HOST, spare=self.spare),
            chronicle=chronicle,
            log=log,
            observe=False,
            parallel=4,
        )

    async def admit(self, process: subprocess.Popen[bytes]) -> Agent:
        """The process as an agent that has beaten once and was then found stalled."""
        found = identity.read_identity(process.pid, HOST)
        now = datetime.now(UTC)
        reg = Registration(
            "a" * 32, "alpha", os.getuid(), HOST, identity.boot_id(), identity=found, created_at=now, source="run"
        )
        await self.store.write(self.store.store.add_agent, reg, Status.RUNNING, now, "test", None)
        agent = Agent(reg, Policy(), Status.RUNNING, promised=True)
        self.hearing.admit(agent)
        self.beat(agent)
        agent.judged(Judgement(Verdict.STALLED, "silent"), self.clock.mono(), 1.0)
        return agent

    def beat(self, agent: Agent) -> None:
        agent.beat(Beat(), self.clock.mono(), self.clock.now().wall)

    async def order(self, agent: Agent) -> str:
        """What a sweep does for a stalled agent."""
        return await self.worker.request(
            agent, Reason.STALLED, KillOptions(), "daemon", "silent", beats=agent.beats_judged
        )

    async def history(self, agent: Agent) -> list[str]:
        """The events of the agent, in order, without the first."""
        events = await self.store.read(self.store.store.events, 0, agent_id=agent.agent_id)
        return [event.event for event in events][1:]

    async def tried(self, times: int) -> None:
        """Wait for so many attempts more, begun and ended."""
        goal = self.store.claims + times + 1
        async with asyncio.timeout(20):
            while self.store.claims < goal:
                await asyncio.sleep(0.01)

    async def told(self, agent: Agent) -> tuple[Status, list[str]]:
        """The status in the registry, and the statuses of all orders."""
        row = await self.store.read(self.store.store.agent, agent.agent_id)
        orders = await self.store.read(self.store.store.requests_of, agent.agent_id)
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
            made.hearing.close()
            for agent in made.fleet:
                agent.close()
            process.kill()


def test_a_beat_while_the_order_is_being_committed_withdraws_it(tmp_path: Path) -> None:
    """It came after the look that decided; that it came before the order was in the registry changes nothing."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            made.store.before = ("open_request", lambda: made.beat(agent))
            await made.worker.finished(await made.order(agent), 20)

            assert await made.told(agent) == (Status.RUNNING, ["withdrawn"])
            assert (agent.status, agent.request_id, process.poll()) == (Status.RUNNING, None, None)

    asyncio.run(story())


def test_a_beat_between_the_look_and_the_order_withdraws_it(tmp_path: Path) -> None:
    """Writing a sweep and the orders of others takes time, in which an agent may speak."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            made.beat(agent)
            await made.worker.finished(await made.order(agent), 20)

            assert await made.told(agent) == (Status.RUNNING, ["withdrawn"])
            assert process.poll() is None

    asyncio.run(story())


def test_a_claim_that_a_dead_daemon_left_is_withdrawn_by_a_beat(tmp_path: Path) -> None:
    """It died between the claim and the first look: the row says ending. Who beats again runs again, and is judged."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            store, now = made.store.store, datetime.now(UTC)
            options = {"force": False, "grace_seconds": None, "cleanup": True, "beats": agent.beats, "why": "silent"}
            row = await made.store.write(
                store.open_request, "r1", agent.agent_id, Reason.STALLED, by="daemon", now=now, options=options
            )
            assert row is not None
            assert await made.store.write(store.claim_request, "r1", "daemon 1", now)
            running, ending = {Status.RUNNING}, Status.ENDING
            await made.store.write(
                store.transition, agent.agent_id, running, ending, now=now, who="daemon 1", why="silent"
            )
            agent.status = ending  # as it was read at the start
            left = await made.store.read(store.request, "r1")
            assert left is not None

            made.beat(agent)
            made.worker.resume(left, agent)
            await made.worker.finished("r1", 20)

            assert await made.told(agent) == (Status.RUNNING, ["withdrawn"])
            assert (agent.status, agent.request_id, process.poll()) == (Status.RUNNING, None, None)

    asyncio.run(story())


def test_a_retry_of_what_cannot_be_ended_writes_no_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty attempts and a daemon anew in between: no row more. When it goes after all, its story ends as any."""
    monkeypatch.setattr(kill_worker, "BACK_OFF", (0.02,))

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            made.spare = frozenset({"sleep"})
            outcome = await made.worker.finished(await made.order(agent), 20)
            assert outcome is not None
            assert outcome["error"] == "kill_failed"
            await made.tried(20)
            stuck = ["kill.requested", "agent.ending", "agent.unkillable"]
            assert await made.history(agent) == stuck
            assert await made.told(agent) == (Status.UNKILLABLE, ["claimed"])

            await made.worker.close()
            (row,) = await made.store.read(made.store.store.requests_of, agent.agent_id)
            made.worker.resume(row, agent)
            await made.tried(5)
            assert await made.history(agent) == stuck

            made.spare = frozenset()
            async with asyncio.timeout(20):
                while (await made.told(agent))[1] != ["done"]:
                    await asyncio.sleep(0.02)
            assert process.wait(20) < 0
            after = await made.history(agent)
            assert [event for event in after if event != "kill.signal_sent"] == [
                *stuck,
                "agent.ending",
                "agent.ended",
                "kill.finished",
            ]

    asyncio.run(story())


def test_an_agent_whose_row_somebody_else_closed_is_watched_no_longer(tmp_path: Path) -> None:
    """One order finds it out; nobody is signalled, and no look orders the next."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            store, now = made.store.store, datetime.now(UTC)
            running, closed = {Status.RUNNING}, Status.COMPLETED
            await made.store.write(store.transition, agent.agent_id, running, closed, now=now, who="x", why="x")

            outcome = await made.worker.finished(await made.order(agent), 20)

            assert outcome is not None
            assert outcome["error"] == "withdrawn"
            assert len(made.fleet) == 0
            assert process.poll() is None

    asyncio.run(story())


def test_an_agent_whose_row_somebody_broke_is_said_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A status that is no word of ours is no reason to signal anybody, nor to order a kill at each look."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            with contextlib.closing(sqlite3.connect(tmp_path / "registry.db", isolation_level=None)) as by_hand:
                by_hand.execute("PRAGMA ignore_check_constraints = ON")
                by_hand.execute("UPDATE agent_lifecycle SET status = 'weird'")

            await made.worker.finished(await made.order(agent), 20)

            async with asyncio.timeout(20):
                while len(made.fleet):
                    await asyncio.sleep(0.01)
            assert process.poll() is None

    asyncio.run(story())
    told = [record for record in caplog.records if "row.quarantined" in str(record.msg)]
    assert len(told) == 1
    assert "status: 'weird' is none of" in str(told[0].msg)


def test_however_long_the_registry_was_away_an_order_goes_on_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be ended is tried again with growing pauses; an order that only waits for the registry is not."""
    monkeypatch.setattr(kill_worker, "BACK_OFF", (0.01, 1000.0))

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            refusals = 5

            def away() -> None:
                nonlocal refusals
                refusals -= 1
                if refusals:
                    made.store.before = ("claim_request", away)
                raise RegistryUnavailable("away")

            made.store.before = ("claim_request", away)
            outcome = await made.worker.finished(await made.order(agent), 20)

            assert outcome is not None
            assert (await made.told(agent), refusals) == ((Status.KILLED, ["done"]), 0)
            assert process.wait(20) == -signal.SIGTERM

    asyncio.run(story())
