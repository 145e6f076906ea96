"""An order, from its request to its end: retried, resumed after a restart, its outcome given to all that wait."""

import asyncio
import contextlib
import signal
import sqlite3
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from tests.cgroups import needs_v1, scratch
from tests.kill.shop import ASK, SETTINGS, asking, left_by_a_daemon, shop
from watchdog.agents.agent import Agent
from watchdog.concurrency.lanes import Lane, Turns, enter
from watchdog.core.agent import Policy, Status
from watchdog.core.kill import KillOptions, Reason
from watchdog.errors import RegistryUnavailable
from watchdog.kill import worker
from watchdog.kill.order import KillOrder, OpenOrder
from watchdog.kill.worker import OrderRun

OBSERVE = replace(SETTINGS, mode="observe")


@pytest.mark.parametrize("by", ["daemon", "uid 0"])
@pytest.mark.parametrize("where", ["asks", "waits for a slot", "is claimed"])
def test_a_daemon_that_only_observes_from_now_on_kills_no_agent_and_closes_no_row(
    tmp_path: Path, by: str, where: str
) -> None:
    """An order that has sent no signal is withdrawn, however far it has come, and its agent is what it was."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            if where == "asks":
                agent.heartbeat.reads_answers = by != "daemon"  # else a person's order does not wait
                order = await asking(made, agent, ASK, by)
                made.worker.apply(OBSERVE)
            else:
                reason = Reason.STALLED if by == "daemon" else Reason.OPERATOR
                made.worker.slots = Turns(1, 1)
                slot = made.worker.slots.turn(7)
                await slot.__aenter__()
                enter(Lane(7))  # root's order would not wait
                if where == "is claimed":
                    made.registry.before = ("claim_agent", lambda: made.worker.apply(OBSERVE))
                order = await made.worker.request(
                    agent, reason, KillOptions(), by, beats=agent.heartbeat.rhythm.renewed
                )
                await asyncio.sleep(0.1)
                if where == "waits for a slot":
                    made.worker.apply(OBSERVE)
                await slot.__aexit__(None, None, None)
            outcome = await made.worker.finished(order, 20)
            assert outcome is not None and "only observes" in str(outcome["message"])
            assert await made.told(agent) == (Status.RUNNING, ["withdrawn"])
            assert (agent.status, agent.ending.request_id, process.poll()) == (Status.RUNNING, None, None)

    asyncio.run(story())


def test_what_could_not_be_ended_waits_while_the_daemon_only_observes(tmp_path: Path) -> None:
    """It is not tried again, neither after a time nor when its process ends; afterwards the order continues at once."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            made.fleet.spare = frozenset({"sleep"})
            await made.worker.finished(await made.order(agent), 20)
            async with asyncio.timeout(20):
                while (await made.told(agent))[0] is not Status.UNKILLABLE:
                    await asyncio.sleep(0.01)
            claims = made.registry.claims

            made.fleet.spare = frozenset()
            made.worker.apply(OBSERVE)
            await asyncio.sleep(0.3)
            assert (process.poll(), made.registry.claims) == (None, claims)
            assert await made.told(agent) == (Status.UNKILLABLE, ["claimed"])
            process.kill()
            await asyncio.sleep(0.3)
            assert await made.told(agent) == (Status.UNKILLABLE, ["claimed"])

            made.worker.apply(SETTINGS)
            async with asyncio.timeout(20):
                while await made.told(agent) != (Status.FAILED, ["done"]):  # by a KILL that was not ours
                    await asyncio.sleep(0.01)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("reason", "ends"), [(Reason.STOP, Status.STOPPED), (Reason.OPERATOR, Status.KILLED), (Reason.GONE, None)]
)
def test_the_daemons_order_becomes_the_persons_who_wants_the_same(
    tmp_path: Path, reason: Reason, ends: Status | None
) -> None:
    """It is stored, so that a later daemon kills the agent as that person wanted, and does not judge it again."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, _):
            order = await asking(made, agent, ASK)
            options = KillOptions(ask=timedelta(seconds=60) if reason is Reason.STOP else None)
            assert await made.worker.request(agent, reason, options, "uid 0", "enough") == order
            (row,) = await made.registry.read(made.registry.kills.requests_of, agent.agent_id)
            mine = (Reason.STALLED, "daemon", "silent") if ends is None else (reason, "uid 0", "enough")
            assert (row.reason, row.by, row.options["why"]) == mine
            if ends is not None:
                made.beat(agent)
                await made.worker.request(agent, Reason.OPERATOR, KillOptions(), "uid 0", "now")
                await made.worker.finished(order, 20)
                assert await made.told(agent) == (ends, ["done"])

    asyncio.run(story())


def test_a_request_without_cleanup_gets_none_though_an_order_was_open(tmp_path: Path) -> None:
    """The daemon had ordered the same kill just before; the person's is stored for a later daemon, with its grace."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, _):
            order = await asking(made, agent, ASK)
            wish = KillOptions(cleanup=False, grace=timedelta(seconds=7))
            assert await made.worker.request(agent, Reason.OPERATOR, wish, "uid 0") == order
            outcome = await made.worker.finished(order, 20)
            assert outcome is not None and "cleanup" not in outcome
            (row,) = await made.registry.read(made.registry.kills.requests_of, agent.agent_id)
            assert (row.options["cleanup"], row.options["grace_seconds"]) == (False, 7)
            assert outcome["grace_period_seconds"] == 7

    asyncio.run(story())


