"""Case C11: the agent exits, beats, or loses its pid between the decision to kill it and the first signal.

Worker, registry, sockets and processes are real; the injected delay is a registry write that waits.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest

from tests.kill.shop import SETTINGS
from tests.world import AGENTS, alive, pids_with, wait_for
from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.history import EventRecorder
from watchdog.agents.holds import Holds
from watchdog.agents.tracker import AgentTracker
from watchdog.agents.watched_time import WatchedTime
from watchdog.cleanup.runner import CleanupRunner
from watchdog.clock import Clock
from watchdog.core.agent import Beat, Policy, Registration, Status
from watchdog.core.hooks import HookSpec
from watchdog.core.kill import KillOptions, Reason
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
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.registry import Registry
from watchdog.registry.rows import AgentRow, RequestRow
from watchdog.telemetry.logger import get_logger
from watchdog.telemetry.metrics import Metrics

P = ParamSpec("P")
T = TypeVar("T")
HOST = identity.this_host(None)
DEADLINE = 30.0

# Obeys one-word lines: beats, or exits; with "heir" it leaves a child in its own session.
OBEDIENT = """
import os, socket, subprocess, sys
speaker = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
for line in sys.stdin:
    if line == "beat\\n":
        speaker.sendto(b"WATCHDOG=1", os.environ["NOTIFY_SOCKET"])
    elif line == "heir\\n":
        subprocess.Popen(["sleep", "1000"], start_new_session=True, stdin=subprocess.DEVNULL)
    elif line == "exit\\n":
        sys.exit(0)
    print("done", flush=True)
