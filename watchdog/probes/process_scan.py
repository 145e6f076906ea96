"""One /proc scan for all that want one at the same time: the sweep's look once a minute and every kill's looks.

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
    """Has the reader scan (without one: an executor thread); a caller never gets a look that began before it asked."""

    def __init__(self, fleet: Fleet, executor: Executor | None, host: str) -> None:
        self._fleet = fleet
        self._executor = executor
        self._host = host
        self._running: asyncio.Task[Trees] | None = None
        self._next: asyncio.Task[Trees] | None = None
        self._clock = Clock()
        self.hung: Mapping[int, bounded.Hung] = {}  # of the last `find_hung`
        self.services: tuple[Service, ...] = ()  # that many sessions share, as of the last scan
        self.ghosts: dict[str, Agent] = {}  # ended agents whose orphans are looked for, or are being ended

    def look_also_for(self, ended: Mapping[str, Agent]) -> None:
        """The processes of these, by id, are looked for as well, though they have ended."""
        self.ghosts |= ended

    def look_no_more_for(self, ended: Iterable[str]) -> None:
        """Not any more."""
        for agent_id in ended:
            self.ghosts.pop(agent_id, None)

    async def find_hung(self) -> None:
        """Learn which processes cannot be read now: a read of their files hangs for `HANGS` seconds and longer."""
        reading, since = bounded.user(), self._clock.mono() - HANGS
        if reading is not None:
            with suppress(bounded.LookFailed):
                await reading.refresh()
        self.hung = {pid: one for pid, one in bounded.hung().items() if one.since <= since}

    async def trees(self) -> Trees:
        """The trees of all agents by id, from a scan that starts after this call; each agent remembers its own.

        Raises OSError when /proc cannot be read at all.
        """
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._scan())
            return await asyncio.shield(self._running)
        if self._next is None or self._next.done():
            self._next = asyncio.create_task(self._after(self._running))
        return await asyncio.shield(self._next)

    async def table(self, uids: frozenset[int]) -> table.ProcessTable:
        """All processes, and the marks of those of these uids, from a scan of its own; `trees` is not delayed by it.

        Raises OSError when /proc cannot be read at all.
        """
        return await reader.awaited(self._executor, table.table, self._host, uids, os.getpid())

    async def _after(self, running: "asyncio.Task[Trees]") -> Trees:
        await asyncio.wait([running])
        self._running, self._next = self._next, None
        return await self._scan()

    async def _scan(self) -> Trees:
        agents = self.ghosts | {agent.agent_id: agent for agent in self._fleet}
        # A session whose agent has ended, or is being killed, may have begun again, and is another's then.
        taken = frozenset().union(*(agent.reg.served for agent in self._fleet if agent.status in _GOES_ON))
        roots = [_root(agent, frozenset() if agent.status in _GOES_ON else taken) for agent in agents.values()]
        roots, found, self.services = await reader.awaited(self._executor, survey, self._host, roots, os.getpid())
        for root in roots:
            agent = agents[root.agent_id]
            members = found[root.agent_id] = _as_known(found[root.agent_id], agent.tree.members)
            agent.tree.scanned(members, root.marks, root.home_cgroup)
        return found


def _as_known(found: tuple[TreeMember, ...], before: tuple[TreeMember, ...]) -> tuple[TreeMember, ...]:
    """With what was seen last of those that could not be read now: a CPU time of 0 would read as much work later."""
    if all(one.state != table.UNREAD for one in found):
        return found
    known = {one.identity: one for one in before}
    return tuple(
        replace(known[one.identity], state=table.UNREAD) if one.state == table.UNREAD and one.identity in known else one
        for one in found
    )


def _root(agent: Agent, taken: frozenset[tuple[str, Identity]]) -> tree.Root:
    """`taken`: sessions that are another's now."""
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
