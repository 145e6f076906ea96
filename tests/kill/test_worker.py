"""A beat withdraws an order for silence, whenever it comes between the look and the first signal, over restarts too."""

import asyncio
import contextlib
import os
import secrets
import signal
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import pytest

from tests.cgroups import needs_v1, scratch
from watchdog.agents.fleet import Agent, Fleet
from watchdog.agents.history import EventRecorder
from watchdog.agents.holds import Holds
from watchdog.agents.tracker import AgentTracker
from watchdog.cleanup.runner import CleanupRunner
from watchdog.clock import Clock
from watchdog.concurrency.lanes import Lane, Turns, enter
from watchdog.core.agent import Beat, Policy, Registration, State, Status, Verdict
from watchdog.core.kill import KillOptions, Reason, Step
from watchdog.core.process import TreeMember
from watchdog.core.verdict import Judgement
from watchdog.errors import RegistryUnavailable
from watchdog.helpers.pool import HelperPool
from watchdog.kill import evidence as testimony
from watchdog.kill import worker
from watchdog.kill.ask import StopRequest
from watchdog.kill.claim import Claim
from watchdog.kill.close import Close
from watchdog.kill.evidence import EvidenceCollector
from watchdog.kill.order import KillOrder
from watchdog.kill.terminate import Terminator
from watchdog.kill.worker import KillStages, KillWorker, OrderEvents
from watchdog.probes.panes import Panes
from watchdog.probes.process_scan import ProcessScanner
from watchdog.processes import identity
from watchdog.processes.signals import Guard
from watchdog.registry.rows import HoldRow, RequestRow
from watchdog.registry.store import AsyncStore, Store
from watchdog.telemetry.logger import get_logger
from watchdog.telemetry.metrics import Metrics

P = ParamSpec("P")
T = TypeVar("T")
HOST = identity.this_host(None)
AGENT = secrets.token_hex(16)  # what other tests start beside us may carry a fixed one as its mark


class Delayed(AsyncStore):
    """Does something else just before its next write by that method: the delay in which an agent speaks."""

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
        self.store = Delayed(Store(f"sqlite:///{directory}/registry.db").open())
        held.callback(self.store.close)
        executor = ThreadPoolExecutor(1)
        held.callback(executor.shutdown)
        self.hearing = AgentTracker(self.fleet, str(directory), self.clock, lambda: None, log)
        self.owners, self.holds = HelperPool(), Holds()
        chronicle = EventRecorder(self.store, self.clock, log)
        cleanup = CleanupRunner((), self.owners, self.store, self.clock, chronicle, fleet=self.fleet, observe=False)
        metrics = Metrics(dict, dict)
        panes, scanner = Panes(self.store, self.owners), ProcessScanner(self.fleet, executor, HOST)

        stages = KillStages(
            EvidenceCollector(self.clock, self.holds, self.owners, panes),
            StopRequest(self.store, self.clock, self.holds, self.owners, chronicle),
            Claim(self.store, self.clock, self.hearing, self.holds, self.fleet),
            Terminator(scanner, self.clock, self.fleet),
            Close(self.store, self.clock, self.hearing, cleanup, chronicle, metrics, self.owners),
        )
        self.worker = KillWorker(
            store=self.store,
            clock=self.clock,
            stages=stages,
            chronicle=chronicle,
            observe=False,
            parallel=4,
        )

    async def admit(self, process: subprocess.Popen[bytes]) -> Agent:
        """The process as an agent that has beaten once and was then found stalled."""
        found = identity.read_identity(process.pid, HOST)
        now = datetime.now(UTC)
        reg = Registration(
            AGENT, "alpha", os.getuid(), HOST, identity.boot_id(), identity=found, created_at=now, source="run"
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
            agent, Reason.STALLED, KillOptions(), "daemon", "silent", beats=agent.renewed_judged
        )

    def hold(self, agent_id: str | None) -> None:
        """An operator's hold on that agent, or on all."""
        self.holds.put(HoldRow(1, agent_id, "debugging", 0, datetime.now(UTC)))

    async def history(self, agent: Agent) -> list[str]:
        """The events of the agent, in order, without the first."""
        events = await self.store.read(self.store.store.events, 0, agent_id=agent.agent_id)
        return [event.event for event in events][1:]

    async def tried(self, times: int) -> None:
        """Wait for so many attempts more, begun and ended."""
        goal = self.store.claims + times + 1
        async with asyncio.timeout(60):
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


