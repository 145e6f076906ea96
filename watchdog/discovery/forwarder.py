"""Passes on messages of agents that another daemon holds: their program may reach only us.

Tests: tests/e2e/test_one_daemon.py.
"""

import asyncio
import os
from contextlib import suppress
from functools import partial

from watchdog.agents.agent import Agent
from watchdog.client import client
from watchdog.concurrency.threads import Pool
from watchdog.core.custody import Holder
from watchdog.core.ownership import ROOT
from watchdog.core.sd_notify import Words, parse_datagram, words_of
from watchdog.errors import DaemonUnreachable, WatchdogError

ANSWER = 1.0  # seconds for an answer of another daemon
MOST_WAITING = 256  # messages queued to be passed on
Json = dict[str, object]


class Forwarder:
    """Talks to other daemons as our own uid. `pool` has threads for that, shared by all callers."""

    def __init__(self) -> None:
        self.pool = Pool(4, "another daemon")
        self._waiting = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def pass_on(self, holder: Holder, method: str, path: str, body: object) -> tuple[int, Json]:
        """Repeat a request to us at that daemon, as our own uid. Raises DaemonUnreachable.

        Root's daemon never does this to a user's daemon: it uses no path that a user controls.
        """
        if os.geteuid() == ROOT and holder.daemon.uid != ROOT:
            raise DaemonUnreachable(f"it is watched by {holder}; report it there")
        if self._waiting >= MOST_WAITING:
            raise DaemonUnreachable(f"{holder} is slow")
        self._waiting += 1
        try:
            ask = partial(client.request, method, path, body, socket_path=holder.socket, timeout=ANSWER)
            return await asyncio.get_running_loop().run_in_executor(self.pool, ask)
        finally:
            self._waiting -= 1

    def forward(self, agent: Agent, data: bytes, main: bool) -> None:
        """A datagram of an agent that belongs to another daemon arrived at our socket for it."""
        words = words_of(parse_datagram(data), from_main=main)
        if agent.owner.elsewhere is not None and words is not None and self._waiting < MOST_WAITING:
            path = f"/v1/agents/{agent.owner.elsewhere.agent_id}/beat"
            task = asyncio.get_running_loop().create_task(self._say(agent.owner.elsewhere, path, words))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _say(self, holder: Holder, path: str, words: Words) -> None:
        with suppress(WatchdogError, OSError):  # the next round finds out whether that daemon is gone
            await self.pass_on(holder, "POST", path, words)

    def close(self) -> None:
        """Stop passing messages on."""
        for task in self._tasks:
            task.cancel()
        self.pool.close(0.0, cancel=True)
