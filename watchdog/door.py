"""The control socket, kept open: a daemon that nobody can reach any more must not take silence for a stall."""

import os
from contextlib import AsyncExitStack

from watchdog import threads
from watchdog.chronicle import Chronicle
from watchdog.control.api import serve
from watchdog.control.desk import Bell, Desk
from watchdog.descriptors import Shortage
from watchdog.errors import WatchdogError
from watchdog.lock import Locks
from watchdog.places import ensure_directories, notify_directory

PATIENCE = 1.0  # seconds for a look at the runtime directory, which a sweep waits for


class Door:
    """Serves the desk at its path, and again when somebody removed the socket or its directory."""

    def __init__(self, desk: Desk, chronicle: Chronicle, locks: Locks) -> None:
        self.desk = desk
        self._locks = locks
        self._chronicle = chronicle
        self._open = AsyncExitStack()
        self._inode: int | None = None
        self._said = False
        self._shortage = Shortage(lambda: desk.unheard(os.geteuid()), desk.log)

    async def open(self) -> None:
        """Listen. Raises OSError when the socket cannot be made."""
        self._shortage.watch()
        self.desk.bell = Bell()  # in place: a reload puts new settings into this very desk
        self._chronicle.on_write = self.desk.bell.ring
        await self._open.enter_async_context(serve(self.desk))
        self._inode = os.stat(self.desk.socket_path).st_ino

    async def keep(self) -> None:
        """Look whether our socket still lies at its path; if not, nobody could reach us: say so and listen anew.

        Until he beats again, nobody's silence is held against him. While the runtime directory is another daemon's,
        what lies there is his.
        """
        self._shortage.look()
        directory = self.desk.settings.runtime_dir
        try:
            ours, there = await threads.call(f"runtime directory {directory}", self._look, PATIENCE)
        except threads.Unanswered:
            return  # said as `call.stuck`; whoever is connected is heard, and nobody else's path is known to be gone
        if there:
            return
        for agent in self.desk.fleet:
            agent.channel_lost = agent.promised
        if not self._said:
            self._said = True
            self.desk.log.event("control.lost", socket=self.desk.socket_path)
        await self.close()
        if not ours:
            return  # said; the next sweep tries again
        try:
            await threads.call(f"runtime directory {directory}", self._make, PATIENCE)
            await self.open()
        except (OSError, WatchdogError):
            return  # the same
        self._said = False
        self.desk.log.event("control.reopened", socket=self.desk.socket_path)

    async def close(self) -> None:
        """Let go of everybody who talks."""
        await self._open.aclose()

    def _look(self) -> tuple[bool, bool]:
        """Whether the runtime directory is ours, and our socket lies there. In a thread: a directory may hang."""
        return self._locks.keep(), self._lies_there()

    def _make(self) -> None:
        settings = self.desk.settings
        ensure_directories(settings.state_dir, settings.runtime_dir)
        notify_directory(settings.runtime_dir)

    def _lies_there(self) -> bool:
        try:
            return os.stat(self.desk.socket_path).st_ino == self._inode
        except OSError:
            return False