@pytest.mark.parametrize("while_writing", ["open_request", "claim_agent"])
@pytest.mark.parametrize(("by", "on_all"), [("daemon", False), ("daemon", True), ("uid 0", False)])
def test_a_hold_before_the_first_signal_calls_any_order_off(
    tmp_path: Path, while_writing: str, by: str, on_all: bool
) -> None:
    """Whoever gave the order, however far it has come; the agent is then what it was."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            agent.status, agent.beats = Status.STARTING, 0
            made.store.before = (while_writing, lambda: made.hold(None if on_all else agent.agent_id))
            reason = Reason.FAILED_TO_START if by == "daemon" else Reason.OPERATOR
            order = await made.worker.request(agent, reason, KillOptions(), by)
            outcome = await made.worker.finished(order, 20)

            assert outcome is not None and "held before the first signal: debugging" in str(outcome["message"])
            assert await made.worker.finished(order, 0) == outcome, "who asks later reads it from the registry"
            assert (await made.told(agent))[1] == ["withdrawn"]
            assert (agent.status, agent.request_id, process.poll()) == (Status.STARTING, None, None)

    asyncio.run(story())


@pytest.mark.parametrize(("word", "event"), [(True, "agent.recovered"), (False, "agent.spared")])
def test_only_a_word_of_its_own_is_an_agents_recovery(tmp_path: Path, word: bool, event: str) -> None:
    """Sibling of P15: an order that a hold calls off after its claim says nothing of how the agent is."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, _):
            calls_off = (lambda: made.beat(agent)) if word else (lambda: made.hold(agent.agent_id))
            made.store.before = ("claim_agent", calls_off)
            await made.worker.finished(await made.order(agent), 20)

            told = await made.history(agent)
            assert [one for one in told if one in ("agent.recovered", "agent.spared")] == [event], told

    asyncio.run(story())


@pytest.mark.parametrize("while_writing", ["open_request", "claim_agent", "save_step"])
@pytest.mark.parametrize("reason", [Reason.FAILED_TO_START, Reason.LINGERING])
def test_its_word_before_the_first_signal_calls_off_what_the_want_of_one_asked_for(
    tmp_path: Path, while_writing: str, reason: Reason
) -> None:
    """Its first heartbeat comes after all; or who said `done` has got more to do. To say `done` again is no word."""
    failed = reason is Reason.FAILED_TO_START

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            agent.beats, agent.state = (0, None) if failed else (1, State.DONE)
            made.store.before = (while_writing, lambda: made.beat(agent))
            await made.worker.finished(await made.worker.request(agent, reason, KillOptions(), "daemon"), 20)
            assert await made.told(agent) == (Status.RUNNING, ["withdrawn"])
            assert (agent.status, agent.request_id, process.poll()) == (Status.RUNNING, None, None)

            agent.beats, agent.state = (0, None) if failed else (1, State.DONE)
            done = Beat(state=State.DONE)
            if not failed:
                made.store.before = (while_writing, lambda: agent.beat(done, 0.0, datetime.now(UTC)))
            await made.worker.finished(await made.worker.request(agent, reason, KillOptions(), "daemon"), 20)
            assert (await made.told(agent))[1] == ["withdrawn", "done"]
            assert process.wait(5) == -signal.SIGTERM

    asyncio.run(story())


