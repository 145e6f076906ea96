"""decide(): turns one sweep's judgements into actions. Pure; the caller applies the plan.

Three rules override every verdict: while a hold is on, a kill becomes a Hold; the daemon's own kills keep to a
budget; an agent with an open request gets no second one.

Doubt and budget are kept per user: no single user, whatever its agents do, can delay the kill of another's agents.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum

from watchdog.core.agent import Policy, State, Verdict
from watchdog.core.kill import KillOptions, Reason, Step
from watchdog.core.ladder import next_rung
from watchdog.core.verdict import Judgement, span
from watchdog.core.witnesses import Witness

DOUBT_LIMIT = timedelta(minutes=15)  # the default of `hold.max_seconds`
SILENT = frozenset({Reason.STALLED, Reason.FAILED_TO_START})  # reasons of kills that only silence justifies


class Action(StrEnum):
    """What a sweep does about one agent."""

    KEEP = "keep"
    NOTIFY = "notify"
    HOLD = "hold"
    CLIMB = "climb"  # a step of the ladder that does not kill: warn, nudge
    REQUEST_KILL = "request_kill"


class Veto(StrEnum):
    """What delays a kill that a verdict asks for."""

    OPERATOR = "operator"
    REGISTRY = "registry"
    UNSETTLED = "unsettled"  # after a gap, a suspend or a clock step: observation has only just resumed
    PRESSURE = "pressure"
    MASS_STALL = "mass_stall"
    BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class Look:
    """One agent as `decide` needs it.

    `owner`: the user that it counts for. `doomed_for`: how long its silence has called for its kill. `held`: the
    reason of a hold on this agent alone, if any.
    """

    agent_id: str
    judgement: Judgement
    policy: Policy
    owner: int = 0
    promised: bool = True
    witness: Witness | None = None  # what its beats say about others' silence; None: nothing
    silence: timedelta = timedelta()
    state: State | None = None
    state_age: timedelta = timedelta()
    doomed_for: timedelta = timedelta()
    requested: bool = False
    held: str | None = None
    rung: Step | None = None  # the last step taken on its ladder, and how long ago
    rung_age: timedelta = timedelta()

    @property
    def ending(self) -> bool:
        """Whether its silence calls for a step beyond `warn`, and no request or hold on it stands in the way."""
        asks = self.judgement.verdict is Verdict.STALLED or self.judgement.overdue
        return asks and not self.requested and self.held is None and set(self.policy.ladder) != {Step.WARN}


@dataclass(frozen=True, slots=True)
class Budget:
    """How many living agents the daemon may order to be killed within a minute.

    `most` is divided among the `owners`, the number of users that have agents. Users may borrow what another leaves
    unused, but each keeps its own share: in the worst minute `most` kills within shares follow `most` borrowed ones.
    `spent` counts this minute's orders by user.
    """

    most: int = 10
    spent: Mapping[int, int] = field(default_factory=dict)
    owners: int = 1

    @property
    def share(self) -> int:
        """The kills per minute that each user always has."""
        return max(1, self.most // max(1, self.owners))

    def allows(self, owner: int) -> bool:
        """Whether one more of this user's agents may be ordered to be killed."""
        within_shares = sum(min(count, self.share) for count in self.spent.values())
        if self.spent.get(owner, 0) < self.share and within_shares < self.most:
            return True
        return sum(self.spent.values()) < self.most

    def after(self, owner: int) -> "Budget":
        """The budget after one more kill of this user's agents."""
        return replace(self, spent={**self.spent, owner: self.spent.get(owner, 0) + 1})


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that apply to all agents in this sweep.

    `hold` is the reason of a hold on all agents, `hold_by` its kind. `doubt` is a veto that only delays kills for
    silence, `doubts` the same by user, for that user's agents. `budget` bounds the daemon's own kills of living agents.
    """

    hold: str | None = None
    hold_by: Veto = Veto.OPERATOR
    doubt: tuple[Veto, str] | None = None
    doubts: Mapping[int, tuple[Veto, str]] = field(default_factory=dict)
    doubt_limit: timedelta = DOUBT_LIMIT  # the longest that doubt delays a kill
    budget: Budget = Budget()

    def doubt_of(self, owner: int) -> tuple[Veto, str] | None:
        """The doubt that delays kills for silence of this user's agents, or None."""
        return self.doubt or self.doubts.get(owner)


@dataclass(frozen=True, slots=True)
class Decision:
    """The plan for one agent. `reason` and `rung` are set for CLIMB, REQUEST_KILL and a HOLD that replaced one, `veto`
    for such a HOLD. A kill at rung `stop` first asks the agent to exit."""

    agent_id: str
    action: Action
    text: str
    reason: Reason | None = None
    veto: Veto | None = None
    rung: Step | None = None


def decide(looks: Iterable[Look], limits: Limits) -> list[Decision]:
    """Turn judgements into decisions. If the budget is short, users take turns, each user's longest silent
    agent first.
    """
    budget = limits.budget
    turns = Counter(budget.spent)  # by user: the one with the fewest kills in this minute comes first
    queue = []
    for look in sorted(looks, key=lambda look: (-look.silence, look.agent_id)):
        wish = _wish(look)
        queue.append((turns[look.owner], look, wish))
        turns[look.owner] += _ends(wish)
    decisions = []
    for _, look, decision in sorted(queue, key=lambda one: one[0]):
        if decision.action is Action.REQUEST_KILL or decision.rung is Step.NUDGE:
            stop = _veto(look, decision, limits, budget)
            if stop is not None:
                veto, why = stop
                decision = replace(decision, action=Action.HOLD, text=why, veto=veto)
            elif _ends(decision):
                budget = budget.after(look.owner)
        decisions.append(decision)
    return decisions


