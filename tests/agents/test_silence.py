"""How long an agent has been silent, and how much of that counts against it."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from watchdog.agents.agent import Agent
from watchdog.core.agent import Beat, Policy, Registration, Status

WALL = datetime(2030, 1, 1, tzinfo=UTC)
S = timedelta(seconds=1)


def agent(agent_id: str = "a" * 32, name: str = "alpha", uid: int = 1000, **rest: object) -> Agent:
    return Agent(Registration(agent_id, name, uid, "host", "boot", **rest), Policy(), Status.RUNNING)  # type: ignore[arg-type]


def test_a_beat_between_two_sweeps_leaves_only_the_time_since_it() -> None:
    """Beat at 7 in a sweep interval from 0 to 10: three seconds of silence."""
    one = agent()
    one.watch(0, 0, 20)
    one.beat(Beat(), 7, WALL)
    one.watch(0, 10, 20)

    assert one.heartbeat.silence.lasted == 3 * S
    assert one.heartbeat.ages.age == 10 * S


def test_unwatched_time_is_not_silence() -> None:
    """A sweep that comes an hour late counts for two intervals at most."""
    one = agent()
    one.beat(Beat(), 0, WALL)
    one.watch(0, 3600, 20)

    assert one.heartbeat.silence.lasted == 20 * S


def test_its_own_rhythm_raises_a_limit_that_is_too_short() -> None:
    """Case C12: one beat a minute is never judged by a limit below two minutes."""
    slow = agent(interval=60 * S)
    slow.policy = Policy(after=5 * S)

    assert slow.heartbeat.silence.after == 120 * S
    assert agent(stall_after=5 * S).heartbeat.silence.after == 5 * S


def silent(one: Agent, *, unread: int = 0, read: int = 0) -> None:
    """So many seconds in which its file cannot be read, then so many without a beat."""
    if unread:
        one.heartbeat.silence.unread_now()
        one.watch(0, unread, unread)
        one.heartbeat.silence.read_again()
    one.watch(0, read, read)


def test_an_agent_that_may_not_have_been_heard_gets_one_fresh_limit_per_silence() -> None:
    """A gap after 100 s of silence: 120 s more; each further gap adds none, so that a stalled agent is found."""
    one = agent()
    one.beat(Beat(), 0, WALL)
    one.heartbeat.silence.lasted, one.heartbeat.silence.doubts.late_looks = 100 * S, 1
    one.heartbeat.silence.grant_fresh_limit()
    assert (one.heartbeat.silence.counted, one.heartbeat.silence.doubts.late_looks) == (0 * S, 0)
    for _ in range(20):
        one.heartbeat.silence.lasted += 100 * S
        one.heartbeat.silence.grant_fresh_limit()
    assert one.heartbeat.silence.forgiven == one.heartbeat.silence.after
    one.heartbeat.silence.doubts.late_looks = 1
    one.heartbeat.silence.grant_fresh_limit()
    assert one.heartbeat.silence.doubts.late_looks == 1, "nothing more is forgiven, so what was confirmed stays so"
    one.beat(Beat(), 0, WALL)
    assert one.heartbeat.silence.counted == one.heartbeat.silence.lasted == 0 * S


def test_a_file_that_is_locked_now_and_then_keeps_no_stalled_agent_alive() -> None:
    """The first time the full `after` is waited once more; later only locked time does not count."""
    one = agent()
    one.beat(Beat(), 0, WALL)
    one.watch(0, 0, 1)
    silent(one, read=100)
    silent(one, unread=10)
    assert one.heartbeat.silence.counted == 0 * S
    for _ in range(12):
        silent(one, read=10, unread=0)
        silent(one, unread=10)
    assert one.heartbeat.silence.counted == one.heartbeat.silence.after


def test_unreadable_time_stays_forgiven_after_a_late_sweep() -> None:
    """The disk was full for ten minutes; half a minute later the daemon was starved: that is no reason for a kill."""
    one = agent()
    one.beat(Beat(), 0, WALL)
    one.watch(0, 0, 1)
    silent(one, unread=600, read=30)
    one.heartbeat.silence.grant_fresh_limit()
    assert one.heartbeat.silence.counted == 30 * S


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=60))
def test_silence_never_exceeds_the_watched_time(steps: list[tuple[float, bool]]) -> None:
    """For all clocks and beats: 0 ≤ silence ≤ time watched since the last beat, two intervals a sweep."""
    one, now, bound = agent(), 0.0, 0.0
    for step, beats in steps:
        if beats:
            one.beat(Beat(), now, WALL)
            bound = 0.0
        one.watch(now, now + step, 20)
        bound += min(step, 20)
        now += step

        assert timedelta() <= one.heartbeat.silence.lasted
        assert one.heartbeat.silence.lasted.total_seconds() <= bound + 0.001
