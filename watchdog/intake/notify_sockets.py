"""The daemon's notify sockets: one per agent, so that a message belongs to that agent, whichever process sent it.

The protocol is sd_notify(3): newline-separated KEY=VALUE in one datagram, with the sender's credentials attached by the
kernel (unix(7), SCM_CREDENTIALS), which stay right when the sender has exited. After a quiet moment a message is read
at once; later ones are read together four times a second, a bounded number per agent and per user: a wake-up costs more
than a beat, and a flood then fills only the sockets of its own user. Unread messages wait there: the socket that has
waited longest comes first, so that the last message of each agent is delayed only a little.

Descriptors in a message are never received: closing one calls its file system (`flush` in filp_close), and a FUSE
server that does not answer would block the loop for ever. Without room for them the kernel drops them with the message
(unix(7), MSG_CTRUNC), which also completes a BARRIER=1.

If a socket, or the whole directory, is removed while the daemon runs, it is made again at the same path; programs
connected to the former socket are still heard. A directory in a socket's place is moved aside.

Most libraries connect once, so the service manager keeps the sockets while the daemon restarts (FDSTORE, sd_notify(3)):
messages wait in them, and the next daemon reads them. Without such a manager they are made again.
"""

import asyncio
import os
import select
import socket
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from watchdog.config.paths import make_way
from watchdog.core.sd_notify import MAX_BYTES
from watchdog.host.service_manager import ServiceManager

REST = 0.25  # seconds between two reads of the sockets; `systemd-notify` waits for the next one (BARRIER=1)
BUDGET = 64  # datagrams per read; a plain kernel queues 10 (net.unix.max_dgram_qlen), systemd raises it to 512
UCRED = struct.Struct("3i")
_ROOM = socket.CMSG_SPACE(UCRED.size)  # the credentials come first (scm_recv), and nothing else has room
Places = dict[str, tuple[tuple[int, int], int]]  # by agent: (device, inode) of its socket, and its owner's uid
Made = dict[str, tuple[socket.socket, tuple[int, int]]]
_TRUNCATED = int(socket.MSG_TRUNC)  # as an int: `&` with an enum member costs as much as the rest of a datagram


@dataclass(frozen=True, slots=True)
class Message:
    """One datagram with the kernel's credentials. `data`: at most MAX_BYTES bytes; `truncated`: there were more."""

    data: bytes
    pid: int
    uid: int
    truncated: bool


class MessageBudget(Protocol):
    """How many messages of each user are read (`admission.DatagramBudget`)."""

    def renew(self) -> bool:
        """A read begins. Returns whether messages were left unread at the last one."""

    def take(self, owner_uid: int) -> bool:
        """Whether one more message of that owner may be read now."""


