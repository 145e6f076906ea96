"""An agent that is asked to exit: when it is waited for, and what withdraws the order."""

import asyncio
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kill.shop import ASK, asking, shop
from watchdog.core.agent import Beat, State, Status
from watchdog.core.kill import KillOptions, Reason, Step


@pytest.mark.parametrize("what", ["a beat", "a hold", "doubt"])
def test_a_beat_a_hold_and_doubt_withdraw_an_order_that_still_asks(tmp_path: Path, what: str) -> None:
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
                    made.worker.cancel_automatic(agent, "mass stall")
            outcome = await made.worker.finished(order, 20)
            assert outcome is not None and outcome["error"] == "withdrawn"
            assert await made.told(agent) == (Status.RUNNING, ["withdrawn"])
            assert (agent.ending.asked, agent.ladder.rung, process.poll()) == (None, Step.STOP, None)

    asyncio.run(story())


@pytest.mark.parametrize("options", [ASK, replace(ASK, only_ask=True)])
def test_a_person_who_says_kill_is_not_put_off_by_a_ladder(tmp_path: Path, options: KillOptions) -> None:
    """The daemon's order that asks becomes the person's: no beat, doubt or end of the ladder withdraws it."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            order = await asking(made, agent, options)
            assert await made.worker.request(agent, Reason.OPERATOR, KillOptions(), "uid 0") == order
            made.beat(agent)
            made.worker.cancel_automatic(agent, "mass stall")
            await made.worker.finished(order, 20)
            assert await made.told(agent) == (Status.KILLED, ["done"])
            assert process.wait(60) == -signal.SIGTERM

    asyncio.run(story())


@pytest.mark.parametrize("state", [State.IDLE, State.WAITING, State.DONE])
def test_an_agent_that_hears_and_reports_rest_is_not_waited_for(tmp_path: Path, state: State) -> None:
    """Its tool call is over: the order continues, after the moment in which a program that ran one prompt exits."""

    async def story() -> None:
        async with shop(tmp_path) as (made, agent, process):
            agent.heartbeat.reads_answers = True
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
            agent.heartbeat.reads_answers = True
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
            agent.heartbeat.reads_answers = True
            await asking(made, agent, ASK, "uid 0")
            row = await made.registry.read(made.registry.agents.get, agent.agent_id)
            assert row is not None and row.hears

    asyncio.run(story())
