"""The reports of an agent, and what counts against it: pauses, debuggers."""

from datetime import UTC, datetime, timedelta

import pytest

from watchdog.agents.agent import Agent
from watchdog.agents.ages import Elapsed
from watchdog.agents.heartbeat import Heartbeat, witness
from watchdog.agents.silence import Silence, SilenceLimits
from watchdog.core.agent import Beat, Policy, Registration, State, Status

WALL = datetime(2030, 1, 1, tzinfo=UTC)


S = timedelta(seconds=1)


def agent(agent_id: str = "a" * 32, name: str = "alpha", uid: int = 1000, **rest: object) -> Agent:
    return Agent(Registration(agent_id, name, uid, "host", "boot", **rest), Policy(), Status.RUNNING)  # type: ignore[arg-type]


def speaker() -> Heartbeat:
    return Heartbeat(Silence(SilenceLimits(Policy())))


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


def pause_of(one: Heartbeat) -> timedelta:
    assert one.rhythm.pause is not None
    return one.rhythm.pause


def test_its_pause_is_the_longest_of_the_last_ones() -> None:
    """A long one is remembered for a while; an excused one does not count."""
    one = speaker()
    one.beat(Beat(), 0, WALL)
    assert one.rhythm.pause is None
    for at in (30, 60, 150, 160):
        one.beat(Beat(), at, WALL)
    assert seconds(75) < pause_of(one) < seconds(90)
    for at in range(170, 400, 10):
        one.beat(Beat(), at, WALL)
    assert pause_of(one) < seconds(15)
    one.beat(Beat(), 800, WALL)  # it was late: the network was away
    assert pause_of(one) < seconds(15)
    one.beat(Beat(silent_for=seconds(600)), 810, WALL)
    one.beat(Beat(state=State.IDLE, silent_for=seconds(0)), 860, WALL)
    one.beat(Beat(), 5000, WALL)
    assert pause_of(one) < seconds(15)


@pytest.mark.parametrize("what", ["idle", "leases", "lost", "unread", "halted", "unpromised"])
def test_an_agent_without_expected_beats_is_no_witness(what: str) -> None:
    """Its silence says nothing about that of others."""
    one = speaker()
    one.beat(Beat(), 0, WALL)
    assert witness(one, 7) is not None
    match what:
        case "idle":
            one.beat(Beat(state=State.IDLE), 1, WALL)
        case "leases":
            one.beat(Beat(silent_for=seconds(60)), 1, WALL)
        case "lost":
            one.silence.lose_channel()
        case "unread":
            one.silence.unread_now()
        case "halted":
            one.silence.stopped("a debugger holds it")
        case _:
            one.said.promised = False
    assert witness(one, 7) is None


def test_an_agent_held_by_a_debugger_gets_a_fresh_limit_afterwards() -> None:
    """Once it runs the full limit is waited; beyond wait_limit in one silence there is no further one."""
    one = speaker()
    one.beat(Beat(), 0, WALL)
    one.watch(Elapsed.between(0, 100, 1e9))
    one.silence.stopped("a debugger holds it")
    one.watch(Elapsed.between(100, 1000, 1e9))
    assert (one.silence.hindrance.halted, one.silence.counted) == (seconds(900), seconds(1000))
    one.silence.stopped(None)
    assert one.silence.counted == seconds(0)
    one.watch(Elapsed.between(1000, 1050, 1e9))
    assert (one.silence.hindrance.halted, one.silence.counted) == (seconds(900), seconds(50))
    one.silence.stopped("a debugger holds it")
    one.watch(Elapsed.between(1050, 30_000, 1e9))
    one.silence.stopped(None)
    assert one.silence.counted == seconds(29_000)
    one.beat(Beat(), 30_000, WALL)
    assert one.silence.hindrance.halted == seconds(0)


def test_a_tools_limit_is_not_used_up_while_a_human_is_asked_for_it() -> None:
    """Answered after ten minutes it has the full limit; and while it waits it is silent, so that its file is read."""
    one = speaker()
    one.beat(Beat(state=State.WORKING, tool="Bash", tool_limit=seconds(120)), 0, WALL)
    one.watch(Elapsed.between(0, 1, 20))
    one.beat(Beat(state=State.WAITING, asks=" Bash 1", promises=False), 1, WALL)
    for at in range(10, 610, 10):
        one.watch(Elapsed.between(at - 10, at, 20))
    assert (one.ages.tool_left, one.silence.lasted) == (seconds(119), seconds(599))
    one.beat(Beat(state=State.WORKING, promises=False), 600, WALL)
    one.watch(Elapsed.between(600, 610, 20))
    assert (one.ages.tool_left, one.silence.lasted) == (seconds(109), seconds(0))


def test_only_an_explicit_report_means_finished_work() -> None:
    """P14: STOPPING=1 and a session's end refer to the process, which may be stopped in the middle of its work."""
    for beat, finished in (
        (Beat(state=State.DONE), True),
        (Beat(state=State.DONE, promises=False), False),
        (Beat(state=State.DONE, tool="", session_ended="s1"), False),
        (Beat(state=State.WORKING), False),
    ):
        agent = speaker()
        agent.beat(beat, 1.0, WALL)
        assert agent.said.finished is finished, beat
    agent.beat(Beat(state=State.DONE), 2.0, WALL)
    agent.beat(Beat(state=State.DONE, promises=False), 3.0, WALL)
    assert agent.said.finished, "what it says on its way out takes nothing back"
    agent.beat(Beat(), 4.0, WALL)
    assert not agent.said.finished, "it works again"


def test_the_same_content_again_is_a_new_beat() -> None:
    """Case C15: identical beats renew; contents are not compared."""
    one = agent()
    for second in (1, 2, 3):
        one.beat(Beat(state=State.WORKING, note="same"), second, WALL)

    assert one.heartbeat.rhythm.beats == 3


def test_a_lease_of_ten_years_is_capped() -> None:
    """Leases, tools and announced silences count up to wait_limit."""
    one = agent()
    one.beat(
        Beat(silent_for=timedelta(days=3650), tool="make", tool_limit=timedelta(days=99), after=timedelta(days=9)),
        0,
        WALL,
    )

    assert {one.policy.wait_limit} == {
        one.heartbeat.ages.lease_left,
        one.heartbeat.ages.tool_left,
        one.heartbeat.silence.after,
    }


def test_messages_without_a_promise_make_no_promise() -> None:
    """READY=1 once at start must not make a program stalled two minutes later."""
    one = agent()
    one.beat(Beat(promises=False), 0, WALL)

    assert not one.heartbeat.said.promised
    one.beat(Beat(), 1, WALL)
    assert one.heartbeat.said.promised


def test_a_plain_beat_after_waiting_means_working() -> None:
    """An agent that reported waiting and later only beats is at work again, and can stall again."""
    one = agent()
    one.beat(Beat(state=State.WAITING), 0, WALL)
    one.beat(Beat(), 1, WALL)

    assert one.heartbeat.said.state == State.WORKING


def test_no_beat_switches_the_watch_off_for_ever() -> None:
    """Case B6: a wait until ten years ahead is cut to wait_limit, and reported."""
    for word in (Beat(silent_for=10**8 * S), Beat(tool="x", tool_limit=10**8 * S), Beat(after=10**8 * S)):
        one = agent()
        one.beat(word, 0, WALL)
        assert (
            max(one.heartbeat.ages.lease_left, one.heartbeat.ages.tool_left, one.heartbeat.silence.limits.said or 0 * S)
            == one.policy.wait_limit
        )
        assert "6h is the limit" in one.heartbeat.asked_too_much
