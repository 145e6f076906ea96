"""The input of `judge` for an agent, and the effect of its answer."""

from datetime import UTC, datetime, timedelta

import pytest

from watchdog.agents import judging
from watchdog.agents.agent import Agent
from watchdog.core.agent import Beat, Policy, Registration, State, Status, Verdict
from watchdog.core.process import Presence
from watchdog.core.verdict import judge

WALL = datetime(2030, 1, 1, tzinfo=UTC)
S = timedelta(seconds=1)


def agent(agent_id: str = "a" * 32, name: str = "alpha", uid: int = 1000, **rest: object) -> Agent:
    return Agent(Registration(agent_id, name, uid, "host", "boot", **rest), Policy(), Status.RUNNING)  # type: ignore[arg-type]


def test_a_running_tool_is_shown_without_secrets() -> None:
    """A client may put the whole command into its name; the verdict's line goes into log and history."""
    one = agent()
    one.beat(Beat(tool="Bash: curl -u token=hunter2", tool_limit=60 * S), 0, WALL)
    line = judge(judging.observe(one, Presence.ALIVE, 1, 10), one.policy).line
    assert line.startswith("running tool Bash: curl -u token=***: ")


def test_sweeps_closer_than_an_interval_count_once() -> None:
    """An exit elsewhere brings the next sweep forward; it must not confirm any agent's silence early."""
    one = agent()
    one.beat(Beat(), 0, WALL)
    one.judged.first_look = False
    one.heartbeat.silence.lasted = 500 * S
    verdicts = []
    for now in (100.0, 100.1, 104.0, 110.0):
        judgement = judge(judging.observe(one, Presence.ALIVE, now, 10), one.policy)
        judging.remember(one, judgement, now, 10)
        verdicts.append(judgement.verdict)

    assert verdicts == [Verdict.LATE, Verdict.LATE, Verdict.LATE, Verdict.STALLED]


def test_beats_whose_progress_stands_still_confirm_and_withdraw_nothing() -> None:
    """Case B5: a thread beats while the work loop is deadlocked; its beats must not save it. One step forward does."""
    one, verdicts, renewed = agent(), [], []
    one.judged.first_look = False
    one.beat(Beat(progress=41), 0, WALL)
    for now in range(10, 1840, 10):
        one.watch(now - 10, now, 20)
        one.beat(Beat(progress=41), now, WALL)
        judgement = judge(judging.observe(one, Presence.ALIVE, now, 10), one.policy)
        judging.remember(one, judgement, now, 10)
        verdicts.append(judgement.verdict)
        renewed.append(one.heartbeat.rhythm.renewed)

    assert verdicts[-5:] == [Verdict.HEALTHY, Verdict.LATE, *3 * [Verdict.STALLED]]
    assert renewed[-1] == renewed[-4] == one.judged.renewed_judged
    one.beat(Beat(progress=42), 1840, WALL)
    assert one.heartbeat.rhythm.renewed > one.judged.renewed_judged
    assert judge(judging.observe(one, Presence.ALIVE, 1840, 10), one.policy).verdict is Verdict.HEALTHY


def healthy() -> Agent:
    """An agent that promised beats, has beaten, and was judged."""
    one = agent(stall_after=120 * S)
    one.beat(Beat(), 0, WALL)
    one.watch(0, 10, 20)
    judging.remember(one, judge(judging.observe(one, Presence.ALIVE, 10, 10), one.policy), 10, 10)
    return one


def test_a_healthy_agent_is_judged_again_only_when_a_limit_is_reached() -> None:
    """Silent for 10 s of 120 s at a sweep: nothing can change for 110 s, and a beat does not shorten that."""
    one, settled = healthy(), []
    for now in range(10, 120, 10):
        settled.append(judging.settled(one))
        if now == 110:
            one.beat(Beat(), now, WALL)
            settled.append(judging.settled(one))
        one.watch(now, now + 10, 20)

    assert settled == [True] * 12
    assert not judging.settled(one), "then it is looked at again, whatever it said meanwhile"
    assert judging.why(one) == "silent for 10s of 2m"


@pytest.mark.parametrize(
    "word",
    [
        Beat(state=State.WAITING),
        Beat(silent_for=5 * S),
        Beat(tool="make", tool_limit=5 * S),
        Beat(after=20 * S),
        Beat(progress=0.5),
    ],
    ids=str,
)
def test_a_beat_with_more_than_a_sign_of_life_is_judged_by_the_next_sweep(word: Beat) -> None:
    """For example with a shorter limit."""
    one = healthy()
    one.beat(word, 11, WALL)

    assert not judging.settled(one)
    assert one.heartbeat.unsaved(10 * S)


def test_other_limits_and_an_unreadable_file_require_a_judgement() -> None:
    """Neither is a report of the agent."""
    one, other = healthy(), healthy()
    one.adopt(Policy(after=S))
    other.heartbeat.silence.unread_now()
    assert not judging.settled(one)
    assert not judging.settled(other)


def test_an_agent_that_has_yet_to_start_gets_one_fresh_limit_too() -> None:
    """Its first heartbeat may have come while no daemon ran; once, however often that happens."""
    one = Agent(agent().reg, Policy(after=timedelta(seconds=100)), Status.RUNNING)
    one.heartbeat.said.promise(True)
    one.watch(0.0, 290.0, 300.0)
    for _ in range(3):
        one.heartbeat.silence.grant_fresh_limit()
    one.watch(290.0, 399.0, 300.0)
    assert not judge(judging.observe(one, Presence.ALIVE, 399.0, 10.0), one.policy).overdue
    one.watch(399.0, 401.0, 300.0)
    one.heartbeat.silence.grant_fresh_limit()
    assert judge(judging.observe(one, Presence.ALIVE, 401.0, 10.0), one.policy).overdue
