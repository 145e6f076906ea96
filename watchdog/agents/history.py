"""Records events twice: as a log line for the operator, and in the registry's history for `why`.

Changes of status write their own history in the registry, in the transaction of their compare-and-set; every other
event goes through `record`. Writes keep their order.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from functools import partial

from watchdog.agents.agent import Agent
from watchdog.clock import Clock
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.telemetry import logger
from watchdog.telemetry.logger import EventLogger

PENDING = 1000  # events that may wait for a slow disk; further ones go only to the log
OF_ONE = 250  # of these for one owner's agents, so that the others' are still recorded


class HistorySignal:
    """Wakes all tasks that wait for new events. Take `next()`, read the history, then wait: no ring is missed."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._closed = False

    def closed(self) -> bool:
        """Whether the daemon is stopping."""
        return self._closed

    def ring(self) -> None:
        """An event was added to the history."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    def close(self) -> None:
        """The daemon is stopping: end the requests of clients that follow the history."""
        self._closed = True
        self.ring()

    def reopen(self) -> None:
        """Clients may follow again."""
        self._closed = False

    def next(self) -> asyncio.Event:
        """The event that the next ring sets."""
        return self._event


class EventRecorder:
    """Never blocks and never raises: an event that cannot be written to the history is counted; its log line is out."""

    def __init__(self, registry: AsyncRegistry, clock: Clock, log: EventLogger) -> None:
        self._registry = registry
        self._clock = clock
        self._log = log
        self._waiting: Counter[int] = Counter()  # by owner
        self.lost = 0
        self.new_events = HistorySignal()

    def event(self, event: str, /, **fields: object) -> None:
        """Log one line and wake the followers of the history, which is written along with a change."""
        self._log.event(event, exc_info=None, **fields)
        self.new_events.ring()

    def record(
        self, event: str, agent: Agent, why: str, who: str = "daemon", evidence: Mapping[str, object] | None = None
    ) -> None:
        """Record one event of one agent."""
        with logger.caused_by(None if event.startswith("kill.") else agent.reg.owner_uid):
            self.log(event, agent, why, evidence)
        owner = agent.reg.owner_uid
        if self._waiting.total() >= PENDING or self._waiting[owner] >= OF_ONE:
            self.lost += 1
            return
        self._waiting[owner] += 1
        self._registry.ask(
            self._registry.history.add_event,
            event,
            agent.agent_id,
            who,
            why,
            self._clock.now().wall,
            evidence=evidence or {},
            owner_uid=owner,
        ).add_done_callback(partial(self._written, owner))

    def logger_of(self, agent: Agent) -> EventLogger:
        """For log lines about that agent that are not for the history, or that it gets with a change."""
        return self._log.bind(agent_id=agent.agent_id, name=agent.reg.name)

    def log(self, event: str, agent: Agent, why: str, evidence: Mapping[str, object] | None = None) -> None:
        """Write the log line alone: the history gets the event with the change that caused it."""
        self._log.bind(**(evidence or {})).event(event, agent_id=agent.agent_id, name=agent.reg.name, why=why)

    def _written(self, owner: int, answer: "asyncio.Future[int]") -> None:
        self._waiting[owner] -= 1
        if not self._waiting[owner]:
            del self._waiting[owner]
        if answer.cancelled() or answer.exception() is not None:
            self.lost += 1
        else:
            self.new_events.ring()
