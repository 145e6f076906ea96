"""One /proc scan for all who want one at the same time: the sweep's once-a-minute look and every kill's looks."""

import asyncio
from concurrent.futures import Executor

from watchdog.core.model import TreeMember
from watchdog.fleet import Fleet
from watchdog.processes import tree


class Scanner:
    """Scans in an executor thread; a caller never gets a look that began before it asked."""

    def __init__(self, fleet: Fleet, executor: Executor, spare: tuple[str, ...]) -> None:
        self._fleet = fleet
        self._executor = executor
        self._spare = spare
        self._running: asyncio.Task[dict[str, tuple[TreeMember, ...]]] | None = None
        self._next: asyncio.Task[dict[str, tuple[TreeMember, ...]]] | None = None

    async def trees(self) -> dict[str, tuple[TreeMember, ...]]:
        """The trees of all agents by id, from a scan that starts after this call.

        Raises OSError when /proc cannot be read at all.
        """
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._scan())
            return await asyncio.shield(self._running)
        if self._next is None or self._next.done():
            self._next = asyncio.create_task(self._after(self._running))
        return await asyncio.shield(self._next)

    async def _after(self, running: "asyncio.Task[dict[str, tuple[TreeMember, ...]]]") -> dict[str, tuple[TreeMember, ...]]:
        await asyncio.wait([running])
        self._running, self._next = self._next, None
        return await self._scan()

    async def _scan(self) -> dict[str, tuple[TreeMember, ...]]:
        loop = asyncio.get_running_loop()
        table = await loop.run_in_executor(self._executor, tree.scan)
        found = tree.trees(table, list(self._fleet), self._spare)
        for agent in self._fleet:
            if agent.agent_id in found:
                agent.members = found[agent.agent_id]
        return found