@pytest.mark.parametrize("by", ["daemon", "uid 0"])
@pytest.mark.parametrize("where", ["asks", "waits for a slot", "is claimed"])
def test_who_only_observes_from_now_on_ends_nobody_and_closes_no_row(tmp_path: Path, by: str, where: str) -> None:
    """However far an order has come that has signalled nobody: it is called off, and its agent is what it was."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            if where == "asks":
                agent.hears = by != "daemon"  # else a person's order does not wait
                order = await asking(made, agent, ASK, by)
                made.worker.adopt(observe=True)
            else:
                reason = Reason.STALLED if by == "daemon" else Reason.OPERATOR
                made.worker.slots = Turns(1, 1)
                slot = made.worker.slots.turn(7)
                await slot.__aenter__()
                enter(Lane(7))  # root's order would not wait
                if where == "is claimed":
                    made.store.before = ("claim_agent", lambda: made.worker.adopt(observe=True))
                order = await made.worker.request(agent, reason, KillOptions(), by, beats=agent.renewed)
                await asyncio.sleep(0.1)
                if where == "waits for a slot":
                    made.worker.adopt(observe=True)
                await slot.__aexit__(None, None, None)
            outcome = await made.worker.finished(order, 20)
            assert outcome is not None and "only observes" in str(outcome["message"])
            assert await made.told(agent) == (Status.RUNNING, ["withdrawn"])
            assert (agent.status, agent.request_id, process.poll()) == (Status.RUNNING, None, None)

    asyncio.run(story())


def test_what_could_not_be_ended_waits_while_the_daemon_only_observes(tmp_path: Path) -> None:
    """It is tried neither by time nor when it goes; its row is not closed; then the order goes on at once."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            made.fleet.spare = frozenset({"sleep"})
            await made.worker.finished(await made.order(agent), 20)
            async with asyncio.timeout(20):
                while (await made.told(agent))[0] is not Status.UNKILLABLE:
                    await asyncio.sleep(0.01)
            claims = made.store.claims

            made.fleet.spare = frozenset()
            made.worker.adopt(observe=True)
            await asyncio.sleep(0.3)
            assert (process.poll(), made.store.claims) == (None, claims)
            assert await made.told(agent) == (Status.UNKILLABLE, ["claimed"])
            process.kill()
            await asyncio.sleep(0.3)
            assert await made.told(agent) == (Status.UNKILLABLE, ["claimed"])

            made.worker.adopt(observe=False)
            async with asyncio.timeout(20):
                while await made.told(agent) != (Status.FAILED, ["done"]):  # by somebody else's KILL
                    await asyncio.sleep(0.01)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("reason", "ends"), [(Reason.STOP, Status.STOPPED), (Reason.OPERATOR, Status.KILLED), (Reason.GONE, None)]
)
def test_the_daemons_order_becomes_the_persons_who_wants_the_same(
    tmp_path: Path, reason: Reason, ends: Status | None
) -> None:
    """Stored, so that a daemon after it ends him as that person wanted, and does not judge him anew."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, _):
            order = await asking(made, agent, ASK)
            options = KillOptions(ask=timedelta(seconds=60) if reason is Reason.STOP else None)
            assert await made.worker.request(agent, reason, options, "uid 0", "enough") == order
            (row,) = await made.store.read(made.store.store.requests_of, agent.agent_id)
            mine = (Reason.STALLED, "daemon", "silent") if ends is None else (reason, "uid 0", "enough")
            assert (row.reason, row.by, row.options["why"]) == mine
            if ends is not None:
                made.beat(agent)
                await made.worker.request(agent, Reason.OPERATOR, KillOptions(), "uid 0", "now")
                await made.worker.finished(order, 20)
                assert await made.told(agent) == (ends, ["done"])

    asyncio.run(story())


def test_who_wants_no_cleanup_gets_none_though_an_order_was_open(tmp_path: Path) -> None:
    """The daemon had ordered the same end a moment before; it is stored, for a daemon after it. So is his grace."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, _):
            order = await asking(made, agent, ASK)
            wish = KillOptions(cleanup=False, grace=timedelta(seconds=7))
            assert await made.worker.request(agent, Reason.OPERATOR, wish, "uid 0") == order
            outcome = await made.worker.finished(order, 20)
            assert outcome is not None and "cleanup" not in outcome
            (row,) = await made.store.read(made.store.store.requests_of, agent.agent_id)
            assert (row.options["cleanup"], row.options["grace_seconds"]) == (False, 7)
            assert outcome["grace_period_seconds"] == 7

    asyncio.run(story())


ASK = KillOptions(ask=timedelta(seconds=60))


async def asking(made: Shop, agent: Agent, options: KillOptions, by: str = "daemon") -> str:
    """An order that asks first, and has come that far."""
    reason = Reason.STALLED if by == "daemon" else Reason.STOP
    order = await made.worker.request(agent, reason, options, by, "silent", beats=agent.renewed_judged)
    async with asyncio.timeout(60):
        while agent.asked is None or "stop.asked" not in await made.history(agent):
            await asyncio.sleep(0.01)
    return order