class NotifySockets:
    """Owns `<directory>/<agent_id>` for each agent that has no `run` wrapper to own it."""

    def __init__(
        self,
        directory: str,
        receive: Callable[[str, Message], None] | None = None,
        supervisor: ServiceManager | None = None,
        budget: MessageBudget | None = None,
    ) -> None:
        """`receive`: see `listen`. `budget` None: all users' messages are read alike."""
        self._directory = directory
        self._receive = receive or _drop
        self._supervisor = supervisor or ServiceManager({})
        self._kept = self._supervisor.handed_over()
        self._sockets: dict[str, socket.socket] = {}
        self._agents: dict[int, str] = {}  # by descriptor
        self._owners: dict[int, int] = {}  # uids, by descriptor
        self._served: dict[int, int] = {}  # by descriptor: number of the last read that took a message there
        self._number = 0
        self._inodes: dict[str, tuple[int, int]] = {}  # by agent: device and inode of the socket bound at its path
        self._former: dict[str, socket.socket] = {}  # by agent: the socket before, which lost its path
        self.budget = budget  # None: all users' messages are read alike
        self._ready = select.epoll()  # itself readable while one of the sockets is (epoll(7))
        self._looked = float("-inf")  # by the loop's clock
        self._resting: asyncio.TimerHandle | None = None

    def listen(self, receive: Callable[[str, Message], None]) -> None:
        """Set the receiver of each message, called with the agent's id."""
        self._receive = receive

    def open(self, agent_id: str, owner_uid: int) -> str:
        """Make the agent's socket, which only its owner (and root) can write to, and return its path.

        A stale one at that path is replaced. Raises OSError when the directory is unusable or descriptors are
        exhausted.
        """
        path = os.path.join(self._directory, agent_id)
        if agent_id in self._sockets:
            return path
        listener, inode = self._bound(path, owner_uid)
        self._listen(agent_id, listener, owner_uid, inode)
        self._supervisor.keep(kept_name(agent_id), listener)
        return path

    def _bound(self, path: str, owner_uid: int) -> tuple[socket.socket, tuple[int, int]]:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            make_way(path, os.path.dirname(self._directory))
            listener.bind(path)
            os.chmod(path, 0o600)
            self._give(path, owner_uid)
            return listener, _inode(path)
        except OSError:
            listener.close()
            raise

    def places(self) -> Places:
        """The expected content of the directory: by agent, device and inode of its socket, and its owner."""
        return {
            agent_id: (inode, self._owners[self._sockets[agent_id].fileno()])
            for agent_id, inode in self._inodes.items()
        }

    def made_again(self, places: Places) -> tuple[Made, dict[str, str]]:
        """Bind again those of `places` that are no longer in the directory; `adopt` starts to read them.

        Also returns the agents for which that failed, with the reason. For a thread: a directory may hang.
        """
        made: Made = {}
        missing: dict[str, str] = {}
        for agent_id, (inode, owner_uid) in places.items():
            path = os.path.join(self._directory, agent_id)
            with suppress(OSError):
                if _inode(path) == inode:
                    continue
            try:
                made[agent_id] = self._bound(path, owner_uid)
            except OSError as error:
                missing[agent_id] = f"{path}: {error.strerror}"
        return made, missing

    def adopt(self, made: Made) -> list[str]:
        """Read these sockets from now on, and the former ones for connected programs; returns their agents."""
        adopted = []
        for agent_id, (listener, inode) in made.items():
            former = self._sockets.get(agent_id)
            if former is None:  # its row was closed meanwhile
                listener.close()
                with suppress(OSError):
                    os.unlink(os.path.join(self._directory, agent_id))
                continue
            owner_uid = self._owners[former.fileno()]
            self._close_former(agent_id)
            self._former[agent_id] = former
            self._listen(agent_id, listener, owner_uid, inode)
            self._supervisor.discard(kept_name(agent_id))
            self._supervisor.keep(kept_name(agent_id), listener)
            adopted.append(agent_id)
        return adopted

    def _close_former(self, agent_id: str) -> None:
        former = self._former.pop(agent_id, None)
        if former is not None:
            self._forget(former)

    def has_kept(self, agent_id: str) -> bool:
        """Whether the service manager kept a socket under this agent's name."""
        return kept_name(agent_id) in self._kept

    def take_up(self, agent_id: str) -> bool:
        """Continue with the socket that the service manager kept, if there is one; connected clients stay heard.

        A descriptor is only a number and a name: it must be a datagram socket bound to this agent's path, which must
        still be there, since other programs find it by path. Otherwise it is closed, and the caller must open a new
        one.
        """
        listener = self._kept.pop(kept_name(agent_id), None)
        if listener is None:
            return False
        if not _bound_to(listener, os.path.join(self._directory, agent_id)):
            self._drop(kept_name(agent_id), listener)
            return False
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        inode = _inode(os.path.join(self._directory, agent_id))
        self._listen(agent_id, listener, 0, inode)  # 0: unknown until `give`
        return True

    def drop_kept(self) -> None:
        """Close kept sockets that were not taken up: their agents' rows were closed meanwhile."""
        for name, listener in self._kept.items():
            self._drop(name, listener)
        self._kept.clear()

    def _listen(self, agent_id: str, listener: socket.socket, owner_uid: int, inode: tuple[int, int]) -> None:
        self._sockets[agent_id], self._inodes[agent_id] = listener, inode
        self._agents[listener.fileno()] = agent_id
        self._owners[listener.fileno()] = owner_uid
        self._ready.register(listener, select.EPOLLIN)
        if self._resting is None:
            asyncio.get_running_loop().add_reader(self._ready, self._readable)

    def _drop(self, name: str, listener: socket.socket) -> None:
        listener.close()
        self._supervisor.discard(name)

    def give(self, agent_id: str, owner_uid: int) -> None:
        """The agent runs as another uid now, which may write to its socket."""
        if agent_id in self._sockets:
            self._owners[self._sockets[agent_id].fileno()] = owner_uid
            self._give(os.path.join(self._directory, agent_id), owner_uid)

    @staticmethod
    def _give(path: str, owner_uid: int) -> None:
        if os.geteuid() != owner_uid:
            try:
                os.chown(path, owner_uid, -1)
            except PermissionError:  # a root without CAP_CHOWN: the credentials are checked all the same
                os.chmod(path, 0o666)  # noqa: S103 - `AgentTracker` accepts only the owner and root

    def close(self, agent_id: str) -> None:
        """Read the remaining messages, then remove the socket."""
        listener = self._sockets.get(agent_id)
        if listener is None:
            return
        self.drain(agent_id)
        self._release(agent_id)
        self._supervisor.discard(kept_name(agent_id))
        with suppress(FileNotFoundError):  # the runtime directory was removed
            os.unlink(os.path.join(self._directory, agent_id))

    def close_all(self) -> None:
        """Release the sockets; their paths stay, so that clients reach the next daemon."""
        for agent_id in list(self._sockets):
            self.drain(agent_id)
            self._release(agent_id)
        if self._resting is not None:
            self._resting.cancel()
        asyncio.get_running_loop().remove_reader(self._ready)
        self._ready.close()

    def drain(self, agent_id: str) -> None:
        """Read the messages that wait on one agent's socket now."""
        listener = self._sockets.get(agent_id)
        if listener is not None:
            if (former := self._former.get(agent_id)) is not None:
                self._read(agent_id, former, BUDGET)
            self._read(agent_id, listener, BUDGET)

    def drain_all(self) -> bool:
        """Read the messages that wait on all sockets now, within the budgets: one of each in turn.

        A user whose budget is used up waits for the next read. False when nothing waited.
        """
        budget = self.budget
        behind = budget is not None and budget.renew()
        for number in range(BUDGET):
            ready = self._ready.poll(0, max(1, len(self._agents)))
            if not ready:
                return number > 0
            if behind:
                ready.sort(key=lambda event: self._served.get(event[0], 0))
            read = False
            for descriptor, _ in ready:
                agent_id = self._agents.get(descriptor)  # None: closed while an earlier one was read
                if agent_id is None or (budget is not None and not budget.take(self._owners[descriptor])):
                    continue
                read = True
                self._number += 1
                self._served[descriptor] = self._number
                former = self._former.get(agent_id)
                is_former = former is not None and former.fileno() == descriptor
                self._read(agent_id, former if former is not None and is_former else self._sockets[agent_id], 1)
            if not read:
                break
        return True

    def _release(self, agent_id: str) -> None:
        self._close_former(agent_id)
        del self._inodes[agent_id]
        self._forget(self._sockets.pop(agent_id))

    def _forget(self, listener: socket.socket) -> None:
        del self._agents[listener.fileno()], self._owners[listener.fileno()]
        self._served.pop(listener.fileno(), None)
        self._ready.unregister(listener)  # closing it does not: the service manager may hold it too
        listener.close()

    def _readable(self) -> None:
        """Read at once, if the last read is long enough ago; without a timer, which costs as much as all the rest."""
        loop = asyncio.get_running_loop()
        rest = self._looked + REST - loop.time()
        if rest > 0:
            loop.remove_reader(self._ready)
            self._resting = loop.call_later(rest, self._look)
        else:
            self._looked = loop.time()
            self.drain_all()

    def _look(self) -> None:
        """Read, and again after `REST`; when nothing waited then, the next message is read at once."""
        loop = asyncio.get_running_loop()
        self._looked = loop.time()
        self._resting = loop.call_later(REST, self._look)  # first, so that an error cannot stop the reads
        if not self.drain_all():
            self._resting.cancel()
            self._resting = None
            loop.add_reader(self._ready, self._readable)

    def _read(self, agent_id: str, listener: socket.socket, most: int) -> None:
        for _ in range(most):
            message = receive(listener)
            if message is None:
                return
            self._receive(agent_id, message)


def kept_name(agent_id: str) -> str:
    """The name of an agent's socket in the service manager's store (FDNAME=, at most 255 bytes, no `:`)."""
    return f"notify-{agent_id}"


def _inode(path: str) -> tuple[int, int]:
    """Device and inode of the file at that path. Raises OSError."""
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _bound_to(listener: socket.socket, path: str) -> bool:
    try:
        fits = (listener.family, listener.type) == (socket.AF_UNIX, socket.SOCK_DGRAM)
        return fits and listener.getsockname() == path and stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def receive(listener: socket.socket) -> Message | None:
    """One datagram with its credentials; None: none waits."""
    try:
        data, ancillary, flags, _ = listener.recvmsg(MAX_BYTES + 1, _ROOM)
    except (BlockingIOError, InterruptedError):
        return None
    pid, uid = 0, -1
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(payload) >= UCRED.size:
            pid, uid, _gid = UCRED.unpack(payload[: UCRED.size])
    truncated = bool(flags & _TRUNCATED) or len(data) > MAX_BYTES
    return Message(data[:MAX_BYTES], pid, uid, truncated)


def _drop(agent_id: str, message: Message) -> None:
    """The receiver before `listen`: drops messages."""
