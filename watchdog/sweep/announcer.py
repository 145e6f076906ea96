"""What a sweep has found out about an agent, told once: a change of verdict, a human who is needed, its time is up.

What was said of the former condition may be said again later.
"""

from watchdog.agents.fleet import Agent
from watchdog.agents.history import EventRecorder
from watchdog.core.agent import State, Verdict
from watchdog.core.verdict import Judgement, span

_EVENTS = {
    Verdict.STALLED: "agent.stalled",
    Verdict.UNKNOWN: "agent.unknown",
    Verdict.EXPIRED: "agent.expired",
    Verdict.LINGERING: "agent.lingering",
    Verdict.WAITING: "agent.waiting",
}


class Announcer:
    """Tells the log and the history."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def judged(self, agent: Agent, judgement: Judgement) -> None:
        """Before the verdict is remembered: one line per change of it, and what is over with the former one.

        Late, seen doing something, and late again is one spell of silence: told once, until a beat ends it.
        """
        said = agent.state is State.WAITING and agent.state_age >= agent.policy.prompt_limit
        if not said and agent.sights.prompt is None:
            self.answered(agent, judgement.line)
        if agent.expires_soon and not agent.expiry_told:
            agent.expiry_told = True
            left = span(agent.ttl_left) if agent.ttl_left else "nothing"
            self._recorder.tell("agent.expires_soon", agent, f"{left} of its time to live is left; then it is killed")
        if agent.asked_too_much and not agent.cap_told:
            agent.cap_told = True
            self._recorder.tell("agent.wait_capped", agent, agent.asked_too_much)
        spoke = agent.beats != agent.beats_judged
        if agent.recovering and (spoke or judgement.verdict is not Verdict.HEALTHY):
            agent.recovering = False
            if judgement.verdict is Verdict.HEALTHY:
                self.once(agent, "agent.recovered", "agent.recovered", judgement.line)
        if judgement.verdict is agent.verdict:
            return
        former = agent.verdict
        if former is not None and not {former, judgement.verdict} <= {Verdict.LATE, Verdict.STALLED}:
            agent.said.clear()
        event = _EVENTS.get(judgement.verdict)
        if judgement.verdict is Verdict.LATE:
            event = "agent.channel_lost" if agent.channel_lost else "agent.late"
        if judgement.verdict is Verdict.HEALTHY and former in (Verdict.LATE, Verdict.STALLED, Verdict.UNKNOWN):
            # Who is only given more time, since we could not hear it, has not recovered before it speaks.
            agent.recovering = not spoke and former is not Verdict.UNKNOWN
            event = None if agent.recovering else "agent.recovered"
        if event is not None:
            self.once(agent, event, event, judgement.line)

    def needs_human(self, agent: Agent, text: str) -> None:
        """It has waited for a human for too long: told once for each such wait, also over a restart of ours."""
        if not agent.needed_human:
            agent.needed_human = True
            self._recorder.tell("agent.needs_human", agent, text)

    def answered(self, agent: Agent, text: str) -> None:
        """It waits for no human any more, which is told when it was told that it did."""
        if agent.needed_human:
            agent.needed_human = False
            self._recorder.tell("agent.human_answered", agent, f"it no longer waits for a person: {text}")

    def untouchable(self, agent: Agent) -> None:
        """Its process is not its owner's, or not only (`ownership`): told once while this daemon runs."""
        if agent.untouchable is not None and not agent.untouchable_told:
            agent.untouchable_told = True
            why = f"{agent.untouchable}: its places, terminal and hooks are left alone meanwhile"
            self._recorder.tell("agent.untouchable", agent, why)

    def once(self, agent: Agent, key: str, event: str, text: str, kind: str = "") -> bool:
        """Tell it unless `key` was told of the present condition (`kind`: see `Agent.first`). Whether it was told."""
        if not agent.first(key, kind):
            return False
        self._recorder.tell(event, agent, text)
        return True
