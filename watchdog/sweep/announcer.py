"""Reports each finding of a sweep about an agent once: a changed verdict, a needed human, an expiring time to live.

A new condition may be reported again.
"""

from watchdog.agents.agent import Agent
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
    """Reports to the log and the history."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def judged(self, agent: Agent, judgement: Judgement) -> None:
        """Before the verdict is stored: report a changed verdict, and what ends with the former one.

        Late, observed active, and late again are one spell of silence: reported once, until a beat ends it.
        """
        heartbeat = agent.heartbeat
        asks = heartbeat.said.state is State.WAITING and heartbeat.ages.state_age >= agent.policy.prompt_limit
        if not asks and agent.sights.prompt is None:
            self.answered(agent, judgement.line)
        if agent.ttl.ends_soon and not agent.reported.expiry_reported:
            agent.reported.expiry()
            left = span(agent.ttl.left) if agent.ttl.left else "nothing"
            self._recorder.record("agent.expires_soon", agent, f"{left} of its time to live is left; then it is killed")
        if agent.heartbeat.asked_too_much and not agent.reported.cap_reported:
            agent.reported.cap()
            self._recorder.record("agent.wait_capped", agent, agent.heartbeat.asked_too_much)
        spoke = agent.heartbeat.rhythm.beats != agent.judged.beats_judged
        if agent.reported.recovering and (spoke or judgement.verdict is not Verdict.HEALTHY):
            agent.reported.recover(later=False)
            if judgement.verdict is Verdict.HEALTHY:
                self.once(agent, "agent.recovered", "agent.recovered", judgement.line)
        if judgement.verdict is agent.judged.verdict:
            return
        former = agent.judged.verdict
        if former is not None and not {former, judgement.verdict} <= {Verdict.LATE, Verdict.STALLED}:
            agent.reported.begin_condition()
        event = _EVENTS.get(judgement.verdict)
        if judgement.verdict is Verdict.LATE:
            event = "agent.channel_lost" if agent.heartbeat.silence.hindrance.channel_lost else "agent.late"
        if judgement.verdict is Verdict.HEALTHY and former in (Verdict.LATE, Verdict.STALLED, Verdict.UNKNOWN):
            # An agent that only got more time because we could not hear it has not recovered before its next beat.
            agent.reported.recover(later=not spoke and former is not Verdict.UNKNOWN)
            event = None if agent.reported.recovering else "agent.recovered"
        if event is not None:
            self.once(agent, event, event, judgement.line)

    def needs_human(self, agent: Agent, text: str) -> None:
        """It has waited for a human for too long: reported once for each wait, also across restarts of the daemon."""
        if not agent.reported.needed_human:
            agent.reported.human(needed=True)
            self._recorder.record("agent.needs_human", agent, text)

    def answered(self, agent: Agent, text: str) -> None:
        """It no longer waits for a human: reported if the wait was."""
        if agent.reported.needed_human:
            agent.reported.human(needed=False)
            self._recorder.record("agent.human_answered", agent, f"it no longer waits for a person: {text}")

    def untouchable(self, agent: Agent) -> None:
        """Its process belongs not, or not only, to its owner (`ownership`): reported once per run of the daemon."""
        if agent.owner.untouchable is not None and not agent.reported.untouchable_reported:
            agent.reported.untouchable()
            why = f"{agent.owner.untouchable}: its places, terminal and hooks are left alone meanwhile"
            self._recorder.record("agent.untouchable", agent, why)

    def once(self, agent: Agent, key: str, event: str, text: str, kind: str = "") -> bool:
        """Report it unless `key` was reported in the present condition (`kind`: see `first`).

        Returns whether it was.
        """
        if not agent.reported.first(key, kind):
            return False
        self._recorder.record(event, agent, text)
        return True
