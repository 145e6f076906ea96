"""decide(): from one sweep's judgements to what is done about them. Pure; the caller applies the plan.

Three rules stand above every verdict: while a hold is on a kill becomes a Hold; the daemon's own kills keep to a
budget; an agent with an open request gets no second one.

Suspicion and budget are kept per user: no single user, whatever its agents do, holds back the kill of another's.
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

DOUBT_LIMIT = timedelta(minutes=15)  # as shipped: `hold.max_seconds`
SILENT = frozenset({Reason.STALLED, Reason.FAILED_TO_START})  # kills that only silence asks for


class Action(StrEnum):
    """What a sweep does about one agent."""

    KEEP = "keep"
    NOTIFY = "notify"
    HOLD = "hold"
    CLIMB = "climb"  # a step of the ladder that kills no agent: warn, nudge
    REQUEST_KILL = "request_kill"


class Veto(StrEnum):
    """What holds a kill back that a verdict asks for."""

    OPERATOR = "operator"
    REGISTRY = "registry"
    UNSETTLED = "unsettled"  # a gap, a suspend, a set clock: we have only just begun to look again
    PRESSURE = "pressure"
    MASS_STALL = "mass_stall"
    BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class Look:
    """One agent as `decide` needs it.

    `owner`: the user that it counts for. `doomed_for`: so long its silence has asked for its end. `held`: the reason
    of a hold on this agent alone, if any.
    """

    agent_id: str
    judgement: Judgement
    policy: Policy
    owner: int = 0
    promised: bool = True
    witness: Witness | None = None  # what its words tell of others' silence; None: nothing
    silence: timedelta = timedelta()
    state: State | None = None
    state_age: timedelta = timedelta()
    doomed_for: timedelta = timedelta()
    requested: bool = False
    held: str | None = None
    rung: Step | None = None  # the step of its ladder that was taken last, and how long ago
    rung_age: timedelta = timedelta()

    @property
    def ending(self) -> bool:
        """Whether its silence asks for a step of its ladder that it would feel, and nothing holds it back from that."""
        asks = self.judgement.verdict is Verdict.STALLED or self.judgement.overdue
        return asks and not self.requested and self.held is None and set(self.policy.ladder) != {Step.WARN}


@dataclass(frozen=True, slots=True)
class Budget:
    """How many living agents the daemon may order to be killed within a minute.

    `most` are divided among the `owners`, the users that have agents. What one leaves unused others may use; its share
    it has all the same, so in the worst minute `most` kills within shares follow `most` that were borrowed. `spent`
    counts the orders of this minute by user.
    """

    most: int = 10
    spent: Mapping[int, int] = field(default_factory=dict)
    owners: int = 1

    @property
    def share(self) -> int:
        """What each user may always use."""
        return max(1, self.most // max(1, self.owners))

    def allows(self, owner: int) -> bool:
        """Whether one more of this user's agents may be ordered to be killed."""
        within_shares = sum(min(count, self.share) for count in self.spent.values())
        if self.spent.get(owner, 0) < self.share and within_shares < self.most:
            return True
        return sum(self.spent.values()) < self.most

    def after(self, owner: int) -> "Budget":
        """What is left when one more of this user's was ordered."""
        return replace(self, spent={**self.spent, owner: self.spent.get(owner, 0) + 1})


@dataclass(frozen=True, slots=True)
class Limits:
    """What binds the agents in this sweep.

    `hold` is the reason of a hold on all agents, and `hold_by` its kind. `doubt` is that of one which holds back kills
    for silence only, `doubts` the same by user, for that user's agents. `budget` bounds the daemon's own kills of
    living agents.
    """

    hold: str | None = None
    hold_by: Veto = Veto.OPERATOR
    doubt: tuple[Veto, str] | None = None
    doubts: Mapping[int, tuple[Veto, str]] = field(default_factory=dict)
    doubt_limit: timedelta = DOUBT_LIMIT  # no agent's end is held back for longer by it
    budget: Budget = Budget()

    def doubt_of(self, owner: int) -> tuple[Veto, str] | None:
        """What holds back kills for silence of this user's agents, or None."""
        return self.doubt or self.doubts.get(owner)


@dataclass(frozen=True, slots=True)
class Decision:
    """The plan for one agent. `reason` and `rung` are set for CLIMB, REQUEST_KILL and the HOLD that it became, `veto`
    for that. A kill at rung `stop` asks first."""

    agent_id: str
    action: Action
    text: str
    reason: Reason | None = None
    veto: Veto | None = None
    rung: Step | None = None


def decide(looks: Iterable[Look], limits: Limits) -> list[Decision]:
    """Turn judgements into decisions. Where the budget is short users take turns, each its longest silent first."""
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
    """Whether it costs a living agent its life, and so the budget."""
    return decision.action is Action.REQUEST_KILL and decision.reason is not Reason.GONE


def asked_first(decision: Decision, policy: Policy) -> KillOptions:
    """How the kill that was decided is to be done: at step `stop` the agent is asked, and at its ladder's end left."""
    if decision.rung is not Step.STOP:
        return KillOptions()
    return KillOptions(ask=policy.stop_pause, only_ask=Step.KILL not in policy.ladder)


def called_off(looks: Iterable[Look], limits: Limits) -> list[tuple[str, str]]:
    """Whose open order of the daemon's is called off if it has sent no signal yet, and why: agent ids and reasons.

    Doubt does it to one for silence. So does what makes it healthy again, or kills no agent: other limits, or another
    ladder.
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


_TIMED = frozenset({Verdict.EXPIRED, Verdict.LINGERING})  # no silence, and so no fault of ours


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
    """The step of its policy's ladder that the agent has come to."""
    policy, line = look.policy, look.judgement.line
    if reason is Reason.FAILED_TO_START:  # what it shows is not known: a trust dialog would take the line for a yes
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
    """What holds back a kill that the verdict asks for, and why; or None."""
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
