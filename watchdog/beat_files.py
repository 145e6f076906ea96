"""Heartbeat files: a new mtime is a beat. The daemon never opens or stats the path; the owner's helper does.

A file that cannot be read, or a helper that hangs on it, is missing evidence about that agent alone: its other
channels, its process and everybody else are judged on. Each file has a look of its own, so none waits for another's.
"""

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta

from watchdog.clock import Clock
from watchdog.core.model import Beat
from watchdog.errors import OwnerCallFailed
from watchdog.fleet import Agent, Fleet
from watchdog.logs import Log
from watchdog.owners import Owners

DEADLINE = 3.0  # seconds for one look; the helper is replaced after it
SLOW = 1.0  # seconds without an answer, after which the former one says nothing about now
PATIENCE = 60.0  # seconds until a path on which two helpers in a row hung is tried again
AT_ONCE = 16  # looks of one owner; his helper refuses more than 64 calls at a time


@dataclass(slots=True)
class _File:
    """What is known of one agent's file. `heard` is the agent's count of beats without those that came elsewhere."""

    heard: int
    look: asyncio.Task[None] | None = None
    began: float = 0.0
    known: bool = False
    stamp: object = None
    late: int = 0
    not_before: float = 0.0


class BeatFiles:
    """Looks at all heartbeat files beside the sweep, one task each."""

    def __init__(self, fleet: Fleet, owners: Owners, clock: Clock, log: Log) -> None:
        self._fleet = fleet
        self._owners = owners
        self._clock = clock
        self._log = log
        self._files: dict[str, _File] = {}
        self._slots: dict[int, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(AT_ONCE))

    def look(self) -> None:
        """Start a look at each file whose former look is over; the beats found count when they are found.

        Call it when silence has been reckoned: who would be too silent by an answer that is old is unread instead.
        """
        now = self._clock.mono()
        for gone in self._files.keys() - {agent.agent_id for agent in self._fleet}:
            self._cancel(self._files.pop(gone))
        for agent in self._fleet:
            if agent.reg.beat_file is None:
                continue
            file = self._files.setdefault(agent.agent_id, _File(heard=agent.beats))
            if file.look is not None and not file.look.done():
                if now - file.began > SLOW and agent.silence >= agent.after:
                    self._unread(agent, file, "no answer yet")
            elif now >= file.not_before:
                file.began = now
                file.look = asyncio.create_task(self._look(agent, file), name=f"beat file of {agent.agent_id}")

    async def close(self) -> None:
        """Give up what is still looking."""
        looks = [look for file in self._files.values() if (look := self._cancel(file)) is not None]
        await asyncio.gather(*looks, return_exceptions=True)

    @staticmethod
    def _cancel(file: _File) -> asyncio.Task[None] | None:
        if file.look is not None:
            file.look.cancel()
        return file.look

    async def _look(self, agent: Agent, file: _File) -> None:
        uid = agent.reg.owner_uid
        try:
            async with self._slots[uid]:
                stamp = await self._owners.call(uid, "beat_file", {"path": agent.reg.beat_file}, DEADLINE)
        except OwnerCallFailed as error:
            file.late = file.late + 1 if error.reason == "late" else 0
            if file.late > 1:  # once, another's path may have been to blame, or the machine
                file.not_before = self._clock.mono() + PATIENCE
            if error.reason == "ENOENT" and agent.beats == 0:
                file.known, file.stamp = True, None  # it makes the file with its first beat
            else:
                self._unread(agent, file, str(error))
        else:
            file.late = 0
            self._take(agent, file, stamp)

    def _take(self, agent: Agent, file: _File, stamp: object) -> None:
        """A stamp that differs from the last one is a beat; the first one seen is only where we begin."""
        agent.unread = None
        if file.known and file.stamp != stamp:
            now = self._clock.now()
            agent.beat(Beat(), now.mono, now.wall)
            file.heard += 1
        file.known, file.stamp = True, stamp

    def _unread(self, agent: Agent, file: _File, why: str) -> None:
        """Its file tells nothing. Who beats elsewhere too is judged by that."""
        if agent.unread is None and agent.beats == file.heard:
            agent.unread = timedelta()
            self._log.event("agent.beat_file_unread", agent_id=agent.agent_id, name=agent.reg.name, why=why)
