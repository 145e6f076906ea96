"""Changes while a silent agent works: its transcript, its log, its tmux pane, the bytes its processes move.

Read by the owner's helper, beside the sweep, and only for agents that have been silent for a while: one that beats
costs nothing. Growth counts from one answer to the next, so that nothing from before the silence counts.

The kinds of activity are in `core.observed_activity`; for each helper call a module here of the same name interprets
the answer.
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
    """Interface of these modules: make the arguments for one agent, and compare an answer with earlier ones.

    All are tested with this one.
    """

    def question(self, agent: Agent, kind: ActivityKind) -> dict[str, object] | None:
        """The arguments of the helper's call; None: there is nothing to read."""

    def read(self, kind: ActivityKind, answer: Any, before: Any, now: float) -> tuple[str | None, object]:
        """The observed activity as text (None: none), and the state for the next answer.

        `before`: the state kept in this silence, None at first. `now` is monotonic. Raises KeyError, TypeError and
        ValueError for a malformed answer: another uid's process may have made it.
        """


READERS: dict[str, AnswerReader] = {
    kind.probe.call: cast("AnswerReader", import_module(f"watchdog.probes.{kind.probe.call}"))
    for kind in ActivityKind
    if kind.probe.call is not None
}


class OutputGrowth:
    """Observes the agents in question; results are in their `sights`."""

    def __init__(self, fleet: Fleet, inquiries: BackgroundQueries, clock: Clock) -> None:
        self._fleet = fleet
        self._inquiries = inquiries
        self._clock = clock
        self._asked: set[Key] = set()
        self._remembered: dict[Key, object] = {}

    def look(self) -> list[Agent]:
        """Query every agent in question, and return them. Call it after silence was accounted for."""
        doubtful = [agent for agent in self._fleet if agent.in_question]
        asked = {agent.agent_id for agent in doubtful}
        # also of subjects without an answer: no pane, no file
        for key in [key for key in self._asked if key[0] not in asked]:
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
