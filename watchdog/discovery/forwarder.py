"""Passes on what we are told of an agent that another daemon holds: its program may reach nobody else.

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

ANSWER = 1.0  # seconds that another daemon has for one answer
MOST_WAITING = 256  # words that are to be passed on
Json = dict[str, object]


class Forwarder:
    """Speaks to other daemons as our own uid. `pool` has threads for that, and for whoever else asks them."""

    def __init__(self) -> None:
        self.pool = Pool(4, "another daemon")
        self._waiting = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def pass_on(self, holder: Holder, method: str, path: str, body: object) -> tuple[int, Json]:
        """Say to that daemon what was said to us, as our own uid. Raises DaemonUnreachable.

        Never by root's daemon to a user's: it speaks at no path that a user controls.
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

    def heard(self, agent: Agent, data: bytes, main: bool) -> None:
        """A datagram of an agent that is another daemon's came to our socket of it."""
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
        """No more words are passed on."""
        for task in self._tasks:
            task.cancel()
        self.pool.close(0.0, cancel=True)
