"""The agents in memory, by id (see `agent`).

Only the event loop touches this.
"""

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from operator import attrgetter
from typing import Any

from watchdog.agents.agent import Agent
from watchdog.config.settings import Settings
from watchdog.core.agent import LIVE
from watchdog.errors import Conflict
from watchdog.processes.signals import Guard

_TREE = attrgetter("reg", "tree.members")


class Fleet:
    """All agents that are not closed, by id."""

    def __init__(self) -> None:
        self._agents: dict[str, Agent] = {}
        self._processes_of: list[tuple[Any, Any]] = []
        self._processes: frozenset[tuple[int, int]] = frozenset()
        self._shared: frozenset[tuple[int, int]] = frozenset()  # processes that two agents have in common

    def __iter__(self) -> Iterator[Agent]:
        return iter(list(self._agents.values()))

    def __len__(self) -> int:
        return len(self._agents)

    def apply(self, settings: Settings) -> None:
        """Apply to each agent its policy from these settings."""
        for agent in self:
            agent.adopt(settings.policy_for(agent.reg))

    def shift(self, by: timedelta) -> None:
        """The wall clock was set by this much: shift the times of last beats with it."""
        for agent in self:
            agent.heartbeat.rhythm.shift(by)

    def add(self, agent: Agent) -> None:
        """Add an agent whose row is committed."""
        self._agents[agent.agent_id] = agent

    def get(self, agent_id: str) -> Agent | None:
        return self._agents.get(agent_id)

    def drop(self, agent_id: str) -> None:
        """Forget a closed agent."""
        agent = self._agents.pop(agent_id, None)
        if agent is not None:
            agent.tree.close()

    def named(self, name: str, owner_uid: int | None = None) -> list[Agent]:
        """Living agents with that name, of one owner or of all."""
        return [a for a in self if a.reg.name == name and owner_uid in (None, a.reg.owner_uid) and a.status in LIVE]

    def refuse_taken(self, name: str, owner_uid: int) -> None:
        """Raise Conflict when the owner has a living agent of that name."""
        for agent in self.named(name, owner_uid):
            raise Conflict(
                f"{name} is a living agent of yours ({agent.agent_id}): replace it (--replace), or choose another name"
            )

    def children(self, agent_id: str) -> list[Agent]:
        """Living agents that name this one as their parent."""
        return [a for a in self if a.reg.parent_id == agent_id]

    def guard(self, agent: Agent, host: str) -> Guard:
        """What must not be signalled while this agent is killed.

        Every other agent and its tree, what its policy spares, and services that sessions share, whichever agent lists
        them.
        """
        spare = frozenset(agent.policy.spare)
        return Guard(host, self.processes_but(agent.agent_id), spare, agent.identity)

    def processes_but(self, agent_id: str) -> frozenset[tuple[int, int]]:
        """Every process of every other agent's tree, and every shared service, as (pid, start ticks).

        Each signal asks for this, so the union is cached until an agent is added or removed or a tree changes.
        """
        of = list(map(_TREE, self._agents.values()))
        if self._processes_of != of:
            counts = Counter(one for agent in self._agents.values() for one in agent.processes)
            mains = {(a.identity.pid, a.identity.start_ticks) for a in self._agents.values() if a.identity is not None}
            served = {
                (one.pid, one.start_ticks) for agent in self._agents.values() for _, one in agent.reg.served
            } - mains
            self._processes = frozenset(counts) | served
            self._shared = frozenset(one for one, count in counts.items() if count > 1) | served
        self._processes_of = of  # even if equal: comparing the identical object is fifteen times as fast
        mine = self.get(agent_id)
        return self._processes if mine is None else self._processes - (mine.processes - self._shared)
