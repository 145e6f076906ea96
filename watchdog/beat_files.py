"""Heartbeat files: a new mtime is a beat. The daemon never opens or stats the path; the owner's helper does.

A file that cannot be read, or a helper that hangs on it, is missing evidence about that agent alone: its other
channels, its process and everybody else are judged on.
"""

import asyncio
from collections import defaultdict
from datetime import timedelta

from watchdog.clock import Clock
from watchdog.core.model import Beat
from watchdog.errors import OwnerCallFailed
from watchdog.fleet import Agent, Fleet
from watchdog.logs import Log
from watchdog.owners import Owners

DEADLINE = 3.0  # seconds for one look; the helper is replaced after it
PATIENCE = 60.0  # seconds until a path on which a helper hung is tried again


class BeatFiles:
    """Looks at all heartbeat files, one task per owner, beside the sweep."""

    def __init__(self, fleet: Fleet, owners: Owners, clock: Clock, log: Log) -> None:
        self._fleet = fleet
        self._owners = owners
        self._clock = clock
        self._log = log
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._stamps: dict[str, object] = {}
        self._later: dict[str, float] = {}

    def look(self) -> None:
        """Start a look for each owner whose former look is over; the beats found count when they are found."""
        by_owner: dict[int, list[Agent]] = defaultdict(list)
        for agent in self._fleet:
            if agent.reg.beat_file is not None:
                by_owner[agent.reg.owner_uid].append(agent)
        for uid, agents in by_owner.items():
            running = self._tasks.get(uid)
            if running is None or running.done():
                self._tasks[uid] = asyncio.create_task(self._look_as(uid, agents), name=f"beat files of uid {uid}")

    async def close(self) -> None:
        """Give up what is still looking."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _look_as(self, uid: int, agents: list[Agent]) -> None:
        for agent in agents:
            if self._clock.mono() < self._later.get(agent.agent_id, 0.0):
                continue
            try:
                stamp = await self._owners.call(uid, "beat_file", {"path": agent.reg.beat_file}, DEADLINE)
            except OwnerCallFailed as error:
                if error.reason == "late":
                    self._later[agent.agent_id] = self._clock.mono() + PATIENCE
                if error.reason == "ENOENT" and agent.beats == 0:
                    self._stamps[agent.agent_id] = None  # it makes the file with its first beat
                else:
                    self._unread(agent, str(error))
            else:
                self._take(agent, stamp)

    def _take(self, agent: Agent, stamp: object) -> None:
        """A stamp that differs from the last one is a beat; the first one seen is only where we begin."""
        agent.unread = None
        known = agent.agent_id in self._stamps
        if known and self._stamps[agent.agent_id] != stamp:
            now = self._clock.now()
            agent.beat(Beat(), now.mono, now.wall)
        self._stamps[agent.agent_id] = stamp

    def _unread(self, agent: Agent, why: str) -> None:
        if agent.unread is None:
            agent.unread = timedelta()
            self._log.event("agent.beat_file_unread", agent_id=agent.agent_id, name=agent.reg.name, why=why)