@pytest.mark.parametrize("what", ["a beat", "a hold", "doubt"])
def test_what_speaks_for_an_agent_calls_off_an_order_that_still_asks(tmp_path: Path, what: str) -> None:
    """At once, not when its time is over; its beats are not answered with `stop` any more."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            order = await asking(made, agent, ASK)
            match what:
                case "a beat":
                    made.beat(agent)
                case "a hold":
                    made.hold(agent.agent_id)
                case _:
                    made.worker.veto(agent, "mass stall")
            outcome = await made.worker.finished(order, 20)
            assert outcome is not None and outcome["error"] == "withdrawn"
            assert await made.told(agent) == (Status.RUNNING, ["withdrawn"])
            assert (agent.asked, agent.rung, process.poll()) == (None, Step.STOP, None)

    asyncio.run(story())


@pytest.mark.parametrize("options", [ASK, replace(ASK, only_ask=True)])
def test_a_person_who_says_kill_is_not_put_off_by_a_ladder(tmp_path: Path, options: KillOptions) -> None:
    """The daemon's order that asks becomes his: no beat, no doubt and no end of the ladder calls it off."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            order = await asking(made, agent, options)
            assert await made.worker.request(agent, Reason.OPERATOR, KillOptions(), "uid 0") == order
            made.beat(agent)
            made.worker.veto(agent, "mass stall")
            await made.worker.finished(order, 20)
            assert await made.told(agent) == (Status.KILLED, ["done"])
            assert process.wait(60) == -signal.SIGTERM

    asyncio.run(story())


@pytest.mark.parametrize("state", [State.IDLE, State.WAITING, State.DONE])
def test_who_hears_and_says_that_he_rests_is_not_waited_for(tmp_path: Path, state: State) -> None:
    """His tool call is over: the order goes on, after the moment in which a program that ran one prompt ends itself."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            agent.hears = True
            order = await asking(made, agent, ASK, "uid 0")
            agent.beat(Beat(state=state), made.clock.mono(), made.clock.now().wall)
            await made.worker.finished(order, 20)
            assert (await made.told(agent))[0] is Status.STOPPED
            assert process.wait(60) == -signal.SIGTERM

    asyncio.run(story())


def test_an_agent_that_ends_its_turn_by_our_answer_may_end_by_itself(tmp_path: Path) -> None:
    """`claude -p` does so within a second, with an exit status of its own; TERM would make another of it."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            agent.hears = True
            order = await asking(made, agent, ASK, "uid 0")
            agent.beat(Beat(state=State.IDLE), made.clock.mono(), made.clock.now().wall)
            await asyncio.sleep(1)
            assert process.poll() is None
            process.kill()
            await made.worker.finished(order, 20)
            assert (await made.told(agent))[0] is Status.STOPPED
            assert "kill.signal_sent" not in await made.history(agent)

    asyncio.run(story())


def test_that_an_agent_hears_is_written_before_it_is_asked(tmp_path: Path) -> None:
    """A daemon that dies before its next sweep leaves that to the one after it, which would send TERM else."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, _):
            agent.hears = True
            await asking(made, agent, ASK, "uid 0")
            row = await made.store.read(made.store.store.agent, agent.agent_id)
            assert row is not None and row.hears

    asyncio.run(story())


def test_a_hold_on_all_binds_the_daemon_and_no_operator(tmp_path: Path) -> None:
    """As everywhere; and a hold that comes with the first signal, or later, takes nothing back."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            made.hold(None)
            made.store.before = ("save_step", lambda: made.hold(agent.agent_id))
            await made.worker.finished(await made.worker.request(agent, Reason.OPERATOR, KillOptions(), "uid 0"), 20)

            assert await made.told(agent) == (Status.KILLED, ["done"])
            assert process.wait(60) == -signal.SIGTERM

    asyncio.run(story())


