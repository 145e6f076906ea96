"""Which silent agents belong to one event although they beat at different phases."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog.core.agent import Policy, Verdict
from watchdog.core.decision import Look
from watchdog.core.kill import Step
from watchdog.core.mass_stall import lingering, mass_stalls, one_by_one
from watchdog.core.verdict import Judgement
from watchdog.core.witnesses import Witness, cut_off, heard

AFTER, PAUSE, CONFIRMED = 120.0, 60.0, 131.0


def witness(
    quiet: float, *, pause: float | None = PAUSE, owner: int = 0, after: float = AFTER, age: float = 3600
) -> Witness:
    known = None if pause is None else timedelta(seconds=pause)
    return Witness(owner, timedelta(seconds=quiet), timedelta(seconds=after), timedelta(seconds=age), known)


def look(verdict: Verdict, seen: Witness | None, *, name: str = "a", **rest: Any) -> Look:
    owner = 0 if seen is None else seen.owner
    return Look(name, Judgement(verdict, "because"), Policy(), owner=owner, witness=seen, **rest)


def late_first(*others: Witness, quiet: float = CONFIRMED, **rest: Any) -> dict[int | None, tuple[str, bool]]:
    """One agent that is to be killed, and others that are still healthy."""
    return one_by_one([look(Verdict.STALLED, witness(quiet), **rest)], others, 3, 0.5)


@pytest.mark.parametrize(
    ("others", "waits"),
    [
        ([80, 90, 100, 110, 119], True),  # all were cut off 71 s ago; the first is very late
        ([1, 20, 30, 45, 59], False),  # each has beaten since
        ([1, 20, 30, 80, 90], True),  # three of six were not heard
        ([1, 20, 30, 40, 80, 90], False),  # three of seven
        ([80, 90], True),
        ([80], False),  # two are always too few
        ([], False),
    ],
)
def test_the_first_that_is_late_waits_until_the_others_were_heard_since(others: list[float], waits: bool) -> None:
    """Case Q1, with the default limits and a beat each minute: one late agent alone proves nothing."""
    assert bool(late_first(*(witness(quiet) for quiet in others))) is waits


def test_a_mass_stall_is_reported_and_delays_only_its_own_users_kills() -> None:
    """The key None stands for all users if only one user has agents."""
    ((text, evident),) = late_first(*(witness(90) for _ in range(4))).values()
    assert evident
    assert [one for _, one in late_first(*(witness(90, pause=100) for _ in range(4))).values()] == [False]
    assert text.startswith("mass stall: 5 of 5 agents are late, or were not heard since")
    others = [witness(90, owner=1000) for _ in range(4)]
    assert one_by_one([look(Verdict.STALLED, witness(CONFIRMED, owner=1000))], others, 3, 0.5, users=[0]).keys() == {
        1000
    }


@pytest.mark.parametrize(
    "other",
    [
        witness(400, after=900, pause=300),  # it beats too rarely to wait for
        witness(40, age=40),  # it was registered later
    ],
)
def test_an_agent_that_could_not_have_been_heard_is_no_evidence(other: Witness) -> None:
    """Neither for the late agent nor against it."""
    assert heard(other, witness(CONFIRMED), timedelta(seconds=67)) is None
    assert not late_first(*[other] * 5)


def test_idle_agents_do_not_outvote_those_that_should_beat() -> None:
    """Three of three working agents are silent; ten idle ones are no evidence about what the three need."""
    idle = [look(Verdict.WAITING, None, name=f"i{n}") for n in range(10)]
    assert mass_stalls([*idle, *(look(Verdict.LATE, witness(CONFIRMED), name=f"s{n}") for n in range(3))], 3, 0.5)
    assert one_by_one([*idle, look(Verdict.STALLED, witness(CONFIRMED))], [witness(90), witness(95)], 3, 0.5)


def test_after_a_first_kill_more_is_needed_to_be_sure_of_a_second() -> None:
    """An outage may hit one after another: the second one waits, and the killed one counts as silent with it."""
    late = look(Verdict.STALLED, witness(CONFIRMED))
    others = [witness(50), witness(10), witness(10)]
    assert not one_by_one([late], others, 3, 0.5)
    assert one_by_one([late], others, 3, 0.5, [(0, timedelta(seconds=60))])
    assert not one_by_one([late], others, 3, 0.5, [(0, timedelta(seconds=121))])  # too long ago


@pytest.mark.parametrize(
    "rest",
    [{"requested": True}, {"held": "by uid 0"}, {"doomed_for": timedelta(minutes=15)}],
    ids=["ordered already", "held", "for long"],
)
def test_an_agent_that_is_not_to_be_killed_now_needs_no_witnesses(rest: dict[str, Any]) -> None:
    """It would delay the others for nothing."""
    assert not late_first(*(witness(90) for _ in range(5)), **rest)


def test_a_ladder_that_only_warns_needs_no_witnesses_either() -> None:
    """It kills no agent."""
    told = look(Verdict.STALLED, witness(CONFIRMED))
    told = Look(told.agent_id, told.judgement, Policy(ladder=(Step.WARN,)), witness=told.witness)
    assert not one_by_one([told], [witness(90) for _ in range(5)], 3, 0.5)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0.05, 0.5)), min_size=3, max_size=12),
    st.floats(10, 900),
    st.floats(0.001, 0.2),
)
def test_in_an_outage_no_agent_is_killed_first_whatever_the_phases_of_beats(
    agents: list[tuple[float, float]], after: float, confirm: float
) -> None:
    """Safety: all are cut off at one instant. When the first is confirmed as silent, none has been heard since."""
    quiet_then = [phase * pause * after for phase, pause in agents]  # when it came
    passed = (1 + confirm) * after - max(quiet_then)
    seen = [
        witness(passed + then, pause=pause * after, after=after)
        for then, (_, pause) in zip(quiet_then, agents, strict=True)
    ]
    first = max(seen, key=lambda one: one.quiet)
    assert not any(heard(one, first, cut_off(first)) for one in seen)


@given(st.lists(st.tuples(st.floats(0, 0.99), st.floats(0.01, 0.4)), min_size=2, max_size=12), st.floats(10, 900))
def test_an_agent_that_falls_silent_among_beating_ones_does_not_wait(
    others: list[tuple[float, float]], after: float
) -> None:
    """Liveness: the others beat at least twice within its limit, so all were heard since."""
    late = witness(1.05 * after, pause=0.4 * after, after=after)
    seen = [witness(phase * pause * after, pause=pause * after, after=after) for phase, pause in others]
    assert not one_by_one([look(Verdict.STALLED, late)], seen, 3, 0.5)


def test_the_last_that_come_back_after_an_outage_are_waited_for() -> None:
    """Each for its own interval; an agent that does not come back by then has stalled alone."""
    late = look(Verdict.STALLED, witness(700))
    for seconds, waits in ((0, True), (66, True), (68, False)):
        over: dict[int | None, timedelta] = {None: timedelta(seconds=seconds)}
        assert lingering([late], over) == ({None} if waits else set())
    assert not lingering([late], {1000: timedelta()})
    assert not lingering([look(Verdict.LATE, witness(700))], {None: timedelta()})


def test_those_that_have_only_just_come_back_are_no_witnesses_either() -> None:
    """A short outage: the agent that fell silent first is late when the others are heard again, before its own turn."""
    late = [look(Verdict.STALLED, witness(CONFIRMED))]
    back = [replace(witness(10), returned=timedelta(seconds=ago)) for ago in (10, 30, 60)]
    assert one_by_one(late, back, 3, 0.5)
    long_ago = [replace(witness(10), returned=timedelta(seconds=68)) for _ in range(5)]
    assert not one_by_one(late, long_ago, 3, 0.5)


def newcomer(age: float, *, after: float = AFTER) -> Look:
    """An agent that has promised beats and is still within its start limit."""
    return look(Verdict.STARTING, witness(age, pause=None, after=after, age=age), name=f"new {age}")


@pytest.mark.parametrize(
    ("ages", "waits"),
    [
        ([100, 110, 120], True),  # they existed when the late one can have been cut off, and none has beaten since
        ([30, 40, 50], False),  # they were registered later: no beat of theirs was ever due
        ([100, 50, 50], False),
    ],
)
def test_agents_that_have_not_begun_to_beat_count_as_silent_with_a_late_one(ages: list[float], waits: bool) -> None:
    """All may have lost the provider, so that newcomers cannot begin: without them the first ones are killed one by
    one.

    If newcomers are merely slow, a stalled agent among them is kept until they beat, or are late themselves.
    """
    seen = [look(Verdict.STALLED, witness(CONFIRMED)), *(newcomer(age) for age in ages)]
    assert bool(one_by_one(seen, [], 3, 0.5)) is waits
    spoken = [replace(witness(10), age=timedelta(seconds=age)) for age in ages]
    assert not one_by_one(seen[:1], spoken, 3, 0.5)


def test_a_stall_of_newcomers_is_evident_once_they_took_longer_than_a_beat() -> None:
    """So that when they beat again, the late one is given its own interval too: its phase differs."""
    seen = [look(Verdict.STALLED, witness(CONFIRMED)), *(newcomer(100) for _ in range(3))]
    assert [evident for _, evident in one_by_one(seen, [], 3, 0.5).values()] == [True]
