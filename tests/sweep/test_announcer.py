"""What is reported about an agent once, and when it is reported again."""

import os
from dataclasses import replace
from typing import cast

from watchdog.agents.agent import Agent
from watchdog.agents.history import EventRecorder
from watchdog.core.agent import Policy, Registration, Status, Verdict
from watchdog.core.verdict import Judgement
from watchdog.sweep.announcer import Announcer


class Told:
    """Replaces log and history."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def record(self, event: str, _agent: Agent, _text: str, **_: object) -> None:
        self.events.append(event)


def test_reports_before_the_first_sweep_are_not_repeated_after_it() -> None:
    """In another condition it is news again; a rejected message never is."""
    told = Told()
    tidings = Announcer(cast("EventRecorder", told))
    agent = Agent(Registration("a" * 32, "a", os.geteuid(), "host", "boot"), Policy(), Status.RUNNING)
    first = Judgement(Verdict.STARTING, "has not spoken yet")
    refused = [agent.reported.first_refusal("rejected", "rejected")]
    tidings.once(agent, "held", "kill.held", "an operator holds it")
    for judgement in (first, first, replace(first, verdict=Verdict.HEALTHY)):
        tidings.judged(agent, judgement)
        agent.judged.verdict = judgement.verdict
        tidings.once(agent, "held", "kill.held", "an operator holds it")
        refused.append(agent.reported.first_refusal("rejected", "rejected"))
    assert told.events == ["kill.held", "kill.held"]
    assert refused == [True, False, False, False], (
        "it was told once before the first look, and once when it had started"
    )