@pytest.mark.parametrize("reason", [Reason.STALLED, Reason.FAILED_TO_START, Reason.LINGERING])
def test_a_claim_that_a_dead_daemon_left_is_judged_anew(tmp_path: Path, reason: Reason) -> None:
    """It died between the claim and the first look: the row says ending. What he says may only be on its way."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            store, now = made.store.store, datetime.now(UTC)
            options = {"force": False, "grace_seconds": None, "cleanup": True, "beats": agent.beats, "why": "silent"}
            assert await made.store.write(
                store.open_request, "r1", agent.agent_id, reason, by="daemon", now=now, options=options
            )
            assert await made.store.write(store.claim_request, "r1", "daemon 1", now)
            running, ending = {Status.RUNNING}, Status.ENDING
            await made.store.write(
                store.transition, agent.agent_id, running, ending, now=now, who="daemon 1", why="silent"
            )
            agent.status = ending  # as it was read at the start
            left = await made.store.read(store.request, "r1")
            assert left is not None

            if reason is Reason.STALLED:
                made.beat(agent)
            else:
                agent.beats, agent.state = 0, State.DONE
            made.worker.resume(left, agent)
            await made.worker.finished("r1", 20)

            assert await made.told(agent) == (Status.RUNNING, ["withdrawn"])
            assert (agent.status, agent.request_id, process.poll()) == (Status.RUNNING, None, None)

    asyncio.run(story())


def test_a_retry_of_what_cannot_be_ended_writes_no_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Twenty attempts and a daemon anew in between: no row more, no alarm. When it goes, its story ends as any."""
    monkeypatch.setattr(worker, "BACK_OFF", (0.02,))

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            made.fleet.spare = frozenset({"sleep"})
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
            assert sum("kill.unkillable" in str(record.msg) for record in caplog.records) == 1

            made.fleet.spare = frozenset()
            async with asyncio.timeout(60):
                while (await made.told(agent))[1] != ["done"]:
                    await asyncio.sleep(0.02)
            assert process.wait(60) < 0
            after = await made.history(agent)
            assert [event for event in after if event != "kill.signal_sent"] == [
                *stuck,
                "agent.ending",
                "kill.finished",
                "agent.ended",
            ]

    asyncio.run(story())


def test_what_was_known_before_the_first_signal_is_kept_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes, what each source said, the end of its log; a token in its last note or log is in no row."""
    monkeypatch.setattr(testimony, "DEADLINE", 20.0)  # a loaded machine's helper takes its time to start
    (tmp_path / "log").write_text("one\nexport TOKEN=hunter2\nlast words")

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            agent.note, agent.tool = "export API_TOKEN=hunter2", "Bash: curl -u token=hunter2"
            agent.reg = replace(agent.reg, log=str(tmp_path / "log"))
            assert await made.worker.finished(await made.order(agent), 20)

            (row,) = await made.store.read(made.store.store.requests_of, agent.agent_id)
            evidence: Any = row.evidence
            (seen,), said = evidence["processes"], evidence["said"]
            assert (seen["pid"], seen["state"]) == (process.pid, "S")
            assert said["verdict"] == "stalled: silent"
            assert (said["heartbeat"]["beats"], said["heartbeat"]["promised"]) == (1, True)
            assert said["tool"]["name"] == "Bash: curl -u token=***"
            assert said["activity"].startswith("none seen")
            assert said["last_words"]["note"] == "export API_TOKEN=***"
            assert said["last_words"]["output"] == ["one", "export TOKEN=***", "last words"]
            (tmp_path / "log").write_text("")
            words: Any = (await testimony.collect_evidence(agent, None, made.owners, Panes(made.store, made.owners)))[
                "last_words"
            ]
            assert words["output"].startswith("none")
            kept = await made.store.read(made.store.store.agent, agent.agent_id)
            assert kept is not None
            assert (kept.note, kept.tool) == ("export API_TOKEN=***", "Bash: curl -u token=***")

    asyncio.run(story())
    assert b"hunter2" not in b"".join(file.read_bytes() for file in tmp_path.glob("registry.db*"))


@needs_v1("freezer")
def test_what_is_frozen_is_unkillable_and_closes_as_soon_as_it_is_thawed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """v1's freezer swallows KILL. No slot waits with it, and its end is heard: the next attempt is not waited for."""
    monkeypatch.setattr(worker, "BACK_OFF", (1000.0,))

    async def story(group: Path) -> None:
        async with shop(tmp_path) as (made, agent, process):
            agent.policy = Policy(grace=timedelta(seconds=0.1), verify=timedelta(seconds=0.5))
            made.worker.slots = Turns(1, 1)
            (group / "cgroup.procs").write_text(str(process.pid))
            (group / "freezer.state").write_text("FROZEN")

            outcome = await made.worker.finished(await made.order(agent), 20)
            assert outcome is not None
            frozen = f"frozen by cgroup {group}; thaw it as root: echo THAWED > {group}/freezer.state"
            assert outcome["message"] == f"not ended, frozen: sleep[{process.pid}] alive ({frozen})"
            async with asyncio.timeout(60):
                while await made.told(agent) != (Status.UNKILLABLE, ["claimed"]):
                    await asyncio.sleep(0.01)
            async with asyncio.timeout(60), made.worker.slots.turn(agent.reg.owner_uid):
                pass

            (group / "freezer.state").write_text("THAWED")
            async with asyncio.timeout(60):
                while await made.told(agent) != (Status.KILLED, ["done"]):
                    await asyncio.sleep(0.01)
            assert process.wait(60) == -signal.SIGTERM  # which came first
            (row,) = await made.store.read(made.store.store.requests_of, agent.agent_id)
            evidence: Any = row.evidence
            assert [each["pid"] for each in evidence["processes"]] == [process.pid]  # as at the first attempt

    with scratch("freezer") as group:
        asyncio.run(story(group))


