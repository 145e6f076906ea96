"""What changes while a silent agent works: its transcript, its log, its tmux pane, the bytes its processes move.

Asked of the owner's helper, beside the sweep, and only of agents that have been silent for a while: one that beats
costs nothing. Growth counts from one look to the next, so that nothing from before the silence speaks for it.

What is asked is in `core.observed_activity`; a module here of the name of the helper's call understands its answer.
"""

from importlib import import_module
from typing import Any, Protocol, cast

from watchdog.agents.agent import Agent
from watchdog.agents.background_queries import BackgroundQueries
from watchdog.agents.fleet import Fleet
from watchdog.clock import Clock
from watchdog.core.observed_activity import ActivityKind
from watchdog.errors import OwnerCallFailed

Key = tuple[str, ActivityKind]


class AnswerReader(Protocol):
    """What a module of these does: it asks for one agent, and compares an answer with those before it.

    All are tested with this one.
    """

    def question(self, agent: Agent, kind: ActivityKind) -> dict[str, object] | None:
        """The arguments of the helper's call; None: there is nothing to ask about."""

    def read(self, kind: ActivityKind, answer: Any, before: Any, now: float) -> tuple[str | None, object]:
        """What was seen, in words, if anything was; and what is to be remembered until the next answer.

        `before`: what was remembered in this silence, None at first. `now` is monotonic. Raises KeyError, TypeError and
        ValueError for what is no such answer: these may be another uid's words.
        """


READERS: dict[str, AnswerReader] = {
    kind.probe.call: cast("AnswerReader", import_module(f"watchdog.probes.{kind.probe.call}"))
    for kind in ActivityKind
    if kind.probe.call is not None
}


class OutputGrowth:
    """Looks at those in question; what it finds is in their `sights`."""

    def __init__(self, fleet: Fleet, inquiries: BackgroundQueries, clock: Clock) -> None:
        self._fleet = fleet
        self._inquiries = inquiries
        self._clock = clock
        self._asked: set[Key] = set()
        self._remembered: dict[Key, object] = {}

    def look(self) -> list[Agent]:
        """Ask about every agent in question, and return them. Call it when silence has been reckoned."""
        doubtful = [agent for agent in self._fleet if agent.in_question]
        asked = {agent.agent_id for agent in doubtful}
        for key in [key for key in self._asked if key[0] not in asked]:  # also of what had no answer: no pane, no file
            self._inquiries.forget(key)
            self._asked.discard(key)
            self._remembered.pop(key, None)
        for agent in doubtful:
            for kind in ActivityKind:
                if kind.probe.call is not None:
                    self._ask(agent, kind, kind.probe.call)
        return doubtful

    def _ask(self, agent: Agent, kind: ActivityKind, call: str) -> None:
        reader, key = READERS[call], (agent.agent_id, kind)

        def failed(error: OwnerCallFailed) -> None:
            agent.sights.looked(kind, None if error.reason == "no_pane" else str(error))

        def answered(answer: object) -> None:
            agent.sights.looked(kind)
            seen, self._remembered[key] = reader.read(kind, answer, self._remembered.get(key), self._clock.mono())
            if seen is not None:
                agent.sights.see(kind, seen)

        args = reader.question(agent, kind)
        if args is not None:
            self._asked.add(key)
            self._inquiries.ask(key, agent, call, args, answered, failed)
