"""Silence is watched, not computed; names and targets find exactly who is meant."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog.core.model import Beat, Policy, Presence, Registration, State, Status, Verdict
from watchdog.core.verdict import judge
from watchdog.errors import AgentNotFound, Ambiguous, Conflict
from watchdog.fleet import Agent, Fleet

WALL = datetime(2030, 1, 1, tzinfo=UTC)
S = timedelta(seconds=1)


def agent(agent_id: str = "a" * 32, name: str = "alpha", uid: int = 1000, **rest: object) -> Agent:
    return Agent(Registration(agent_id, name, uid, "host", "boot", **rest), Policy(), Status.RUNNING)  # type: ignore[arg-type]


def test_a_beat_between_two_sweeps_leaves_only_the_time_since_it() -> None:
    """Beat at 7 of a sweep from 0 to 10: three seconds of silence."""
    one = agent()
    one.watch(0, 0, 20)
    one.beat(Beat(), 7, WALL)
    one.watch(0, 10, 20)

    assert 3 * S == one.silence
    assert 10 * S == one.age


def test_time_that_nobody_watched_is_not_silence() -> None:
    """A sweep that comes an hour late counts for two intervals at most."""
    one = agent()
    one.beat(Beat(), 0, WALL)
    one.watch(0, 3600, 20)

    assert 20 * S == one.silence


def test_the_same_content_again_is_a_new_beat() -> None:
    """Case C15: identical words renew; nothing is compared."""
    one = agent()
    for second in (1, 2, 3):
        one.beat(Beat(state=State.WORKING, note="same"), second, WALL)

    assert 3 == one.beats


def test_silence_begins_when_a_lease_ends() -> None:
    """A lease of 20 s, then 30 s of silence: stalled 30 s, not 50 s."""
    one = agent()
    one.beat(Beat(silent_for=20 * S), 0, WALL)
    for now in range(10, 60, 10):
        one.watch(now - 10, now, 20)

    assert 30 * S == one.silence
    assert timedelta() == one.lease_left


def test_a_plain_beat_does_not_end_a_lease_and_zero_does() -> None:
    """A child's library may beat during a long build; only the agent's word ends its lease."""
    one = agent()
    one.beat(Beat(silent_for=600 * S), 0, WALL)
    one.beat(Beat(), 5, WALL)
    assert 600 * S == one.lease_left

    one.beat(Beat(silent_for=timedelta()), 6, WALL)
    assert timedelta() == one.lease_left


def test_a_lease_of_ten_years_is_capped() -> None:
    """Leases, tools and an own limit are believed up to wait_limit."""
    one = agent()
    one.beat(Beat(silent_for=timedelta(days=3650), tool="make", tool_limit=timedelta(days=99), after=timedelta(days=9)), 0, WALL)

    assert {one.policy.wait_limit} == {one.lease_left, one.tool_left, one.after}


def test_words_that_promise_nothing_make_no_promise() -> None:
    """READY=1 once at start must not make a program stalled two minutes later."""
    one = agent()
    one.beat(Beat(promises=False), 0, WALL)

    assert not one.promised
    one.beat(Beat(), 1, WALL)
    assert one.promised


def test_its_own_rhythm_raises_a_limit_that_is_too_short() -> None:
    """Case C12: one beat a minute is never judged by a limit below two minutes."""
    slow = agent(interval=60 * S)
    slow.policy = Policy(after=5 * S)

    assert 120 * S == slow.after
    assert 5 * S == agent(stall_after=5 * S).after


def test_a_plain_beat_after_waiting_means_working() -> None:
    """Who says waiting and later only beats works again, and can stall again."""
    one = agent()
    one.beat(Beat(state=State.WAITING), 0, WALL)
    one.beat(Beat(), 1, WALL)

    assert State.WORKING == one.state


def test_looks_closer_than_an_interval_count_once() -> None:
    """An exit elsewhere makes a look come sooner; it must not confirm anybody's silence early."""
    one = agent()
    one.beat(Beat(), 0, WALL)
    one.first_look = False
    one.silence = 500 * S
    verdicts = []
    for now in (100.0, 100.1, 104.0, 110.0):
        judgement = judge(one.observe(Presence.ALIVE, now, 10), one.policy)
        one.judged(judgement, now, 10)
        verdicts.append(judgement.verdict)

    assert [Verdict.LATE, Verdict.LATE, Verdict.LATE, Verdict.STALLED] == verdicts


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=60))
def test_silence_never_exceeds_what_was_watched(steps: list[tuple[float, bool]]) -> None:
    """Whatever the clock and the beats do: 0 ≤ silence ≤ time watched since the last beat, two intervals a sweep."""
    one, now, bound = agent(), 0.0, 0.0
    for step, beats in steps:
        if beats:
            one.beat(Beat(), now, WALL)
            bound = 0.0
        one.watch(now, now + step, 20)
        bound += min(step, 20)
        now += step

        assert timedelta() <= one.silence
        assert one.silence.total_seconds() <= bound + 0.001


def fleet(*agents: Agent) -> Fleet:
    made = Fleet()
    for one in agents:
        made.add(one)
    return made


def test_a_name_that_two_carry_is_refused_with_their_ids() -> None:
    """Two people may each have an alpha; root must say which."""
    both = fleet(agent("a" * 32), agent("b" * 32, uid=1001))

    with pytest.raises(Ambiguous, match=f"{'a' * 32} .uid 1000., {'b' * 32} .uid 1001."):
        both.one("alpha")
    assert "a" * 32 == both.one("alpha", frozenset({"a" * 32})).agent_id


def test_targets_find_by_id_prefix_tag_task_and_type() -> None:
    """Every form of a target, and nobody else."""
    one = agent("a" * 32, tags=("x",), task_id="T-1", agent_type="codex")
    both = fleet(one, agent("b" * 32, name="beta"))

    for target in ("a" * 32, "a" * 8, "alpha", "tag:x", "task:T-1", "type:codex"):
        assert [one] == both.many(target), target
    assert 2 == len(both.many("all"))
    with pytest.raises(AgentNotFound):
        both.many("aaaa")


def test_a_living_name_is_taken_for_its_owner_only() -> None:
    """Another owner may use the same name; the same owner may not."""
    one = fleet(agent())

    with pytest.raises(Conflict, match="a" * 32):
        one.refuse_taken("alpha", 1000)
    one.refuse_taken("alpha", 1001)
