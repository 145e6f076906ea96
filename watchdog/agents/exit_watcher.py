"""The ends of main processes: one epoll(7) over all pidfds, and a look at whoever has ended, at once.

Levels, not edges: a pidfd that has become readable stays so, so it is asked until it says so, by each sweep too, and
then noted in the agent. A lone end wakes us within a millisecond and costs a look at that agent alone.
"""

import asyncio
import select
from collections.abc import Awaitable, Callable

from watchdog.agents.agent import Agent


class ExitWatcher:
    """Owns the watch, not the pidfds. `look` is given those who have ended; while it runs the next ones gather."""

    def __init__(self) -> None:
        self.look: Callable[[list[Agent]], Awaitable[None]] = _wait_for_the_sweep
        self._living: dict[int, Agent] = {}  # by pidfd
        self._ready = select.epoll()  # itself readable while one of them is
        self._gathered: list[Agent] = []
        self._looking: asyncio.Task[None] | None = None
        asyncio.get_running_loop().add_reader(self._ready, self._readable)

    def watch(self, agent: Agent) -> None:
        """From now on, if it has a pidfd."""
        if agent.tree.pidfd is not None:
            self._ready.register(agent.tree.pidfd, select.EPOLLIN)
            self._living[agent.tree.pidfd] = agent

    def unwatch(self, agent: Agent) -> None:
        """Before its pidfd is closed."""
        if agent.tree.pidfd is not None and self._living.pop(agent.tree.pidfd, None) is not None:
            self._ready.unregister(agent.tree.pidfd)

    def take(self) -> list[Agent]:
        """Note and return who has ended since the last call."""
        ended = [self._living[descriptor] for descriptor, _ in self._ready.poll(0, max(1, len(self._living)))]
        for agent in ended:
            agent.exit.seen()
            self.unwatch(agent)
        return ended

    def stop(self) -> None:
        """Look at nobody any more; a look that is running goes on."""
        asyncio.get_running_loop().remove_reader(self._ready)
        self._gathered.clear()

    def close(self) -> None:
        """Watch nobody any more."""
        self.stop()
        self._living.clear()
        self._ready.close()

    def _readable(self) -> None:
        self._gathered += self.take()
        if self._gathered and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look_at_gathered(), name="ends")

    async def _look_at_gathered(self) -> None:
        while self._gathered:
            agents, self._gathered = self._gathered, []
            await self.look(agents)


async def _wait_for_the_sweep(agents: list[Agent]) -> None:
    """Nobody looks at them sooner."""
