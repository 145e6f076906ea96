"""The agent's notify socket, owned by its `run`: read datagrams, say whose word each is, release barriers.

A message is the agent's whoever of its tree sent it and whether he still lives: the socket is its own. The kernel tells
who sent it; foreign uids are refused. Nothing here blocks.
"""

import os
import sys
from _collections_abc import Iterator
from _socket import (
    AF_UNIX,
    CMSG_SPACE,
    MSG_CMSG_CLOEXEC,
    MSG_DONTWAIT,
    SCM_CREDENTIALS,
    SCM_RIGHTS,
    SO_PASSCRED,
    SOCK_CLOEXEC,
    SOCK_DGRAM,
    SOCK_NONBLOCK,
    SOL_SOCKET,
    socket,
)

from watchdog.control.client import SYSTEM_SOCKET, directory_problem, user_directories
from watchdog.core.notify import MAX_BYTES, Words, parse_datagram, words_of

_ROOM = CMSG_SPACE(12) + CMSG_SPACE(4 * 253)  # struct ucred, and as many descriptors as one message may carry (unix(7))
_PER_TURN = 64  # then signals get their turn, however fast somebody writes


class Inbox:
    """One bound datagram socket. `more` is True when the last look left something unread."""

    def __init__(self, path: str) -> None:
        """Bind `path`. Raises OSError."""
        self.path = path
        self.more = False
        self._dropped_to: int | None = None  # the user to whom the agent of root's dropped
        self.refused = 0  # datagrams that were no message, or came from a foreign uid
        self._socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK)
        self._socket.setsockopt(SOL_SOCKET, SO_PASSCRED, 1)
        mask = os.umask(0o177)
        try:
            self._socket.bind(path)
        finally:
            os.umask(mask)
        if os.getuid() == 0:
            os.chmod(path, 0o666)  # noqa: S103  the agent may drop to another uid; the sender's uid is checked below

    def fileno(self) -> int:
        """The descriptor, to ask for SIGIO on it."""
        return self._socket.fileno()

    def words(self, agent_pid: int) -> Iterator[Words]:
        """Yield what waits there and is a word of the agent's. A barrier is released after its message was taken."""
        self.more = False
        for _ in range(_PER_TURN):
            try:
                data, ancillary, _, _ = self._socket.recvmsg(MAX_BYTES + 1, _ROOM, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)
            except OSError:  # EAGAIN: empty
                return
            received: list[int] = []
            try:
                sender_pid, sender_uid = 0, -1
                for level, kind, content in ancillary:
                    if level == SOL_SOCKET and kind == SCM_CREDENTIALS:
                        sender_pid, sender_uid, _ = _integers(content)
                    elif level == SOL_SOCKET and kind == SCM_RIGHTS:
                        received += _integers(content)
                words = self._word(data, sender_pid, sender_uid, agent_pid)
                if words is not None:
                    yield words
            finally:
                for descriptor in received:
                    os.close(descriptor)
        self.more = True

    def close(self) -> None:
        """Close and remove the socket."""
        self._socket.close()
        try:  # noqa: SIM105  contextlib costs memory
            os.unlink(self.path)
        except OSError:
            pass

    def _word(self, data: bytes, sender_pid: int, sender_uid: int, agent_pid: int) -> Words | None:
        if sender_uid not in (0, os.getuid()) and not self._is_its_user(sender_uid, agent_pid):
            self.refused += 1
            return None
        fields = parse_datagram(data)
        if not fields:
            self.refused += 1
            return None
        return words_of(fields, from_main=sender_pid == agent_pid)

    def _is_its_user(self, uid: int, agent_pid: int) -> bool:
        """Whether our agent, which root started, has dropped to that user; the first one stays the only one."""
        if self._dropped_to is None and os.getuid() == 0:
            self._dropped_to = _uid_of(agent_pid) or None
        return self._dropped_to == uid


def open_inbox(control_socket: str, agent_id: str) -> Inbox | None:
    """The agent's own socket, beside the control socket where that directory is ours, else in our runtime directory.

    None when no directory can be trusted or written; the agent is then watched by its process alone.
    """
    beside = os.path.dirname(control_socket)
    for directory in ([beside] if os.path.isdir(beside) else []) + user_directories():
        try:
            if prepared(directory) and prepared(f"{directory}/notify"):
                return Inbox(f"{directory}/notify/{agent_id}")
        except OSError:  # for example a path that is too long for a socket
            continue
    return None


def prepared(directory: str) -> bool:
    """Make it where it is missing; False unless it is our own and nobody else can write there."""
    system = os.path.dirname(SYSTEM_SOCKET)
    if not os.path.lexists(directory):
        os.mkdir(directory, 0o755 if directory in (system, f"{system}/notify") else 0o700)
    return directory_problem(directory, owners=(os.getuid(),)) is None


def _integers(content: bytes) -> list[int]:
    whole = len(content) - len(content) % 4
    return [int.from_bytes(content[i : i + 4], sys.byteorder, signed=True) for i in range(0, whole, 4)]


def _uid_of(pid: int) -> int | None:
    """The one uid that a process runs as now; None when its four differ, or cannot be read."""
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            for line in status:
                if line.startswith(b"Uid:"):
                    uids = line.split()[1:]
                    return int(uids[0]) if uids.count(uids[0]) == 4 else None
    except OSError:
        pass
    return None