def test_a_retry_of_what_cannot_be_ended_writes_no_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Twenty attempts and a restart in between: no more rows, no alarm. Once it is dead, its history ends as any."""
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
            (row,) = await made.registry.read(made.registry.kills.requests_of, agent.agent_id)
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
            (row,) = await made.registry.read(made.registry.kills.requests_of, agent.agent_id)
            evidence: Any = row.evidence
            assert [each["pid"] for each in evidence["processes"]] == [process.pid]  # as at the first attempt

    with scratch("freezer") as group:
        asyncio.run(story(group))


def test_a_second_request_need_not_wait_for_the_next_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The person may have removed what was in the way."""
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
            save = made.registry.kills.save_step

            def save_step(request_id: str, step: str, **keys: Any) -> bool:
                steps.append((step, keys.get("members") is not None))
                if len(steps) == 1:
                    raise RegistryUnavailable("for a moment")
                assert process.poll() is None
                return save(request_id, step, **keys)

            made.registry.kills.save_step = save_step  # type: ignore[method-assign]
            order = await made.worker.request(agent, Reason.OPERATOR, KillOptions(force=True), "uid 0")
            assert await made.worker.finished(order, 20) is not None

    asyncio.run(story())
    assert steps == [("stop", True), ("stop", True)], "the first intent includes what the look has found"


def test_an_end_that_the_registry_did_not_take_at_first_is_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If no hook is to be run, the proof is committed with the closed row, and logged after that."""
    monkeypatch.setattr(worker, "BACK_OFF", (0.05,))
    saved: list[bool] = []
    caplog.set_level("INFO")

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            close = made.registry.kills.close_agent

            def close_agent(*args: Any, **keys: Any) -> bool:
                if len(saved) < 3:
                    saved.append(process.poll() is not None)
                    raise RegistryUnavailable("for a moment")
                return close(*args, **keys)

            made.registry.kills.close_agent = close_agent  # type: ignore[method-assign]
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
            forget, failures = made.tracker.forget, [OSError("a descriptor went away")]

            def forget_at_the_second_time(agent: Agent) -> None:
                if failures:
                    raise failures.pop()
                forget(agent)

            made.tracker.forget = forget_at_the_second_time  # type: ignore[method-assign]
            process.kill()
            await made.worker.request(agent, Reason.GONE, KillOptions(), "daemon")
            async with asyncio.timeout(60):
                while made.worker.busy:
                    await asyncio.sleep(0.01)
            assert made.fleet.get(agent.agent_id) is None

    asyncio.run(story())


def test_a_request_for_an_agent_that_has_just_ended_gets_its_outcome(tmp_path: Path) -> None:
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


def test_an_agent_whose_row_was_damaged_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An unknown status is no reason to send signals, nor to order a kill at each sweep."""

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
    assert "status: 'weird' must be one of" in str(told[0].msg)


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
                    made.registry.before = ("claim_agent", away)
                raise RegistryUnavailable("away")

            made.registry.before = ("claim_agent", away)
            outcome = await made.worker.finished(await made.order(agent), 20)

            assert outcome is not None
            assert (await made.told(agent), refusals) == ((Status.KILLED, ["done"]), 0)
            assert process.wait(60) == -signal.SIGTERM

    asyncio.run(story())


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
    """The next daemon finds no process: that is not `no process was left`, and KILL is not TERM."""

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
    """The harness in its wrapper died by itself: the agent failed, and the wrapper got TERM from us."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, _):
            request = await made.worker.request(agent, Reason.GONE, KillOptions(), "daemon", "a part has ended")
            outcome = await made.worker.finished(request, 20)

            assert outcome is not None
            words = "another of its processes exited, and its main process was then killed on TERM"
            assert (outcome["message"], outcome["status"]) == (words, "failed")

    asyncio.run(story())


@pytest.mark.parametrize("step", ["looked", "kill"])
def test_an_order_of_another_boot_is_closed_as_lost(tmp_path: Path, step: str) -> None:
    """However far it had come: no process is looked for, and those that have the pids now get no signal."""

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
    """A fact, no act: its line does not wait for the disk. The order is committed before anything is done."""
    caplog.set_level("INFO")

    def gone() -> int:
        return sum("agent.gone" in str(record.msg) for record in caplog.records)

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            process.kill()
            process.wait()
            said: list[int] = []
            write = made.registry.write

            async def away(method: Any, *args: Any, **kwargs: Any) -> Any:
                if method.__name__ == "open_request":
                    said.append(gone())
                    if len(said) < 3:
                        raise RegistryUnavailable("away")
                return await write(method, *args, **kwargs)

            monkeypatch.setattr(made.registry, "write", away)
            for _ in range(2):
                with pytest.raises(RegistryUnavailable):
                    await made.worker.request(agent, Reason.GONE, KillOptions(), "daemon", "it ended")
            order = await made.worker.request(agent, Reason.GONE, KillOptions(), "daemon", "it ended")
            await made.worker.finished(order, 20)
            assert (said, gone()) == ([1, 1, 1], 1)
            assert (await made.told(agent))[1] == ["done"]

    asyncio.run(story())


def test_an_order_remembers_a_bounded_number_of_what_it_logged(tmp_path: Path) -> None:
    """An agent whose tree is another one at each attempt."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, _):
            order = OpenOrder(KillOrder("r", agent, Reason.STALLED, KillOptions(), "daemon", "w", 0))
            run = OrderRun(order, made.stages, made.registry, made.clock, made.recorder, Lane(None))
            assert [run.first_time("a"), run.first_time("a")] == [True, False]
            long = ["x" * 500 + "1", "x" * 500 + "2", "x" * 500 + "2"]
            assert [run.first_time(words) for words in long] == [True, True, False]
            assert sum(run.first_time(f"SIGKILL {list(range(n, n + 1000))}") for n in range(2000)) < 1000
            assert sum(map(len, run._logged)) < 200_000

    asyncio.run(story())
