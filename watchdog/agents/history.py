"""What happened, told twice: as a log line for the operator, and in the registry's history for `why`.

Changes of status write their own history in the registry, with the compare-and-set that makes them; everything else
that is worth a line goes through `tell`. What is written after it stands after it: writes keep their order.
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

PENDING = 1000  # events that may wait for a slow disk; beyond it only the log has them
OF_ONE = 250  # of them of one owner's agents: the others' are told all the same


class HistorySignal:
    """Wakes everybody who waits for new events. Take `next()`, look, then wait for it: no ring is missed."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._closed = False

    def closed(self) -> bool:
        """Whether the daemon stops."""
        return self._closed

    def ring(self) -> None:
        """An event was added to the history."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    def close(self) -> None:
        """The daemon stops: clients that follow are let go."""
        self._closed = True
        self.ring()

    def reopen(self) -> None:
        """Clients may follow again."""
        self._closed = False

    def next(self) -> asyncio.Event:
        """The event that the next ring sets."""
        return self._event


class EventRecorder:
    """Never blocks and never raises: history that cannot be written is counted, the log line is out already."""

    def __init__(self, registry: AsyncRegistry, clock: Clock, log: EventLogger) -> None:
        self._registry = registry
        self._clock = clock
        self._log = log
        self._waiting: Counter[int] = Counter()  # by owner
        self.lost = 0
        self.new_events = HistorySignal()

    def event(self, event: str, /, **fields: object) -> None:
        """One line in the log, and a ring for those who follow the history: it is being written with a change."""
        self._log.event(event, exc_info=None, **fields)
        self.new_events.ring()

    def tell(
        self, event: str, agent: Agent, why: str, who: str = "daemon", evidence: Mapping[str, object] | None = None
    ) -> None:
        """One thing that happened to one agent."""
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
        """For log lines about that agent that the history does not need, or has with a change."""
        return self._log.bind(agent_id=agent.agent_id, name=agent.reg.name)

    def log(self, event: str, agent: Agent, why: str, evidence: Mapping[str, object] | None = None) -> None:
        """The log line alone: the history has it with the change that it tells of."""
        self._log.bind(**(evidence or {})).event(event, agent_id=agent.agent_id, name=agent.reg.name, why=why)

    def _written(self, owner: int, answer: "asyncio.Future[int]") -> None:
        self._waiting[owner] -= 1
        if not self._waiting[owner]:
            del self._waiting[owner]
        if answer.cancelled() or answer.exception() is not None:
            self.lost += 1
        else:
            self.new_events.ring()
