"""One /proc scan for all who want one at the same time: the sweep's once-a-minute look and every kill's looks."""

import asyncio
from concurrent.futures import Executor

from watchdog.core.model import TreeMember
from watchdog.fleet import Agent, Fleet
from watchdog.processes import table, tree
from watchdog.processes.identity import pidfd_inodes_work

Trees = dict[str, tuple[TreeMember, ...]]


class Scanner:
    """Scans in an executor thread; a caller never gets a look that began before it asked."""

    def __init__(self, fleet: Fleet, executor: Executor, host: str) -> None:
        self._fleet = fleet
        self._executor = executor
        self._host = host
        self._running: asyncio.Task[Trees] | None = None
        self._next: asyncio.Task[Trees] | None = None
        self._previous: table.ProcessTable | None = None

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

    async def _after(self, running: "asyncio.Task[Trees]") -> Trees:
        await asyncio.wait([running])
        self._running, self._next = self._next, None
        return await self._scan()

    async def _scan(self) -> Trees:
        agents = {agent.agent_id: agent for agent in self._fleet}
        roots = [_root(agent) for agent in agents.values()]
        found = await asyncio.get_running_loop().run_in_executor(self._executor, self._look, roots)
        for agent_id, members in found.items():
            agents[agent_id].members = members
        return found

    def _look(self, roots: list[tree.Root]) -> Trees:
        """In the executor: scan, sort, and pin down who is new."""
        self._previous = table.scan(
            self._host,
            frozenset(root.owner_uid for root in roots),
            cgroups_of=frozenset(root.main.pid for root in roots if root.main is not None),
            previous=self._previous,
        )
        found = tree.trees(self._previous, roots)
        if not pidfd_inodes_work():
            return found
        return {agent_id: _completed(members) for agent_id, members in found.items()}


def _completed(members: tuple[TreeMember, ...]) -> tuple[TreeMember, ...]:
    """With the pidfd's inode for those that were not seen before."""
    new = [member for member in members if member.identity.pidfd_inode is None]
    if not new:
        return members
    known = [member for member in members if member.identity.pidfd_inode is not None]
    return (*known, *tree.with_inodes(new))


def _root(agent: Agent) -> tree.Root:
    return tree.Root(
        agent_id=agent.agent_id,
        owner_uid=agent.reg.owner_uid,
        main=agent.identity,
        parent_id=agent.reg.parent_id,
        wrapped=agent.reg.source == "run",
        wrapper=agent.wrapper,
        remembered=tuple(member.identity for member in agent.members),
        spare=frozenset(agent.policy.spare),
    )
