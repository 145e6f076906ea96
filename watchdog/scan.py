"""One /proc scan for all who want one at the same time: the sweep's once-a-minute look and every kill's looks."""

import asyncio
from concurrent.futures import Executor
from dataclasses import replace

from watchdog.core.model import TreeMember
from watchdog.fleet import Agent, Fleet
from watchdog.processes import memory, table, tree, vendors
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
        self._previous: table.Read | None = None
        self.ghosts: dict[str, Agent] = {}  # ended agents whose orphans are looked for, or are being ended

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
        return await asyncio.get_running_loop().run_in_executor(self._executor, table.scan, self._host, uids)

    async def _after(self, running: "asyncio.Task[Trees]") -> Trees:
        await asyncio.wait([running])
        self._running, self._next = self._next, None
        return await self._scan()

    async def _scan(self) -> Trees:
        agents = self.ghosts | {agent.agent_id: agent for agent in self._fleet}
        roots = [_root(agent) for agent in agents.values()]
        roots, found = await asyncio.get_running_loop().run_in_executor(self._executor, self._look, roots)
        for root in roots:
            agent = agents[root.agent_id]
            agent.members, agent.marks = found[root.agent_id], root.marks
            agent.home_cgroup = root.home_cgroup or agent.home_cgroup
        return found

    def _look(self, roots: list[tree.Root]) -> tuple[list[tree.Root], Trees]:
        """In the executor: scan, see whose the marks are, sort, and pin down who is new. Also what to remember."""
        seen = table.scan(
            self._host,
            frozenset(root.owner_uid for root in roots),
            cgroups_of=frozenset(root.main.pid for root in roots if root.main is not None),
            own_cgroups=frozenset(root.cgroup for root in roots if root.cgroup is not None),
            previous=self._previous,
        )
        self._previous = seen.read()
        sources = [vendors.Source(r.agent_id, r.owner_uid, r.main, r.marks) for r in roots if r.main is not None]
        made = vendors.made_inside(seen, sources)
        roots = [_seen(seen, root, made.get(root.agent_id, frozenset())) for root in roots]
        found = tree.trees(seen, roots)
        for root in roots:
            found[root.agent_id] += memory.unseen(seen, root)
        if pidfd_inodes_work():
            found = {agent_id: _completed(members) for agent_id, members in found.items()}
        return roots, found


def _seen(seen: table.ProcessTable, root: tree.Root, marks: frozenset[str]) -> tree.Root:
    """With what this scan saw of its main process, for as long as that is there."""
    main = seen.find(root.main)
    home = (None if main is None or main.stat.dead else main.cgroup) or root.home_cgroup
    return root if (marks, home) == (root.marks, root.home_cgroup) else replace(root, marks=marks, home_cgroup=home)


def _completed(members: tuple[TreeMember, ...]) -> tuple[TreeMember, ...]:
    """With the pidfd's inode for those that were not seen before."""
    new = [member for member in members if member.identity.pidfd_inode is None]
    if not new:
        return members
    known = [member for member in members if member.identity.pidfd_inode is not None]
    return (*known, *memory.with_inodes(new))


def _root(agent: Agent) -> tree.Root:
    return tree.Root(
        agent_id=agent.agent_id,
        owner_uid=agent.reg.owner_uid,
        main=agent.identity,
        parent_id=agent.reg.parent_id,
        wrapped=agent.reg.source == "run",
        wrapper=agent.wrapper,
        cgroup=agent.cgroup,
        home_cgroup=agent.home_cgroup,
        marks=agent.marks,
        remembered=tuple(member.identity for member in agent.members),
        spare=frozenset(agent.policy.spare),
    )