"""


class SlowRegistry(AsyncRegistry):
    """Its write of one kind waits for the test: the delay between decision and kill."""

    def __init__(self, registry: Registry, slow: str) -> None:
        super().__init__(registry)
        self._slow = slow
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()

    async def write(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if getattr(method, "__name__", "") == self._slow and not self.go_on.is_set():
            self.reached.set()
            await self.go_on.wait()
        return await super().write(method, *args, **kwargs)


class Bench:
    """A kill worker, one agent, and an order to kill it for silence, which is delayed at `slow`."""

    def __init__(self, directory: Path, slow: str, held: contextlib.ExitStack) -> None:
        self.dir = directory
        self.hooked = directory / "hooked"
        self.clock, self.log, self.fleet = Clock(), get_logger(), Fleet()
        self.registry = SlowRegistry(Registry(f"sqlite:///{directory}/registry.db").open(), slow)
        held.callback(self.registry.close)
        executor = ThreadPoolExecutor(1)
        held.callback(executor.shutdown)
        os.mkdir(directory / "notify", 0o700)
        self.tracker = AgentTracker(self.fleet, NotifySockets(str(directory / "notify")), self.clock, self.log)
        self.recorder = EventRecorder(self.registry, self.clock, self.log)
        self.owners = HelperPool()
        hook = HookSpec("note", frozenset(Status), command=("/bin/sh", "-c", f"cat > {self.hooked}"))
        settings = replace(SETTINGS, hooks=(hook,))
        cleanup = CleanupRunner(settings, self.owners, self.registry, self.clock, self.recorder, self.fleet)
        watched = WatchedTime(settings, self.fleet, self.clock)
        metrics = Metrics()
        panes, scanner = Panes(self.registry, self.owners), ProcessScanner(self.fleet, executor, HOST)
        holds = Holds()

        stages = KillStages(
            EvidenceCollector(self.clock, holds, self.owners, panes, watched),
            StopRequest(self.registry, self.clock, holds, self.owners, self.recorder),
            Claim(self.registry, self.clock, self.tracker, holds, self.fleet),
            self.fleet,
            scanner,
            Close(self.registry, self.clock, self.tracker, cleanup, self.recorder, metrics, self.owners),
        )
        users = Users(self.clock, self.log)
        self.worker = KillWorker(settings, self.registry, self.clock, stages, self.recorder, users)

    async def admit(self, process: subprocess.Popen[str], agent_id: str, notify: str) -> Agent:
        """Register a process as a running agent that has beaten."""
        found = identity.read_identity(process.pid, HOST)
        assert found is not None
        reg = Registration(
            agent_id=agent_id,
            name="late",
            owner_uid=os.getuid(),
            host=HOST,
            boot_id=identity.boot_id(),
            identity=found,
            created_at=datetime.now(UTC),
        )
        policy = Policy(grace=timedelta(seconds=1), verify=timedelta(seconds=10))
        agent = Agent(reg, policy, Status.RUNNING, notify)
        agent.heartbeat.said.promise(True)
        await self.registry.write(self.registry.agents.add, reg, Status.RUNNING, datetime.now(UTC), "test", notify)
        self.tracker.admit(agent)
        return agent

    async def order(self, agent: Agent) -> str:
        """Decide to kill it, and wait until the worker is at the slow write."""
        request_id = await self.worker.request(agent, Reason.STALLED, KillOptions(), "daemon", "silent for too long")
        async with asyncio.timeout(DEADLINE):
            await self.registry.reached.wait()
        return request_id

    async def outcome(self, request_id: str) -> dict[str, object]:
        """Let the worker continue, and wait for the end of the order."""
        self.registry.go_on.set()
        found = await self.worker.finished(request_id, DEADLINE)
        assert found is not None
        return found

    async def rows(self, agent: Agent, request_id: str) -> tuple[AgentRow, RequestRow]:
        row = await self.registry.read(self.registry.agents.get, agent.agent_id)
        request = await self.registry.read(self.registry.kills.request, request_id)
        assert row is not None and request is not None
        return row, request

    async def signalled(self, agent: Agent) -> list[int]:
        """Every pid that was signalled, by the history."""
        await self.registry.write(lambda: None)  # earlier events are written before it
        events = await self.registry.read(self.registry.history.events, 0, agent_id=agent.agent_id)
        told = [event.evidence for event in events if event.event == "kill.signal_sent"]
        return [pid for evidence in told for pid in evidence["pids"]]  # type: ignore[attr-defined] # it is a list

    async def close(self) -> None:
        await self.worker.close()
        await self.owners.close()
        self.tracker.close()
        for agent in self.fleet:
            agent.tree.close()


@contextlib.asynccontextmanager
async def bench(slow: str) -> AsyncIterator[Bench]:
    with contextlib.ExitStack() as held:
        directory = held.enter_context(tempfile.TemporaryDirectory(prefix="aw-", dir="/tmp"))
        made = Bench(Path(directory), slow, held)
        try:
            yield made
        finally:
            await made.close()


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes of a test; they and their children are killed and reaped afterwards."""
    found: list[subprocess.Popen[str]] = []
    yield found
    for process in found:
        marker = process.args[-1] if isinstance(process.args, list) else ""
        process.kill()
        process.communicate()
        for pid in pids_with("AGENT_WATCHDOG_ID", str(marker)):
            with suppress(ProcessLookupError):  # it was killed with the one before
                os.kill(pid, signal.SIGKILL)


def obedient(started: list[subprocess.Popen[str]], agent_id: str, notify: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", OBEDIENT, agent_id],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "AGENT_WATCHDOG_ID": agent_id, "NOTIFY_SOCKET": notify},
    )
    started.append(process)
    return process


