"""decide(): from one sweep's judgements to what is done about them. Pure; the caller applies the plan.

Three rules stand above every verdict: while a hold is on a kill becomes a Hold; the daemon's own kills keep to a
budget; an agent with an open request gets no second one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum

from watchdog.core.ladder import next_rung
from watchdog.core.model import KillOptions, Policy, Reason, State, Step, Verdict
from watchdog.core.verdict import Judgement, span

DOUBT_LIMIT = timedelta(minutes=15)  # as shipped: `hold.max_seconds`


class Action(StrEnum):
    """What a sweep does about one agent."""

    KEEP = "keep"
    NOTIFY = "notify"
    HOLD = "hold"
    CLIMB = "climb"  # a step of the ladder that ends nobody: warn, nudge
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

    `doomed_for`: so long its silence has asked for its end. `held`: the reason of a hold on this agent alone, if any.
    """

    agent_id: str
    judgement: Judgement
    policy: Policy
    promised: bool = True
    silence: timedelta = timedelta()
    state: State | None = None
    state_age: timedelta = timedelta()
    doomed_for: timedelta = timedelta()
    requested: bool = False
    held: str | None = None
    rung: Step | None = None  # the step of its ladder that was taken last, and how long ago
    rung_age: timedelta = timedelta()


@dataclass(frozen=True, slots=True)
class Limits:
    """What binds all agents in this sweep.

    `hold` is the reason of a hold on everybody, and `hold_by` its kind; `doubt` that of one which holds back kills for
    silence only. `budget` is how many of the daemon's own kills of living agents may still start.
    """

    hold: str | None = None
    hold_by: Veto = Veto.OPERATOR
    doubt: tuple[Veto, str] | None = None
    doubt_limit: timedelta = DOUBT_LIMIT  # no agent's end is held back for longer by it
    budget: int = 10


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
    """Turn judgements into decisions, the longest silent first where the budget is short."""
    ordered = sorted(looks, key=lambda look: (-look.silence, look.agent_id))
    budget = limits.budget
    decisions = []
    for look in ordered:
        decision = _wish(look)
        if decision.action is Action.REQUEST_KILL or decision.rung is Step.NUDGE:
            ends = decision.action is Action.REQUEST_KILL and decision.reason is not Reason.GONE
            stop = _veto(look, decision, limits, budget if ends else 1)
            if stop is not None:
                veto, why = stop
                decision = replace(decision, action=Action.HOLD, text=f"held: {why}", veto=veto)
            else:
                budget -= ends
        decisions.append(decision)
    return decisions


def asked_first(decision: Decision, policy: Policy) -> KillOptions:
    """How the kill that was decided is to be done: at step `stop` the agent is asked, and at its ladder's end left."""
    if decision.rung is not Step.STOP:
        return KillOptions()
    return KillOptions(ask=policy.stop_pause, only_ask=Step.KILL not in policy.ladder)


def called_off(looks: Iterable[Look], limits: Limits) -> list[tuple[str, str]]:
    """Whose open order of the daemon's is called off if it has signalled nobody yet, and why: agent ids and reasons.

    Doubt does it to one for silence. So does what makes it well again, or ends nobody: other limits, or another ladder.
    """
    found = []
    for look in looks:
        verdict, line = look.judgement.verdict, look.judgement.line
        if not look.requested:
            continue
        if verdict in (Verdict.HEALTHY, Verdict.WAITING):
            found.append((look.agent_id, f"it is {verdict}: {line}"))
        elif not {Step.STOP, Step.KILL}.intersection(look.policy.ladder):
            found.append((look.agent_id, "its ladder ends nobody any more"))
        elif limits.doubt is not None and look.doomed_for < limits.doubt_limit and verdict not in _TIMED:
            found.append((look.agent_id, limits.doubt[1]))
    return found


_TIMED = frozenset({Verdict.EXPIRED, Verdict.LINGERING})  # no silence, and so no fault of ours


def mass_stall(
    looks: Iterable[Look], count: int, fraction: float, others: int = 0, limit: timedelta = DOUBT_LIMIT
) -> str | None:
    """The reason to suspect ourselves: `count` agents and `fraction` of those that promised beats are silent.

    Whose first beat does not come in time is silent. Whose end was asked for by then for the `limit` fell silent at
    another time: a ladder that ends nobody, or a hold, keeps such for days. `others` promised beats and are not silent.
    """
    bound = [look for look in looks if look.promised and look.judgement.verdict is not Verdict.GONE]
    silent = sum(
        (look.judgement.overdue or look.judgement.verdict in (Verdict.LATE, Verdict.STALLED))
        and look.doomed_for < limit
        for look in bound
    )
    among = len(bound) + others
    if silent >= count and silent >= fraction * among:
        return f"mass stall: {silent} of {among} agents fell silent together; the fault may be ours"
    return None


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
    step = next_rung(policy, look.rung, look.rung_age)
    if step is None:
        taken = f"{look.rung} {span(look.rung_age)} ago" if look.rung else "none"
        end = "" if Step.KILL in policy.ladder else ", and its ladder ends before a kill"
        return Decision(look.agent_id, Action.KEEP, f"{line}; last step: {taken}{end}", reason)
    action = Action.REQUEST_KILL if step in (Step.STOP, Step.KILL) else Action.CLIMB
    if policy.ladder != (Step.KILL,):
        line = f"{line}; step {step} of {' '.join(policy.ladder)}"
    return Decision(look.agent_id, action, line, reason, rung=step)


def _veto(look: Look, wish: Decision, limits: Limits, budget: int) -> tuple[Veto, str] | None:
    """What holds back a kill that the verdict asks for, and why; or None."""
    if look.held is not None:
        return Veto.OPERATOR, look.held
    if limits.hold is not None:
        return limits.hold_by, limits.hold
    if wish.reason is Reason.GONE:
        return None
    silent = wish.reason in (Reason.STALLED, Reason.FAILED_TO_START)
    if limits.doubt is not None and silent and look.doomed_for < limits.doubt_limit:
        veto, why = limits.doubt
        return veto, f"{why} (for {span(limits.doubt_limit)} at most)"
    if budget <= 0:
        return Veto.BUDGET, "the budget of kills per minute is used up"
    return None