def test_who_orders_a_kill_again_need_not_wait_for_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He may have mended what was in the way."""
    monkeypatch.setattr(worker, "BACK_OFF", (1000.0,))

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            made.fleet.spare = frozenset({"sleep"})
            await made.worker.finished(await made.order(agent), 20)
            async with asyncio.timeout(60):
                while (await made.told(agent))[0] is not Status.UNKILLABLE:
                    await asyncio.sleep(0.01)

            made.fleet.spare = frozenset()
            await made.worker.request(agent, Reason.OPERATOR, KillOptions(), "uid 0", "again")
            async with asyncio.timeout(60):
                while await made.told(agent) != (Status.KILLED, ["done"]):
                    await asyncio.sleep(0.01)
            assert process.wait(60) == -signal.SIGTERM

    asyncio.run(story())


def test_an_intent_that_the_registry_did_not_take_is_committed_before_the_act_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the end phase is committed once for the same members; one that failed was not."""
    monkeypatch.setattr(worker, "BACK_OFF", (0.05,))
    steps: list[tuple[str, bool]] = []

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            save = made.store.store.save_step

            def save_step(request_id: str, step: str, **keys: Any) -> bool:
                steps.append((step, keys.get("members") is not None))
                if len(steps) == 1:
                    raise RegistryUnavailable("for a moment")
                assert process.poll() is None
                return save(request_id, step, **keys)

            made.store.store.save_step = save_step  # type: ignore[method-assign]
            order = await made.worker.request(agent, Reason.OPERATOR, KillOptions(force=True), "uid 0")
            assert await made.worker.finished(order, 20) is not None

    asyncio.run(story())
    assert steps == [("stop", True), ("stop", True)], "the first intent takes along whom the look has found"


def test_an_end_that_the_registry_did_not_take_at_first_is_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where no hook is to be run the proof that all are dead is committed with all that follows; then it is told."""
    monkeypatch.setattr(worker, "BACK_OFF", (0.05,))
    saved: list[bool] = []
    caplog.set_level("INFO")

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            close = made.store.store.close_agent

            def close_agent(*args: Any, **keys: Any) -> bool:
                if len(saved) < 3:
                    saved.append(process.poll() is not None)
                    raise RegistryUnavailable("for a moment")
                return close(*args, **keys)

            made.store.store.close_agent = close_agent  # type: ignore[method-assign]
            assert await made.worker.finished(await made.order(agent), 20) is not None

    asyncio.run(story())
    assert saved == [True] * 3
    assert len([record for record in caplog.records if "kill.finished" in str(record.msg)]) == 1


def test_an_order_is_not_tried_for_ever_when_only_what_follows_its_end_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are closed: nothing of it is ours to write any more."""
    monkeypatch.setattr(worker, "BACK_OFF", (0.05,))

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            forget, failures = made.hearing.forget, [OSError("a descriptor went away")]

            def forget_at_the_second_time(agent: Agent) -> None:
                if failures:
                    raise failures.pop()
                forget(agent)

            made.hearing.forget = forget_at_the_second_time  # type: ignore[method-assign]
            process.kill()
            await made.worker.request(agent, Reason.GONE, KillOptions(), "daemon")
            async with asyncio.timeout(60):
                while made.worker.busy:
                    await asyncio.sleep(0.01)
            assert made.fleet.get(agent.agent_id) is None

    asyncio.run(story())


