"""Ages that grow by themselves: of a lease, a progress, a state."""

from datetime import UTC, datetime, timedelta

import pytest

from watchdog.agents.agent import Agent
from watchdog.core.agent import Beat, Policy, Registration, State, Status

WALL = datetime(2030, 1, 1, tzinfo=UTC)
S = timedelta(seconds=1)


def agent(agent_id: str = "a" * 32, name: str = "alpha", uid: int = 1000, **rest: object) -> Agent:
    return Agent(Registration(agent_id, name, uid, "host", "boot", **rest), Policy(), Status.RUNNING)  # type: ignore[arg-type]


def test_silence_begins_when_a_lease_ends() -> None:
    """A lease of 20 s, then 30 s of silence: stalled 30 s, not 50 s."""
    one = agent()
    one.beat(Beat(silent_for=20 * S), 0, WALL)
    for now in range(10, 60, 10):
        one.watch(now - 10, now, 20)

    assert one.heartbeat.silence.lasted == 30 * S
    assert timedelta() == one.heartbeat.ages.lease_left


def test_a_plain_beat_does_not_end_a_lease_and_zero_does() -> None:
    """A child's library may beat during a long build; only the agent's own report ends its lease."""
    one = agent()
    one.beat(Beat(silent_for=600 * S), 0, WALL)
    one.beat(Beat(), 5, WALL)
    assert one.heartbeat.ages.lease_left == 600 * S

    one.beat(Beat(silent_for=timedelta()), 6, WALL)
    assert timedelta() == one.heartbeat.ages.lease_left


@pytest.mark.parametrize(
    "word", [Beat(state=State.IDLE), Beat(silent_for=9999 * S), Beat(tool="x", tool_limit=9999 * S)]
)
def test_progress_does_not_age_while_no_work_is_expected(word: Beat) -> None:
    """Idle over night, then a new task: yesterday's progress is no stall."""
    one = agent()
    one.beat(Beat(progress=41), 0, WALL)
    one.beat(word, 1, WALL)
    for now in range(600):
        one.watch(10 * now + 1, 10 * now + 11, 20)
    one.beat(Beat(state=State.WORKING, silent_for=0 * S, tool="", progress=41), 6002, WALL)

    assert one.heartbeat.ages.progress_age is not None
    assert one.heartbeat.ages.progress_age < 30 * S
    assert not one.heartbeat.stuck


def test_a_beat_each_second_stops_no_other_clock() -> None:
    """A beat does not reset the age of a state or of a progress, or the rest of a lease or a tool."""
    prompt, builds, stuck = agent(), agent(), agent()
    prompt.beat(Beat(state=State.WAITING), 0, WALL)
    builds.beat(Beat(silent_for=600 * S, tool="make", tool_limit=500 * S), 0, WALL)
    stuck.beat(Beat(progress=41), 0, WALL)
    for second in range(1, 401):
        for one in (prompt, builds, stuck):
            if second % 10 == 0:
                one.watch(second - 10, second, 20)
            one.beat(Beat(state=one.heartbeat.said.state, progress=one.heartbeat.said.progress), second, WALL)

    assert (prompt.heartbeat.ages.state_age, stuck.heartbeat.ages.progress_age) == (400 * S, 400 * S)
    assert (builds.heartbeat.ages.lease_left, builds.heartbeat.ages.tool_left) == (200 * S, 100 * S)
