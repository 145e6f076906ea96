"""A beat withdraws an order for silence, whenever it comes between the look and the first signal, over restarts too."""

import asyncio
import os
import signal
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.kill.shop import shop
from watchdog.core.agent import Beat, State, Status
from watchdog.core.kill import KillOptions, Reason
from watchdog.core.process import TreeMember
from watchdog.kill import evidence as testimony


def test_a_beat_while_the_order_is_being_committed_withdraws_it(tmp_path: Path) -> None:
    """It came after the look that decided; that it came before the order was in the registry changes nothing."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            made.registry.before = ("open_request", lambda: made.beat(agent))
            await made.worker.finished(await made.order(agent), 20)

            assert await made.told(agent) == (Status.RUNNING, ["withdrawn"])
            assert (agent.status, agent.ending.request_id, process.poll()) == (Status.RUNNING, None, None)

    asyncio.run(story())


def test_a_beat_between_the_look_and_the_order_withdraws_it(tmp_path: Path) -> None:
    """Writing a sweep and other orders takes time, in which an agent may beat."""

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
    """Whoever ordered it and however far it has come; the agent is then what it was."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            agent.status, agent.heartbeat.rhythm.beats = Status.STARTING, 0
            made.registry.before = (while_writing, lambda: made.hold(None if on_all else agent.agent_id))
            reason = Reason.FAILED_TO_START if by == "daemon" else Reason.OPERATOR
            order = await made.worker.request(agent, reason, KillOptions(), by)
            outcome = await made.worker.finished(order, 20)

            assert outcome is not None and "held before the first signal: debugging" in str(outcome["message"])
            assert await made.worker.finished(order, 0) == outcome, "a later caller gets it from the registry"
            assert (await made.told(agent))[1] == ["withdrawn"]
            assert (agent.status, agent.ending.request_id, process.poll()) == (Status.STARTING, None, None)

    asyncio.run(story())


@pytest.mark.parametrize(("word", "event"), [(True, "agent.recovered"), (False, "agent.spared")])
def test_only_a_beat_of_its_own_is_an_agents_recovery(tmp_path: Path, word: bool, event: str) -> None:
    """Sibling of P15: an order that a hold calls off after its claim says nothing of how the agent is."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, _):
            calls_off = (lambda: made.beat(agent)) if word else (lambda: made.hold(agent.agent_id))
            made.registry.before = ("claim_agent", calls_off)
            await made.worker.finished(await made.order(agent), 20)

            told = await made.history(agent)
            assert [one for one in told if one in ("agent.recovered", "agent.spared")] == [event], told

    asyncio.run(story())


@pytest.mark.parametrize("while_writing", ["open_request", "claim_agent", "save_step"])
@pytest.mark.parametrize("reason", [Reason.FAILED_TO_START, Reason.LINGERING])
def test_its_word_before_the_first_signal_calls_off_what_the_want_of_one_asked_for(
    tmp_path: Path, while_writing: str, reason: Reason
) -> None:
    """Its first beat arrives after all, or one that was `done` reports work again. Another `done` does not count."""
    failed = reason is Reason.FAILED_TO_START

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            agent.heartbeat.rhythm.beats, agent.heartbeat.said.state = (0, None) if failed else (1, State.DONE)
            made.registry.before = (while_writing, lambda: made.beat(agent))
            await made.worker.finished(await made.worker.request(agent, reason, KillOptions(), "daemon"), 20)
            assert await made.told(agent) == (Status.RUNNING, ["withdrawn"])
            assert (agent.status, agent.ending.request_id, process.poll()) == (Status.RUNNING, None, None)

            agent.heartbeat.rhythm.beats, agent.heartbeat.said.state = (0, None) if failed else (1, State.DONE)
            done = Beat(state=State.DONE)
            if not failed:
                made.registry.before = (while_writing, lambda: agent.beat(done, 0.0, datetime.now(UTC)))
            await made.worker.finished(await made.worker.request(agent, reason, KillOptions(), "daemon"), 20)
            assert (await made.told(agent))[1] == ["withdrawn", "done"]
            assert process.wait(5) == -signal.SIGTERM

    asyncio.run(story())


def test_a_hold_on_all_binds_the_daemon_and_no_operator(tmp_path: Path) -> None:
    """As everywhere; and a hold that comes with the first signal, or later, takes nothing back."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            made.hold(None)
            made.registry.before = ("save_step", lambda: made.hold(agent.agent_id))
            await made.worker.finished(await made.worker.request(agent, Reason.OPERATOR, KillOptions(), "uid 0"), 20)

            assert await made.told(agent) == (Status.KILLED, ["done"])
            assert process.wait(60) == -signal.SIGTERM

    asyncio.run(story())