def test_who_orders_the_end_of_one_that_has_just_ended_hears_how(tmp_path: Path) -> None:
    """As with `kill --children`: while a parent is ended its child may end, and be put in order, by itself."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            process.kill()
            ended = await made.worker.request(agent, Reason.GONE, KillOptions(), "daemon")
            assert await made.worker.finished(ended, 20) is not None

            again = await made.worker.request(agent, Reason.OPERATOR, KillOptions(), "uid 0")
            outcome = await made.worker.finished(again, 20)
            assert (again, outcome and outcome["success"]) == (ended, True)

    asyncio.run(story())


@pytest.mark.parametrize("closed", [True, False], ids=["row closed", "observe"])
def test_whom_a_killed_daemon_had_stopped_goes_on_when_his_order_does_not(tmp_path: Path, closed: bool) -> None:
    """It died between STOP and KILL. Since then somebody closed the row, or the daemon is told to observe only."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            store, now, write = made.store.store, datetime.now(UTC), made.store.write
            options = {"force": False, "grace_seconds": None, "cleanup": True, "beats": 1, "why": "silent"}
            await write(store.open_request, "r", agent.agent_id, Reason.STALLED, by="d", now=now, options=options)
            assert await write(store.claim_request, "r", "daemon 1", now)
            assert agent.identity is not None
            member = TreeMember(agent.identity, os.getpid(), os.getuid(), "sleep", "S", "main")
            assert await write(store.save_step, "r", "stop", members=[asdict(member)])
            row = await made.store.read(store.request, "r")
            assert row is not None
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)

            if closed:
                live = {Status.RUNNING}
                await write(store.transition, agent.agent_id, live, Status.COMPLETED, now=now, who="x", why="x")
                made.worker.resume(row, agent)
                await made.worker.finished("r", 20)
            else:
                made.worker.let_go(row, agent)

            assert os.waitpid(process.pid, os.WCONTINUED)[0] == process.pid

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

            async with asyncio.timeout(60):
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
    monkeypatch.setattr(worker, "BACK_OFF", (0.01, 1000.0))

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            refusals = 5

            def away() -> None:
                nonlocal refusals
                refusals -= 1
                if refusals:
                    made.store.before = ("claim_agent", away)
                raise RegistryUnavailable("away")

            made.store.before = ("claim_agent", away)
            outcome = await made.worker.finished(await made.order(agent), 20)

            assert outcome is not None
            assert (await made.told(agent), refusals) == ((Status.KILLED, ["done"]), 0)
            assert process.wait(60) == -signal.SIGTERM

    asyncio.run(story())


@pytest.mark.parametrize("when", ["looked", "term_main"])
def test_a_beat_right_before_the_first_signal_withdraws_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """It is claimed and being looked at, or the intent is being committed: nothing has gone out yet."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):

            async def beat_while_looked_at(*_: object) -> dict[str, object]:
                made.beat(agent)
                return {}

            if when == "looked":
                monkeypatch.setattr(testimony, "collect_evidence", beat_while_looked_at)
            else:
                made.store.before = ("save_step", lambda: made.beat(agent))
            await made.worker.finished(await made.order(agent), 20)

            assert await made.told(agent) == (Status.RUNNING, ["withdrawn"])
            assert process.poll() is None

    asyncio.run(story())


async def left_by_a_daemon(made: Shop, agent: Agent, step: str) -> RequestRow:
    """An order as a daemon left it that died right after that intent."""
    store, now = made.store.store, datetime.now(UTC)
    options = {"force": False, "grace_seconds": None, "cleanup": True, "beats": agent.beats, "why": "silent"}
    await made.store.write(
        store.open_request, "r1", agent.agent_id, Reason.STALLED, by="daemon", now=now, options=options
    )
    assert await made.store.write(store.claim_request, "r1", "daemon 1", now)
    running, ending = {Status.RUNNING}, Status.ENDING
    await made.store.write(store.transition, agent.agent_id, running, ending, now=now, who="daemon 1", why="silent")
    assert agent.identity is not None
    member = TreeMember(identity=agent.identity, parent_pid=1, uid=0, name="sleep", state="S", via="main")
    await made.store.write(store.save_step, "r1", step, members=[asdict(member)])
    agent.status = ending  # as it was read at the start
    left = await made.store.read(store.request, "r1")
    assert left is not None
    return left


@pytest.mark.parametrize(
    ("step", "message", "signal_name"),
    [
        ("term_main", "stalled: 1 process ended on TERM", "SIGTERM"),
        ("kill", "stalled: 1 process ended by KILL, TERM was not enough", "SIGKILL"),
    ],
)
def test_what_a_dead_daemon_s_signals_ended_is_told_as_that(
    tmp_path: Path, step: str, message: str, signal_name: str
) -> None:
    """Its successor finds nobody: that is not `no process was left`, and KILL is not TERM."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            left = await left_by_a_daemon(made, agent, step)
            process.kill()
            process.wait()
            made.worker.resume(left, agent)
            outcome = await made.worker.finished("r1", 20)

            assert outcome is not None
            assert (outcome["message"], outcome["kill_signal"]) == (message, signal_name)
            told = {"pid": process.pid, "name": "sleep", "how": f"after {signal_name}, while no daemon was there"}
            assert told.items() <= cast("list[dict[str, object]]", outcome["processes"])[0].items()
            assert await made.told(agent) == (Status.KILLED, ["done"])

    asyncio.run(story())


