"""One /proc scan shared by all that want one at the same time: the sweep once a minute and every kill.

Tests: tests/sweep/test_sweeper.py, tests/kill/test_terminate.py.
"""

import asyncio
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace

from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.clock import Clock
from watchdog.core.agent import Status
from watchdog.core.process import Identity, TreeMember
from watchdog.processes import bounded, reader, table, tree
from watchdog.processes.survey import Service, Trees, survey

HANGS = 1.0  # seconds; on a host with 20 tasks for each CPU an execve may hold up reads of its process for 0.2

_GOES_ON = frozenset({Status.STARTING, Status.RUNNING})


class ProcessScanner:
    """Scans by the reader (without one: in an executor); a caller never gets a scan that began before its call."""

    def __init__(self, fleet: Fleet, executor: Executor | None, host: str) -> None:
        self._fleet = fleet
        self._executor = executor
        self._host = host
        self._running: asyncio.Task[Trees] | None = None
        self._next: asyncio.Task[Trees] | None = None
        self._clock = Clock()
        self.hung: Mapping[int, bounded.Hung] = {}  # result of the last `find_hung`
        self.services: tuple[Service, ...] = ()  # services that many sessions share, as of the last scan
        self.ended_agents: dict[str, Agent] = {}  # ended agents whose orphans are searched, or are being killed

    def look_also_for(self, ended: Mapping[str, Agent]) -> None:
        """Also find the processes of these agents, by id, though they have ended."""
        self.ended_agents |= ended

    def look_no_more_for(self, ended: Iterable[str]) -> None:
        """Stop finding the processes of these agents."""
        for agent_id in ended:
            self.ended_agents.pop(agent_id, None)

    async def find_hung(self) -> None:
        """Find the processes that cannot be read now: a read of their files hangs for at least `HANGS` seconds."""
        reading, since = bounded.user(), self._clock.mono() - HANGS
        if reading is not None:
            with suppress(bounded.LookFailed):
                await reading.refresh()
        self.hung = {pid: one for pid, one in bounded.hung().items() if one.since <= since}

    async def trees(self) -> Trees:
        """The trees of all agents by id, from a scan that starts after this call; each agent keeps its own.

        Raises OSError when /proc cannot be read at all.
        """
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._scan())
            return await asyncio.shield(self._running)
        if self._next is None or self._next.done():
            self._next = asyncio.create_task(self._after(self._running))
        return await asyncio.shield(self._next)

    async def table(self, uids: frozenset[int]) -> table.ProcessTable:
        """All processes, and the marks of those of these uids, from a separate scan that does not delay `trees`.

        Raises OSError when /proc cannot be read at all.
        """
        return await reader.awaited(self._executor, table.table, self._host, uids, os.getpid())

    async def _after(self, running: "asyncio.Task[Trees]") -> Trees:
        await asyncio.wait([running])
        self._running, self._next = self._next, None
        return await self._scan()

    async def _scan(self) -> Trees:
        agents = self.ended_agents | {agent.agent_id: agent for agent in self._fleet}
        # A session whose agent has ended, or is being killed, may have been resumed by another agent.
        taken = frozenset().union(*(agent.reg.served for agent in self._fleet if agent.status in _GOES_ON))
        roots = [_root(agent, frozenset() if agent.status in _GOES_ON else taken) for agent in agents.values()]
        roots, found, self.services = await reader.awaited(self._executor, survey, self._host, roots, os.getpid())
        for root in roots:
            agent = agents[root.agent_id]
            members = found[root.agent_id] = _as_known(found[root.agent_id], agent.tree.members)
            agent.tree.scanned(members, root.marks, root.home_cgroup)
        return found


def _as_known(found: tuple[TreeMember, ...], before: tuple[TreeMember, ...]) -> tuple[TreeMember, ...]:
    """Keep the last values of members that could not be read now: a CPU time of 0 would look like much work later."""
    if all(one.state != table.UNREAD for one in found):
        return found
    known = {one.identity: one for one in before}
    return tuple(
        replace(known[one.identity], state=table.UNREAD) if one.state == table.UNREAD and one.identity in known else one
        for one in found
    )


def _root(agent: Agent, taken: frozenset[tuple[str, Identity]]) -> tree.Root:
    """`taken`: sessions that belong to other agents now."""
    return tree.Root(
        agent_id=agent.agent_id,
        owner_uid=agent.reg.owner_uid,
        main=agent.identity,
        parent_id=agent.reg.parent_id,
        wrapped=agent.reg.source == "run",
        wrapper=agent.tree.wrapper,
        cgroup=agent.reg.own_cgroup,
        home_cgroup=agent.tree.home_cgroup,
        marks=agent.tree.marks,
        sessions=agent.reg.served - taken,
        remembered=tuple(member.identity for member in agent.tree.members),
        spare=frozenset(agent.policy.spare),
    )