@pytest.mark.parametrize("reason", [Reason.STALLED, Reason.FAILED_TO_START, Reason.LINGERING])
def test_a_claim_that_a_dead_daemon_left_is_judged_anew(tmp_path: Path, reason: Reason) -> None:
    """It died between the claim and the first look: the row says ending. Beats may still be on their way."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            registry, now = made.registry, datetime.now(UTC)
            options = {
                "force": False,
                "grace_seconds": None,
                "cleanup": True,
                "beats": agent.heartbeat.rhythm.beats,
                "why": "silent",
            }
            assert await made.registry.write(
                registry.kills.open_request, "r1", agent.agent_id, reason, by="daemon", now=now, options=options
            )
            assert await made.registry.write(registry.kills.claim_request, "r1", "daemon 1", now)
            running, ending = {Status.RUNNING}, Status.ENDING
            await made.registry.write(
                registry.agents.transition, agent.agent_id, running, ending, now=now, who="daemon 1", why="silent"
            )
            agent.status = ending  # as it was read at the start
            left = await made.registry.read(registry.kills.request, "r1")
            assert left is not None

            if reason is Reason.STALLED:
                made.beat(agent)
            else:
                agent.heartbeat.rhythm.beats, agent.heartbeat.said.state = 0, State.DONE
            made.worker.resume(left, agent)
            await made.worker.finished("r1", 20)

            assert await made.told(agent) == (Status.RUNNING, ["withdrawn"])
            assert (agent.status, agent.ending.request_id, process.poll()) == (Status.RUNNING, None, None)

    asyncio.run(story())


@pytest.mark.parametrize("closed", [True, False], ids=["row closed", "observe"])
def test_a_process_that_a_killed_daemon_had_stopped_continues_when_its_order_does_not(
    tmp_path: Path, closed: bool
) -> None:
    """It died between STOP and KILL. Since then the row was closed by others, or the daemon only observes."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            registry, now, write = made.registry, datetime.now(UTC), made.registry.write
            options = {"force": False, "grace_seconds": None, "cleanup": True, "beats": 1, "why": "silent"}
            await write(
                registry.kills.open_request, "r", agent.agent_id, Reason.STALLED, by="d", now=now, options=options
            )
            assert await write(registry.kills.claim_request, "r", "daemon 1", now)
            assert agent.identity is not None
            member = TreeMember(agent.identity, os.getpid(), os.getuid(), "sleep", "S", "main")
            assert await write(registry.kills.save_step, "r", "stop", members=[asdict(member)])
            row = await made.registry.read(registry.kills.request, "r")
            assert row is not None
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)

            if closed:
                live = {Status.RUNNING}
                await write(
                    registry.agents.transition, agent.agent_id, live, Status.COMPLETED, now=now, who="x", why="x"
                )
                made.worker.resume(row, agent)
                await made.worker.finished("r", 20)
            else:
                made.worker.resume_stopped(row, agent)

            assert os.waitpid(process.pid, os.WCONTINUED)[0] == process.pid

    asyncio.run(story())


def test_an_agent_whose_row_was_closed_by_others_is_no_longer_watched(tmp_path: Path) -> None:
    """One order finds that; no signal is sent, and no sweep orders another kill."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            registry, now = made.registry, datetime.now(UTC)
            running, closed = {Status.RUNNING}, Status.COMPLETED
            await made.registry.write(
                registry.agents.transition, agent.agent_id, running, closed, now=now, who="x", why="x"
            )

            outcome = await made.worker.finished(await made.order(agent), 20)

            assert outcome is not None
            assert outcome["error"] == "withdrawn"
            assert len(made.fleet) == 0
            assert process.poll() is None

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
                made.registry.before = ("save_step", lambda: made.beat(agent))
            await made.worker.finished(await made.order(agent), 20)

            assert await made.told(agent) == (Status.RUNNING, ["withdrawn"])
            assert process.poll() is None

    asyncio.run(story())