def tell(process: subprocess.Popen[str], word: str) -> None:
    """Send it a command, and wait until it has obeyed."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
    if word == "exit":
        process.wait(DEADLINE)
    else:
        assert process.stdout.readline() == "done\n"


def new_id() -> str:
    return os.urandom(16).hex()


@pytest.mark.parametrize("slow", ["claim_agent", "save_step"])
def test_v1_an_agent_that_exits_by_itself_has_completed(started: list[subprocess.Popen[str]], slow: str) -> None:
    """It exits 0 at any step between decision and signal: completed, no signal, the hooks of a completed run."""

    async def story() -> None:
        async with bench(slow) as b:
            agent_id = new_id()
            notify = b.tracker.sockets.open(agent_id, os.getuid())
            process = obedient(started, agent_id, notify)
            agent = await b.admit(process, agent_id, notify)
            request_id = await b.order(agent)
            await asyncio.to_thread(tell, process, "exit")

            outcome = await b.outcome(request_id)

            row, request = await b.rows(agent, request_id)
            assert (row.status, row.exit_signal, request.status) == (Status.COMPLETED, None, "done")
            assert outcome["success"] is True
            assert await b.signalled(agent) == []
            assert json.loads(b.hooked.read_text())["outcome"] == "completed"

    asyncio.run(story())


@pytest.mark.parametrize("slow", ["claim_agent"])
def test_v1_its_leftovers_are_killed_and_it_still_counts_as_completed(
    started: list[subprocess.Popen[str]], slow: str
) -> None:
    """Its child in another session is killed; the agent itself exited with 0 and is not reported as killed."""

    async def story() -> None:
        async with bench(slow) as b:
            agent_id = new_id()
            notify = b.tracker.sockets.open(agent_id, os.getuid())
            process = obedient(started, agent_id, notify)
            agent = await b.admit(process, agent_id, notify)
            await asyncio.to_thread(tell, process, "heir")
            heirs = wait_for(lambda: set(pids_with("AGENT_WATCHDOG_ID", agent_id)) - {process.pid}, "it has an heir")
            request_id = await b.order(agent)
            await asyncio.to_thread(tell, process, "exit")

            await b.outcome(request_id)

            row, _ = await b.rows(agent, request_id)
            assert row.status is Status.COMPLETED
            assert set(await b.signalled(agent)) == heirs
            assert not any(alive(pid) for pid in heirs)
            assert json.loads(b.hooked.read_text())["outcome"] == "completed"

    asyncio.run(story())


@pytest.mark.parametrize("slow", ["claim_agent"])
def test_v2_an_agent_that_beats_again_lives(started: list[subprocess.Popen[str]], slow: str) -> None:
    """One datagram before the claim is complete withdraws the order: no signal, no hook, running as before."""

    async def story() -> None:
        async with bench(slow) as b:
            agent_id = new_id()
            notify = b.tracker.sockets.open(agent_id, os.getuid())
            process = obedient(started, agent_id, notify)
            agent = await b.admit(process, agent_id, notify)
            request_id = await b.order(agent)
            await asyncio.to_thread(tell, process, "beat")

            outcome = await b.outcome(request_id)

            row, request = await b.rows(agent, request_id)
            assert (row.status, request.status) == (Status.RUNNING, "withdrawn")
            assert (agent.status, agent.ending.request_id) == (Status.RUNNING, None)
            assert outcome["error"] == "withdrawn"
            assert await b.signalled(agent) == []
            assert not b.hooked.exists()
            await asyncio.to_thread(tell, process, "beat")  # it lives and answers

    asyncio.run(story())


@pytest.mark.parametrize("slow", ["claim_agent"])
def test_v3_a_process_that_reused_its_pid_gets_no_signal(started: list[subprocess.Popen[str]], slow: str) -> None:
    """The pid belongs to a bystander by now: the agent is gone, and the bystander is not touched."""

    async def story() -> None:
        async with bench(slow) as b:
            environ: dict[str, Any] = {**os.environ, "WORLD": str(b.dir)}
            environ.pop("AGENT_WATCHDOG_ID", None)
            command = [sys.executable, str(AGENTS / "agent.py"), "witness", "sleep"]
            bystander = subprocess.Popen(command, env=environ, text=True)
            started.append(bystander)
            catches = 1 << (signal.SIGTERM - 1)
            status = Path(f"/proc/{bystander.pid}/status")
            wait_for(lambda: int(status.read_text().split("SigCgt:")[1].split()[0], 16) & catches, "it is a witness")
            agent_id = new_id()
            agent = await b.admit(bystander, agent_id, b.tracker.sockets.open(agent_id, os.getuid()))
            request_id = await b.order(agent)
            assert agent.identity is not None
            former = replace(agent.identity, start_ticks=agent.identity.start_ticks - 1, pidfd_inode=1)
            asyncio.get_running_loop().remove_reader(agent.tree.pidfd or -1)
            agent.tree.close()  # a holder of a pidfd of the dead agent could not be misled at all
            agent.amend(replace(agent.reg, identity=former, owner_uid=os.getuid()))

            await b.outcome(request_id)

            row, _ = await b.rows(agent, request_id)
            assert row.status is Status.COMPLETED
            assert await b.signalled(agent) == []
            assert bystander.poll() is None
            assert not (b.dir / "signals").exists()

    asyncio.run(story())


def test_v2_a_beat_still_buffered_by_run_withdraws_the_order(started: list[subprocess.Popen[str]]) -> None:
    """`run` passes beats on every half second: one sent before the claim counts, though it arrives after it."""

    async def story() -> None:
        async with bench("") as b:
            agent_id = new_id()
            process = obedient(started, agent_id, str(b.dir / "none"))
            agent = await b.admit(process, agent_id, str(b.dir / "none"))
            agent.reg = replace(agent.reg, source="run")
            request_id = await b.worker.request(agent, Reason.STALLED, KillOptions(), "daemon", "silent for too long")
            async with asyncio.timeout(DEADLINE):
                while (await b.rows(agent, request_id))[0].status is not Status.ENDING:
                    await asyncio.sleep(0.01)
            assert agent.status is Status.RUNNING  # so the control socket still accepts its beats
            agent.beat(Beat(), b.clock.mono(), datetime.now(UTC))

            outcome = await b.outcome(request_id)

            row, request = await b.rows(agent, request_id)
            assert (row.status, request.status, outcome["error"]) == (Status.RUNNING, "withdrawn", "withdrawn")
            assert await b.signalled(agent) == []
            assert process.poll() is None

    asyncio.run(story())


@pytest.mark.parametrize("step", ["", "looked", "term_main"])
def test_an_order_that_a_dead_daemon_left_before_its_first_signal_is_judged_again(
    started: list[subprocess.Popen[str]], step: str
) -> None:
    """Beats sent while no daemon listened arrive only now; after a signal there is no way back."""

    async def story() -> None:
        async with bench("") as b:
            agent_id = new_id()
            notify = b.tracker.sockets.open(agent_id, os.getuid())
            process = obedient(started, agent_id, notify)
            agent = await b.admit(process, agent_id, notify)
            now, registry = datetime.now(UTC), b.registry
            row = registry.kills.open_request(
                "r1", agent_id, Reason.STALLED, by="daemon", now=now, options={"why": "silent"}
            )
            assert row is not None
            assert registry.kills.claim_request("r1", "a daemon that died", now)
            assert registry.agents.transition(
                agent_id, {Status.RUNNING}, Status.ENDING, now=now, who="daemon", why="silent"
            )
            if step:
                assert registry.kills.save_step("r1", step)
            left = registry.kills.request("r1")
            assert left is not None
            agent.status = Status.ENDING

            b.worker.resume(left, agent)
            outcome = await b.outcome("r1")

            after, request = await b.rows(agent, "r1")
            if step == "term_main":
                assert (after.status, request.status) == (Status.KILLED, "done")
                await asyncio.to_thread(process.wait, DEADLINE)
            else:
                assert (after.status, request.status, outcome["error"]) == (Status.RUNNING, "withdrawn", "withdrawn")
                assert await b.signalled(agent) == []
                await asyncio.to_thread(tell, process, "beat")

    asyncio.run(story())
