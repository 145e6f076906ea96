"""Watches for exits of main processes: one epoll(7) over all pidfds, and an immediate check of agents that exited.

Level-triggered: a readable pidfd stays readable, so it is polled (also by each sweep) until its exit is noted in the
agent. A single exit wakes the daemon within a millisecond and costs a check of that agent alone.
"""

import asyncio
import select
from collections.abc import Awaitable, Callable

from watchdog.agents.agent import Agent


class ExitWatcher:
    """Owns the watch, not the pidfds. One subscriber gets the exited agents; while it runs, further ones gather."""

    def __init__(self) -> None:
        self._on_exits: Callable[[list[Agent]], Awaitable[None]] = _wait_for_the_sweep
        self._living: dict[int, Agent] = {}  # by pidfd
        self._ready = select.epoll()  # readable itself while one of the pidfds is
        self._gathered: list[Agent] = []
        self._running: asyncio.Task[None] | None = None
        asyncio.get_running_loop().add_reader(self._ready, self._readable)

    def subscribe(self, on_exits: Callable[[list[Agent]], Awaitable[None]]) -> None:
        """From now on call this soon after agents have exited; before, only the sweep finds them."""
        self._on_exits = on_exits

    def watch(self, agent: Agent) -> None:
        """Begin to watch its pidfd, if it has one."""
        if agent.tree.pidfd is not None:
            self._ready.register(agent.tree.pidfd, select.EPOLLIN)
            self._living[agent.tree.pidfd] = agent

    def unwatch(self, agent: Agent) -> None:
        """Call this before its pidfd is closed."""
        if agent.tree.pidfd is not None and self._living.pop(agent.tree.pidfd, None) is not None:
            self._ready.unregister(agent.tree.pidfd)

    def collect(self) -> list[Agent]:
        """Note and return the agents that exited since the last call."""
        ended = [self._living[descriptor] for descriptor, _ in self._ready.poll(0, max(1, len(self._living)))]
        for agent in ended:
            agent.exit.seen()
            self.unwatch(agent)
        return ended

    def stop(self) -> None:
        """Check no further agents; a running check finishes."""
        asyncio.get_running_loop().remove_reader(self._ready)
        self._gathered.clear()

    def close(self) -> None:
        """Stop watching."""
        self.stop()
        self._living.clear()
        self._ready.close()

    def _readable(self) -> None:
        self._gathered += self.collect()
        if self._gathered and (self._running is None or self._running.done()):
            self._running = asyncio.create_task(self._pass_on(), name="ends")

    async def _pass_on(self) -> None:
        while self._gathered:
            agents, self._gathered = self._gathered, []
            await self._on_exits(agents)


async def _wait_for_the_sweep(agents: list[Agent]) -> None:
    """The subscriber until `subscribe`: the sweep collects them."""
