"""decide(): holds, budget and open requests stand above every verdict."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog.core.decision import Action, Limits, Look, decide, mass_stall
from watchdog.core.model import Policy, Reason, State, Step, Verdict
from watchdog.core.verdict import Judgement

POLICY = Policy()


def look(agent_id: str, verdict: Verdict, *, overdue: bool = False, **rest: object) -> Look:
    return Look(agent_id, Judgement(verdict, "because", overdue), **{"policy": POLICY, **rest})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "action", "reason"),
    [
        (look("a", Verdict.GONE), Action.REQUEST_KILL, Reason.GONE),
        (look("a", Verdict.UNKNOWN), Action.KEEP, None),
        (look("a", Verdict.STARTING), Action.KEEP, None),
        (look("a", Verdict.STARTING, overdue=True), Action.REQUEST_KILL, Reason.FAILED_TO_START),
        (look("a", Verdict.EXPIRED), Action.REQUEST_KILL, Reason.EXPIRED),
        (look("a", Verdict.LINGERING), Action.REQUEST_KILL, Reason.LINGERING),
        (look("a", Verdict.LINGERING, policy=Policy(linger=timedelta())), Action.NOTIFY, None),
        (look("a", Verdict.WAITING, state=State.WAITING, state_age=timedelta(minutes=5)), Action.NOTIFY, None),
        (look("a", Verdict.WAITING, state=State.WAITING, state_age=timedelta(minutes=4)), Action.KEEP, None),
        (look("a", Verdict.WAITING, state=State.IDLE, state_age=timedelta(days=4)), Action.KEEP, None),
        (look("a", Verdict.HEALTHY), Action.KEEP, None),
        (look("a", Verdict.LATE), Action.KEEP, None),
        (look("a", Verdict.STALLED), Action.REQUEST_KILL, Reason.STALLED),
        (look("a", Verdict.STALLED, policy=Policy(ladder=(Step.WARN,))), Action.NOTIFY, None),
        (look("a", Verdict.GONE, policy=Policy(ladder=(Step.WARN,))), Action.REQUEST_KILL, Reason.GONE),
        (look("a", Verdict.STALLED, requested=True), Action.KEEP, None),
        (look("a", Verdict.STALLED, held="an operator's word"), Action.HOLD, Reason.STALLED),
    ],
    ids=lambda value: str(value.judgement.verdict) if isinstance(value, Look) else str(value),
)
def test_each_verdict_asks_for_its_action(one: Look, action: Action, reason: Reason | None) -> None:
    """The right-hand column of the table."""
    (decision,) = decide([one], Limits())

    assert (action, reason) == (decision.action, decision.reason)


def test_the_longest_silent_go_first_when_the_budget_is_short() -> None:
    """Two of three may go: the third is held, and says why."""
    looks = [look(str(n), Verdict.STALLED, silence=timedelta(minutes=n)) for n in range(3)]

    decisions = {d.agent_id: d for d in decide(looks, Limits(budget=2))}

    assert [decisions[str(n)].action for n in range(3)] == [Action.HOLD, Action.REQUEST_KILL, Action.REQUEST_KILL]
    assert "budget" in decisions["0"].text


def test_the_dead_cost_no_budget_and_no_mass_hold() -> None:
    """Cleaning up after the dead goes on while kills of the living are held back."""
    looks = [look("dead", Verdict.GONE), look("silent", Verdict.STALLED)]

    decisions = {d.agent_id: d.action for d in decide(looks, Limits(budget=0, mass="mass stall"))}

    assert decisions == {"dead": Action.REQUEST_KILL, "silent": Action.HOLD}


@pytest.mark.parametrize(("silent", "healthy", "expected"), [(2, 0, False), (3, 0, True), (3, 3, True), (3, 4, False)])
def test_many_silent_at_once_is_a_mass_stall(silent: int, healthy: int, expected: bool) -> None:
    """At least three, and at least half of those that promised beats."""
    looks = [look(f"s{n}", Verdict.LATE) for n in range(silent)] + [
        look(f"h{n}", Verdict.HEALTHY) for n in range(healthy)
    ]

    assert expected is (mass_stall(looks, 3, 0.5) is not None)


looks_lists = st.lists(
    st.builds(
        look,
        st.text("abcdef", min_size=1, max_size=4),
        st.sampled_from(Verdict),
        overdue=st.booleans(),
        requested=st.booleans(),
        held=st.none() | st.just("why"),
        silence=st.timedeltas(min_value=timedelta(), max_value=timedelta(days=1)),
    ),
    max_size=20,
    unique_by=lambda one: one.agent_id,
)


@given(looks_lists, st.integers(0, 5), st.none() | st.just("a hold"), st.none() | st.just("mass stall"))
def test_no_kill_of_the_living_beyond_holds_and_budget(
    looks: list[Look], budget: int, hold: str | None, mass: str | None
) -> None:
    """Safety: nothing is ended under a hold, twice, or beyond the budget; each agent gets exactly one decision."""
    decisions = decide(looks, Limits(hold=hold, mass=mass, budget=budget))

    assert sorted(one.agent_id for one in looks) == sorted(d.agent_id for d in decisions)
    by_id = {one.agent_id: one for one in looks}
    kills = [d for d in decisions if d.action is Action.REQUEST_KILL]
    assert sum(d.reason is not Reason.GONE for d in kills) <= budget
    for decision in kills:
        one = by_id[decision.agent_id]
        assert hold is None
        assert one.held is None
        assert not one.requested
        assert not (mass and decision.reason is Reason.STALLED)
        assert one.judgement.verdict not in (Verdict.HEALTHY, Verdict.UNKNOWN, Verdict.WAITING, Verdict.LATE)
