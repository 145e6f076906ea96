"""decide(): from one sweep's judgements to what is done about them. Pure; the caller applies the plan.

Three rules stand above every verdict: while a hold is on a kill becomes a Hold; the daemon's own kills keep to a
budget; an agent with an open request gets no second one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from watchdog.core.model import Policy, Reason, State, Step, Verdict
from watchdog.core.verdict import Judgement, span


class Action(StrEnum):
    """What a sweep does about one agent."""

    KEEP = "keep"
    NOTIFY = "notify"
    HOLD = "hold"
    REQUEST_KILL = "request_kill"


class Veto(StrEnum):
    """What holds a kill back that a verdict asks for."""

    OPERATOR = "operator"
    REGISTRY = "registry"
    MASS_STALL = "mass_stall"
    BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class Look:
    """One agent as `decide` needs it. `held` is the reason of a hold on this agent alone, if any."""

    agent_id: str
    judgement: Judgement
    policy: Policy
    promised: bool = True
    silence: timedelta = timedelta()
    state: State | None = None
    state_age: timedelta = timedelta()
    requested: bool = False
    held: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What binds all agents in this sweep.

    `hold` is the reason of a hold on everybody, and `hold_by` its kind; `mass` that of a mass stall, which holds
    back kills for silence only. `budget` is how many of the daemon's own kills of living agents may still start.
    """

    hold: str | None = None
    hold_by: Veto = Veto.OPERATOR
    mass: str | None = None
    budget: int = 10


@dataclass(frozen=True, slots=True)
class Decision:
    """The plan for one agent. `reason` is set for REQUEST_KILL and for the HOLD that it became, `veto` for that."""

    agent_id: str
    action: Action
    text: str
    reason: Reason | None = None
    veto: Veto | None = None


def decide(looks: Iterable[Look], limits: Limits) -> list[Decision]:
    """Turn judgements into decisions, the longest silent first where the budget is short."""
    ordered = sorted(looks, key=lambda look: (-look.silence, look.agent_id))
    budget = limits.budget
    decisions = []
    for look in ordered:
        decision = _wish(look)
        if decision.action is Action.REQUEST_KILL:
            stop = _veto(look, decision, limits, budget)
            if stop is not None:
                veto, why = stop
                decision = Decision(look.agent_id, Action.HOLD, f"held: {why}", decision.reason, veto)
            elif decision.reason is not Reason.GONE:
                budget -= 1
        decisions.append(decision)
    return decisions


def mass_stall(looks: Iterable[Look], count: int, fraction: float) -> str | None:
    """The reason to suspect ourselves: `count` agents and `fraction` of those that promised beats are silent."""
    bound = [look for look in looks if look.promised and look.judgement.verdict is not Verdict.GONE]
    silent = sum(look.judgement.verdict in (Verdict.LATE, Verdict.STALLED) for look in bound)
    if silent >= count and silent >= fraction * len(bound):
        return f"mass stall: {silent} of {len(bound)} agents fell silent together; the fault may be ours"
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
        case Verdict.WAITING if look.state in (State.WAITING, State.BLOCKED):
            if look.state_age >= look.policy.prompt_limit:
                text = f"waits for a human for {span(look.state_age)} (limit {span(look.policy.prompt_limit)})"
                return Decision(look.agent_id, Action.NOTIFY, text)
        case _:
            pass
    if reason is None:
        return Decision(look.agent_id, Action.KEEP, line)
    if reason is not Reason.GONE and Step.KILL not in look.policy.ladder:
        return Decision(look.agent_id, Action.NOTIFY, f"{line}; its ladder ends before a kill")
    return Decision(look.agent_id, Action.REQUEST_KILL, line, reason)


def _veto(look: Look, wish: Decision, limits: Limits, budget: int) -> tuple[Veto, str] | None:
    """What holds back a kill that the verdict asks for, and why; or None."""
    if look.held is not None:
        return Veto.OPERATOR, look.held
    if limits.hold is not None:
        return limits.hold_by, limits.hold
    if wish.reason is Reason.GONE:
        return None
    if limits.mass is not None and wish.reason is Reason.STALLED:
        return Veto.MASS_STALL, limits.mass
    if budget <= 0:
        return Veto.BUDGET, "the budget of kills per minute is used up"
    return None