def _ends(decision: Decision) -> bool:
    """Whether it kills a living agent, and so counts against the budget."""
    return decision.action is Action.REQUEST_KILL and decision.reason is not Reason.GONE


def asked_first(decision: Decision, policy: Policy) -> KillOptions:
    """The options of the kill that was decided: at step `stop` the agent is asked first, and left alive if its ladder
    ends there."""
    if decision.rung is not Step.STOP:
        return KillOptions()
    return KillOptions(ask=policy.stop_pause, only_ask=Step.KILL not in policy.ladder)


def called_off(looks: Iterable[Look], limits: Limits) -> list[tuple[str, str]]:
    """Open kill requests of the daemon to withdraw if no signal was sent yet: agent ids and reasons.

    Doubt withdraws a request for silence. So does a verdict that is healthy again, and a changed ladder without a kill.
    """
    found = []
    for look in looks:
        verdict, line = look.judgement.verdict, look.judgement.line
        if not look.requested:
            continue
        if verdict in (Verdict.HEALTHY, Verdict.WAITING):
            found.append((look.agent_id, f"it is {verdict}: {line}"))
        elif not {Step.STOP, Step.KILL}.intersection(look.policy.ladder):
            found.append((look.agent_id, "its ladder has no kill any more"))
        elif (doubt := limits.doubt_of(look.owner)) and look.doomed_for < limits.doubt_limit and verdict not in _TIMED:
            found.append((look.agent_id, doubt[1]))
    return found


_TIMED = frozenset({Verdict.EXPIRED, Verdict.LINGERING})  # independent of silence, so no fault of ours


def _wish(look: Look) -> Decision:
    """What the verdict alone asks for."""
    verdict, line = look.judgement.verdict, look.judgement.line
    if look.requested:
        return Decision(look.agent_id, Action.KEEP, f"{line}; a kill request is open")
    reason: Reason | None = None
    match verdict:
        case Verdict.GONE:
            reason = Reason.GONE
        case Verdict.STARTING if look.judgement.overdue:
            reason = Reason.FAILED_TO_START
        case Verdict.EXPIRED:
            reason = Reason.EXPIRED
        case Verdict.LINGERING:
            if look.policy.linger <= timedelta():
                return Decision(look.agent_id, Action.NOTIFY, line)
            reason = Reason.LINGERING
        case Verdict.STALLED:
            reason = Reason.STALLED
        case Verdict.WAITING if look.state is State.WAITING:
            if look.state_age >= look.policy.prompt_limit:
                text = f"waits for a human for {span(look.state_age)} (limit {span(look.policy.prompt_limit)})"
                return Decision(look.agent_id, Action.NOTIFY, text)
        case _:
            pass
    if reason is None:
        return Decision(look.agent_id, Action.KEEP, line)
    if reason is Reason.GONE:
        return Decision(look.agent_id, Action.REQUEST_KILL, line, reason)
    return _climb(look, reason)


def _climb(look: Look, reason: Reason) -> Decision:
    """The step of its policy's ladder that is due."""
    policy, line = look.policy, look.judgement.line
    if reason is Reason.FAILED_TO_START:  # its screen is unknown: a trust dialog would take the typed line for a yes
        policy = replace(policy, ladder=tuple(step for step in policy.ladder if step is not Step.NUDGE))
    step = next_rung(policy, look.rung, look.rung_age)
    if step is None:
        taken = f"{look.rung} {span(look.rung_age)} ago" if look.rung else "none"
        end = "" if Step.KILL in policy.ladder else ", and its ladder ends before a kill"
        return Decision(look.agent_id, Action.KEEP, f"{line}; last step: {taken}{end}", reason)
    action = Action.REQUEST_KILL if step in (Step.STOP, Step.KILL) else Action.CLIMB
    if policy.ladder != (Step.KILL,):
        line = f"{line}; step {step} of {' '.join(policy.ladder)}"
    return Decision(look.agent_id, action, line, reason, rung=step)


def _veto(look: Look, wish: Decision, limits: Limits, budget: Budget) -> tuple[Veto, str] | None:
    """The veto against a kill that the verdict asks for, and its reason; or None."""
    if look.held is not None:
        return Veto.OPERATOR, look.held
    if limits.hold is not None:
        return limits.hold_by, limits.hold
    if wish.reason is Reason.GONE:
        return None
    doubt = limits.doubt_of(look.owner)
    if doubt is not None and wish.reason in SILENT and look.doomed_for < limits.doubt_limit:
        veto, why = doubt
        return veto, f"{why} (for {span(limits.doubt_limit)} at most)"
    if _ends(wish) and not budget.allows(look.owner):
        share = f"; uid {look.owner} has had its share of {budget.share}" if budget.owners > 1 else ""
        return Veto.BUDGET, f"the budget of kills per minute is used up{share}"
    return None
