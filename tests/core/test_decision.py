"""decide(): holds, budget and open requests override every verdict."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog.core.agent import Policy, State, Verdict
from watchdog.core.decision import Action, Budget, Limits, Look, Veto, asked_first, called_off, decide
from watchdog.core.kill import Reason, Step
from watchdog.core.mass_stall import mass_stalls
from watchdog.core.verdict import Judgement

POLICY = Policy()
NUDGED = Policy(ladder=(Step.NUDGE, Step.KILL))


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
        (look("a", Verdict.WAITING, state=State.BLOCKED, state_age=timedelta(minutes=9)), Action.KEEP, None),
        (look("a", Verdict.WAITING, state=State.IDLE, state_age=timedelta(days=4)), Action.KEEP, None),
        (look("a", Verdict.HEALTHY), Action.KEEP, None),
        (look("a", Verdict.LATE), Action.KEEP, None),
        (look("a", Verdict.STALLED), Action.REQUEST_KILL, Reason.STALLED),
        (look("a", Verdict.STALLED, policy=Policy(ladder=(Step.WARN,))), Action.CLIMB, Reason.STALLED),
        (look("a", Verdict.GONE, policy=Policy(ladder=(Step.WARN,))), Action.REQUEST_KILL, Reason.GONE),
        (look("a", Verdict.STALLED, policy=NUDGED), Action.CLIMB, Reason.STALLED),
        # Nothing is typed into one that has not started: its dialog may take Enter for a yes.
        (look("a", Verdict.STARTING, overdue=True, policy=NUDGED), Action.REQUEST_KILL, Reason.FAILED_TO_START),
        (
            look("a", Verdict.STARTING, overdue=True, policy=Policy(ladder=(Step.NUDGE,))),
            Action.KEEP,
            Reason.FAILED_TO_START,
        ),
        (look("a", Verdict.STALLED, requested=True), Action.KEEP, None),
        (look("a", Verdict.STALLED, held="an operator's word"), Action.HOLD, Reason.STALLED),
    ],
    ids=lambda value: str(value.judgement.verdict) if isinstance(value, Look) else str(value),
)
def test_each_verdict_asks_for_its_action(one: Look, action: Action, reason: Reason | None) -> None:
    """The right-hand column of the table."""
    (decision,) = decide([one], Limits())

    assert (action, reason) == (decision.action, decision.reason)


def test_the_longest_silent_agents_go_first_when_the_budget_is_short() -> None:
    """Two of three may be killed: the third is held, with the reason."""
    looks = [look(str(n), Verdict.STALLED, silence=timedelta(minutes=n)) for n in range(3)]

    decisions = {d.agent_id: d for d in decide(looks, Limits(budget=Budget(2)))}

    assert [decisions[str(n)].action for n in range(3)] == [Action.HOLD, Action.REQUEST_KILL, Action.REQUEST_KILL]
    assert "budget" in decisions["0"].text


def test_the_dead_cost_no_budget_and_no_mass_hold() -> None:
    """Cleaning up after the dead continues while kills of the living are delayed."""
    looks = [look("dead", Verdict.GONE), look("silent", Verdict.STALLED)]

    decisions = {
        d.agent_id: d.action for d in decide(looks, Limits(budget=Budget(0), doubt=(Veto.MASS_STALL, "mass stall")))
    }

    assert decisions == {"dead": Action.REQUEST_KILL, "silent": Action.HOLD}


def test_doubt_delays_no_kill_for_longer_than_its_limit() -> None:
    """Each agent's limit starts when its own kill was due: the first one to fall silent does not use up the others'."""
    looks = [look(f"{m}", Verdict.STALLED, doomed_for=timedelta(minutes=m)) for m in (0, 14, 15, 99)]
    looks += [look("old", Verdict.EXPIRED)]

    decisions = {d.agent_id: d for d in decide(looks, Limits(doubt=(Veto.PRESSURE, "overloaded")))}

    held = {key for key, decision in decisions.items() if decision.action is Action.HOLD}
    assert held == {"0", "14"}
    assert decisions["14"].text == "overloaded (for 15m at most)"
    assert decisions["14"].veto is Veto.PRESSURE


@pytest.mark.parametrize(("silent", "healthy", "expected"), [(2, 0, False), (3, 0, True), (3, 3, True), (3, 4, False)])
def test_many_silent_at_once_is_a_mass_stall(silent: int, healthy: int, expected: bool) -> None:
    """At least three, and at least half of those that promised beats."""
    looks = [look(f"s{n}", Verdict.LATE) for n in range(silent)] + [
        look(f"h{n}", Verdict.HEALTHY) for n in range(healthy)
    ]

    assert expected is bool(mass_stalls(looks, 3, 0.5))


def test_an_agent_that_does_not_start_counts_as_silent_and_an_old_silence_does_not() -> None:
    """Six agents that wait for the same provider are not six faults; old stalls delay no kill."""
    starting = [look(f"s{n}", Verdict.STARTING, overdue=True) for n in range(3)]
    assert mass_stalls(starting, 3, 0.5)
    assert not mass_stalls([look(f"s{n}", Verdict.STARTING) for n in range(3)], 3, 0.5)
    old = [look(f"o{n}", Verdict.STALLED, doomed_for=timedelta(minutes=15)) for n in range(3)]
    assert not mass_stalls([*old, look("new", Verdict.STALLED)], 3, 0.5)
    assert mass_stalls([*old, look("new", Verdict.STALLED)], 3, 0.5, limit=timedelta(hours=1))


def crowd(owner: int, silent: int, healthy: int = 0) -> list[Look]:
    return [look(f"{owner}s{n}", Verdict.STALLED, owner=owner) for n in range(silent)] + [
        look(f"{owner}h{n}", Verdict.HEALTHY, owner=owner) for n in range(healthy)
    ]


@pytest.mark.parametrize(
    ("looks", "suspect"),
    [
        (crowd(1000, 30) + crowd(0, 1), {1000}),
        (crowd(1000, 30) + crowd(0, 1) + crowd(1001, 1), {1000}),  # without 1000, two are silent
        (crowd(1000, 2) + crowd(1001, 2) + crowd(1002, 2), {None}),
        (crowd(1000, 2) + crowd(1001, 2), set()),  # without one user, two are silent: either may have faked it
        (crowd(1000, 3) + crowd(1001, 3), {1000, 1001, None}),
        (crowd(0, 3) + crowd(1000, 1), {0, None}),  # root fakes nothing
        (crowd(0, 3, 4) + crowd(1000, 1), set()),
        (crowd(1000, 2) + crowd(1001, 2) + crowd(1002, 2) + crowd(1003, 0, 256), {None}),  # one vote per user
        ([*crowd(1000, 1), look("x", Verdict.STALLED, owner=1001, promised=False)], set()),
        ([*crowd(1000, 3), look("x", Verdict.STARTING, overdue=True, owner=1001, promised=False)], {1000}),
    ],
)
def test_one_users_silent_agents_do_not_protect_anothers(looks: list[Look], suspect: set[int | None]) -> None:
    """Its own kills are delayed; all users' only when that many are silent without any one user."""
    assert mass_stalls(looks, 3, 0.5).keys() == suspect


