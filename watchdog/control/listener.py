"""The control socket and the notify sockets, kept open: an agent that cannot reach us must not be taken for stalled.

Tests: tests/e2e/test_channels.py.
"""

import os
import stat
from contextlib import AsyncExitStack, suppress

from watchdog.concurrency import threads
from watchdog.config.paths import ensure_directories, make_way, notify_directory
from watchdog.control.context import ControlContext
from watchdog.control.server import serve
from watchdog.errors import WatchdogError
from watchdog.host.fd_limit import FdExhaustion
from watchdog.host.instance_lock import InstanceLocks
from watchdog.intake.notify_sockets import Made, Places

PATIENCE = 1.0  # seconds for a check of the runtime directory, which a sweep waits for


class ControlSocket:
    """Serves the context at its path, and again when the socket or its directory was removed."""

    def __init__(self, context: ControlContext, locks: InstanceLocks | None) -> None:
        self.context = context
        self._sockets = context.registrar.tracker.sockets
        self._locks = locks
        self._open = AsyncExitStack()
        self._inode: int | None = None
        self._stamp: tuple[int, int, int] | None = None  # of the notify directory, when all lay there
        self._blocked: set[str] = set()  # agents of which it was logged that their socket cannot be made
        self._missing: dict[str, str] = {}  # agents whose socket is not there, and why it could not be made
        self._cut_off: set[str] = set()  # agents that could not reach us while our socket was gone
        self._said = False
        self._shortage = FdExhaustion(lambda: context.unheard(os.geteuid()), context.log)

    async def open(self) -> None:
        """Listen. Raises OSError when the socket cannot be made."""
        self._shortage.watch()
        self.context.recorder.new_events.reopen()
        await self._open.enter_async_context(serve(self.context))
        self._inode = os.stat(self.context.socket_path).st_ino

    async def keep(self) -> None:
        """Look whether our sockets are still at their paths; if not, no client can reach us: log that and listen again.

        While none can, no agent's silence is its own; afterwards each has one fresh limit. While the runtime
        directory is another daemon's, what lies there is that daemon's.
        """
        self._shortage.look()
        directory = self.context.settings.runtime_dir
        try:
            ours, there = await threads.call(f"runtime directory {directory}", self._look, PATIENCE)
        except threads.Unanswered:
            return  # logged as `call.stuck`; connected clients are heard, and no agent's path is known to be gone
        if there:
            await self._keep_notify(directory)
            return
        for agent in self.context.fleet:
            if agent.heartbeat.said.promised and not agent.heartbeat.silence.hindrance.channel_lost:
                agent.heartbeat.silence.lose_channel()
                self._cut_off.add(agent.agent_id)
        if not self._said:
            self._said = True
            self.context.log.event("control.lost", socket=self.context.socket_path)
        await self.close()
        self._inode = None  # what still lies there answers no client
        if not ours:
            return  # said; the next sweep tries again
        try:
            await threads.call(f"runtime directory {directory}", self._make, PATIENCE)
            await self.open()
        except (OSError, WatchdogError):
            return  # the same
        self._said = False
        self.context.log.event("control.reopened", socket=self.context.socket_path)
        await self._keep_notify(directory)
        for agent in filter(None, map(self.context.fleet.get, self._cut_off)):
            agent.heartbeat.silence.find_channel()
        self._cut_off.clear()

    async def _keep_notify(self, directory: str) -> None:
        """The agents' notify sockets likewise: the path to each is in its agent's environment.

        Those of `run` are made again by it. Whose cannot be made, its silence is the channel's until it is there.
        """
        notify = f"{directory}/notify/"
        fleet, sockets = self.context.fleet, self._sockets
        of_run = {
            agent.agent_id: agent.notify_socket
            for agent in fleet
            if agent.reg.source == "run" and agent.notify_socket and agent.notify_socket.startswith(notify)
        }
        places = sockets.places()
        if not places and not of_run:
            return
        try:
            found = await threads.call(f"runtime directory {directory}", lambda: self._made(places, of_run), PATIENCE)
        except threads.Unanswered:
            return
        if found is None:
            return
        made, missing = found
        adopted = sockets.adopt(made)
        for agent in filter(None, map(fleet.get, adopted)):
            agent.heartbeat.silence.find_channel()
            agent.heartbeat.silence.grant_fresh_limit()
        for agent in filter(None, map(fleet.get, missing.keys() - self._missing.keys())):
            agent.heartbeat.silence.lose_channel()
        for agent in filter(None, map(fleet.get, self._missing.keys() - missing.keys())):
            agent.heartbeat.silence.find_channel()
        self._tell(missing)
        self._missing = missing
        if adopted:
            self.context.log.event("agent.sockets_made_again", directory=notify, agents=len(adopted))

    def _tell(self, missing: dict[str, str]) -> None:
        """Whose socket cannot be made, and whose could at last."""
        for agent_id in missing.keys() | self._missing.keys():
            agent, why = self.context.fleet.get(agent_id), missing.get(agent_id)
            log = self.context.log.bind(agent_id=agent_id, name=agent.reg.name if agent is not None else None)
            if why and agent_id not in self._blocked:  # without a reason its `run` makes it again
                self._blocked.add(agent_id)
                log.event("agent.socket_blocked", why=why)
            elif why is None and agent_id in self._blocked:
                self._blocked.discard(agent_id)
                log.event("agent.socket_found")

    def _made(self, places: Places, of_run: dict[str, str]) -> tuple[Made, dict[str, str]] | None:
        """In a thread. None: the directory is as it was when all lay there; it changes with each that comes or goes."""
        notify = f"{self.context.settings.runtime_dir}/notify"
        stamp = _stamp(notify)
        if stamp is not None and stamp == self._stamp:
            return None
        if stamp is None:
            with suppress(OSError, WatchdogError):
                self._make()
        made, missing = self._sockets.made_again(places)
        missing |= {agent_id: _obstacle(path) for agent_id, path in of_run.items() if not _is_socket(path)}
        self._stamp = None if made or missing else stamp
        return made, missing

    async def close(self) -> None:
        """Close the connections of all clients."""
        await self._open.aclose()

    def _look(self) -> tuple[bool, bool]:
        """Whether the runtime directory is ours, and our socket lies there. In a thread: a directory may hang."""
        return self._locks is None or self._locks.keep(), self._lies_there()

    def _make(self) -> None:
        settings = self.context.settings
        ensure_directories(settings.state_dir, settings.runtime_dir)
        notify_directory(settings.runtime_dir)

    def _lies_there(self) -> bool:
        try:
            return os.stat(self.context.socket_path).st_ino == self._inode
        except OSError:
            return False


def _stamp(directory: str) -> tuple[int, int, int] | None:
    try:
        found = os.lstat(directory)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _obstacle(path: str) -> str:
    """What keeps `run` from making its agent's socket, after a try to move it away; "" where nothing does."""
    try:
        if os.path.lexists(path) and not _is_socket(path):
            make_way(path, os.path.dirname(os.path.dirname(path)))
        os.listdir(os.path.dirname(path))
    except OSError as error:
        return f"{path}: {error.strerror}"
    return ""


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False