def test_a_main_process_that_we_ended_after_a_part_of_it_was_ended_by_us(tmp_path: Path) -> None:
    """The harness in its wrapper died by itself: that failed, and the wrapper got TERM from nobody else."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, _):
            request = await made.worker.request(agent, Reason.GONE, KillOptions(), "daemon", "a part has ended")
            outcome = await made.worker.finished(request, 20)

            assert outcome is not None
            words = "a further process of it ended, and its main process was then ended on TERM"
            assert (outcome["message"], outcome["status"]) == (words, "failed")

    asyncio.run(story())


@pytest.mark.parametrize("step", ["looked", "kill"])
def test_an_order_of_another_boot_is_closed_as_lost(tmp_path: Path, step: str) -> None:
    """However far it had come: nobody is looked for, and who has the numbers now gets no signal."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            made.worker.resume(await left_by_a_daemon(made, agent, step), agent, lost=True)
            await made.worker.finished("r1", 20)

            assert await made.told(agent) == (Status.LOST, ["done"])
            assert process.poll() is None

    asyncio.run(story())


def test_that_an_agent_has_gone_is_logged_at_once_and_once_while_the_registry_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fact, and no act: whoever reads the log waits for no disk. The order is committed before anything is done."""
    caplog.set_level("INFO")

    def gone() -> int:
        return sum("agent.gone" in str(record.msg) for record in caplog.records)

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            process.kill()
            process.wait()
            said: list[int] = []
            write = made.store.write

            async def away(method: Any, *args: Any, **kwargs: Any) -> Any:
                if method.__name__ == "open_request":
                    said.append(gone())
                    if len(said) < 3:
                        raise RegistryUnavailable("away")
                return await write(method, *args, **kwargs)

            monkeypatch.setattr(made.store, "write", away)
            for _ in range(2):
                with pytest.raises(RegistryUnavailable):
                    await made.worker.request(agent, Reason.GONE, KillOptions(), "daemon", "it ended")
            order = await made.worker.request(agent, Reason.GONE, KillOptions(), "daemon", "it ended")
            await made.worker.finished(order, 20)
            assert (said, gone()) == ([1, 1, 1], 1)
            assert (await made.told(agent))[1] == ["done"]

    asyncio.run(story())


def test_an_order_remembers_a_bounded_number_of_what_it_told(tmp_path: Path) -> None:
    """An agent whose tree is another one at each attempt."""
    reg = Registration(AGENT, "alpha", os.getuid(), HOST, identity.boot_id())
    of = KillOrder("r", Agent(reg, Policy(), Status.RUNNING), Reason.STALLED, KillOptions(), "daemon", "w", 0)
    store = AsyncStore(Store(f"sqlite:///{tmp_path}/registry.db").open())
    try:
        order = OrderEvents(of, EventRecorder(store, Clock(), get_logger()))
        assert [order.first("a"), order.first("a")] == [True, False]
        assert [order.first("x" * 500 + "1"), order.first("x" * 500 + "2"), order.first("x" * 500 + "2")] == [
            True,
            True,
            False,
        ]
        assert sum(order.first(f"SIGKILL {list(range(n, n + 1000))}") for n in range(2000)) < 1000
        assert sum(map(len, order._said)) < 200_000
    finally:
        store.close()