def test_what_was_killed_in_the_same_stall_counts_as_silent() -> None:
    """By user, in addition to the settled agents."""
    assert mass_stalls(crowd(7, 1), 3, 0.5, killed=[7, 7])
    assert not mass_stalls(crowd(7, 1), 3, 0.5, {7: 4}, killed=[7, 7])
    assert mass_stalls(crowd(7, 1), 3, 0.5, {8: 40}, killed=[7, 7]).keys() == {7}


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=5), st.data())
def test_no_user_delays_another_users_kills_whatever_its_agents_do(
    fleet: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Safety: if an agent's kill is delayed, at least `count` silent agents are another user's."""
    looks = [one for owner, (silent, healthy) in enumerate(fleet, 1000) for one in crowd(owner, silent, healthy)]
    hostile = data.draw(st.integers(1000, 999 + len(fleet)))
    found = mass_stalls(looks, 3, 0.5)
    silent = sum(one.judgement.verdict is Verdict.STALLED for one in looks if one.owner != hostile)
    for victim in {one.owner for one in looks} - {hostile}:
        assert silent >= 3 or found.keys().isdisjoint({None, victim})


def test_users_take_turns_where_the_budget_is_short() -> None:
    """A user whose thirty agents have been silent longest does not use up what another needs."""
    looks = [look(f"m{n}", Verdict.STALLED, owner=1000, silence=timedelta(hours=1)) for n in range(30)]
    looks += [look("r", Verdict.STALLED, owner=0, silence=timedelta(minutes=1))]

    def killed(budget: Budget) -> list[str]:
        return [d.agent_id for d in decide(looks, Limits(budget=budget)) if d.action is Action.REQUEST_KILL]

    assert killed(Budget(1, owners=2)) == ["m0"]  # one share cannot be divided: the longest silent
    assert killed(Budget(2, owners=2)) == ["m0", "r"]
    assert len(killed(Budget(10, owners=2))) == 10
    assert killed(Budget(10, {1000: 10}, owners=2)) == ["r"]  # borrowed: the other's share is still there
    (held,) = {d.text for d in decide(looks, Limits(budget=Budget(2, {1000: 1}, owners=2))) if d.veto is Veto.BUDGET}
    assert held == "the budget of kills per minute is used up; uid 1000 has had its share of 1"


@given(st.integers(0, 12), st.lists(st.integers(0, 5), max_size=60))
def test_a_budget_is_bound_and_leaves_each_user_its_share(most: int, asked: list[int]) -> None:
    """One user alone has `most`; all together at most twice that, and no user more than `most` by borrowing."""
    budget = Budget(most, owners=6)
    for owner in asked:
        if budget.allows(owner):
            budget = budget.after(owner)
    assert sum(budget.spent.values()) <= 2 * most
    assert max(budget.spent.values(), default=0) <= most
    if most >= 6:
        assert all(budget.allows(owner) for owner in range(6) if not budget.spent.get(owner))


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


@given(looks_lists, st.integers(0, 5), st.none() | st.just("a hold"), st.booleans())
def test_no_kill_of_the_living_beyond_holds_and_budget(
    looks: list[Look], budget: int, hold: str | None, doubted: bool
) -> None:
    """Safety: no agent is killed under a hold, twice, or beyond the budget; each gets exactly one decision."""
    decisions = decide(
        looks, Limits(hold=hold, doubt=(Veto.PRESSURE, "why") if doubted else None, budget=Budget(budget))
    )

    assert sorted(one.agent_id for one in looks) == sorted(d.agent_id for d in decisions)
    by_id = {one.agent_id: one for one in looks}
    kills = [d for d in decisions if d.action is Action.REQUEST_KILL]
    assert sum(d.reason is not Reason.GONE for d in kills) <= budget
    for decision in kills:
        one = by_id[decision.agent_id]
        assert hold is None
        assert one.held is None
        assert not one.requested
        assert not (doubted and decision.reason in (Reason.STALLED, Reason.FAILED_TO_START))
        assert one.judgement.verdict not in (Verdict.HEALTHY, Verdict.UNKNOWN, Verdict.WAITING, Verdict.LATE)


LADDER = Policy(ladder=(Step.WARN, Step.NUDGE, Step.STOP, Step.KILL))
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("rung", "action", "step", "doubted"),
    [
        (None, Action.CLIMB, Step.WARN, Action.CLIMB),  # a warning does no harm
        (Step.WARN, Action.CLIMB, Step.NUDGE, Action.HOLD),
        (Step.NUDGE, Action.REQUEST_KILL, Step.STOP, Action.HOLD),
        (Step.STOP, Action.REQUEST_KILL, Step.KILL, Action.HOLD),
    ],
)
def test_the_steps_of_a_ladder_are_held_back_as_a_kill_is(
    rung: Step | None, action: Action, step: Step, doubted: Action
) -> None:
    """All but `warn`; and only kill requests use up the budget."""
    one = look("a", Verdict.STALLED, policy=LADDER, rung=rung, rung_age=MINUTE)
    (decision,) = decide([one], Limits())
    assert (decision.action, decision.rung, decision.reason) == (action, step, Reason.STALLED)
    assert decide([one], Limits(doubt=(Veto.MASS_STALL, "12 of 20")))[0].action is doubted
    spent = decide([one], Limits(budget=Budget(0)))[0].action
    assert spent is (Action.HOLD if action is Action.REQUEST_KILL else action)
    (early,) = decide([look("a", Verdict.STALLED, policy=LADDER, rung=Step.WARN, rung_age=MINUTE / 2)], Limits())
    assert early.action is Action.KEEP


def test_only_the_step_stop_asks_and_only_the_end_of_a_ladder_leaves() -> None:
    """The options of the request, by the step that was decided."""
    for ladder, rung, ask, only in (
        (LADDER.ladder, Step.NUDGE, MINUTE, False),
        (LADDER.ladder, Step.STOP, None, False),
        ((Step.STOP,), None, MINUTE, True),
    ):
        policy = Policy(ladder=ladder)
        (decision,) = decide([look("a", Verdict.STALLED, policy=policy, rung=rung, rung_age=MINUTE)], Limits())
        options = asked_first(decision, policy)
        assert (options.ask, options.only_ask) == (ask, only), ladder


def test_doubt_withdraws_open_requests_while_its_limit_lasts() -> None:
    """Not the request of an agent whose kill it has delayed for the limit, and none of an agent without a request."""
    looks = [
        look(f"{minutes}{requested}", Verdict.STALLED, requested=requested, doomed_for=timedelta(minutes=minutes))
        for minutes in (1, 20)
        for requested in (True, False)
    ]
    assert called_off(looks, Limits(doubt=(Veto.PRESSURE, "busy"))) == [("1True", "busy")]
    assert called_off(looks, Limits()) == []


def test_new_limits_withdraw_open_requests_of_agents_that_they_make_healthy() -> None:
    """So does a ladder without a kill; doubt does not apply to lingering or expired agents."""
    warns = Policy(ladder=(Step.WARN,))
    looks = [
        look("well", Verdict.HEALTHY, requested=True),
        look("waits", Verdict.WAITING, requested=True),
        look("no order", Verdict.HEALTHY),
        look("late", Verdict.LATE, requested=True),
        look("stalled", Verdict.STALLED, requested=True, policy=warns),
        look("lingers", Verdict.LINGERING, requested=True),
    ]
    assert [name for name, _ in called_off(looks, Limits())] == ["well", "waits", "stalled"]
    doubted = called_off(looks, Limits(doubt=(Veto.PRESSURE, "busy")))
    assert [name for name, _ in doubted] == ["well", "waits", "late", "stalled"]
