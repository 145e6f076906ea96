"""The agent's notify socket, owned by its `run`: read datagrams, say whose word each is, release barriers.

A message is the agent's, whichever process of its tree sent it and whether or not that still lives: the socket is its
own. The kernel tells who sent it; foreign uids are refused. Nothing here blocks.

Only its owner may write there: ten datagrams fill it (net.unix.max_dgram_qlen), so whoever may write there can keep
the agent's own messages out and have it killed for its silence. An agent that root started may drop to a user, to
which the socket is then given; so it is looked at, at first every 10 ms. Whoever speaks sooner is refused (EACCES).

The socket, or its directory, may be removed: `systemctl stop` of the daemon, logind at the last logout, a tidy
person. Then it is made again at the same path, which the agent has in its environment; programs that had connected to
the former one are still heard there.

Descriptors that come along are never received: close(2) of one calls its file system, and a FUSE server that does not
answer would hold us for ever. Without room for them the kernel drops them with the message (unix(7), MSG_CTRUNC), which
releases a BARRIER=1 as well.
"""

import os
import stat
import sys
from _collections_abc import Callable, Iterator
from _socket import (
    AF_UNIX,
    CMSG_SPACE,
    MSG_DONTWAIT,
    SCM_CREDENTIALS,
    SO_PASSCRED,
    SOCK_CLOEXEC,
    SOCK_DGRAM,
    SOCK_NONBLOCK,
    SOL_SOCKET,
    socket,
)

from watchdog.client.sockets import SYSTEM_SOCKET, directory_problem, user_directories
from watchdog.core.sd_notify import MAX_BYTES, Words, parse_datagram, words_of

Upstream = Callable[[dict[str, str], bool], None]  # a message's fields, and whether the main process sent it
_ROOM = CMSG_SPACE(12)  # struct ucred, which comes first (scm_recv), and nothing else
_PER_TURN = 64  # then signals get their turn, however fast another process writes
# Seconds between two looks at whether root's agent has dropped its uid: a tenth of its age, within these.
_SOONEST, _LATEST = 0.01, 10.0
LOOK_SECONDS = 5.0  # between two looks at whether the socket still lies there; less for an agent that promised more
FORMER = 4  # sockets whose place was lost, of which the newest are still read


class Inbox:
    """One bound datagram socket. `more` is True when the last look left something unread."""

    def __init__(self, path: str, upstream: Upstream | None = None, look_every: float = LOOK_SECONDS) -> None:
        """Bind `path`. `upstream` is given each message. Raises OSError."""
        self.path = path
        self.more = False
        self.lost = False  # the socket is gone from its path and could not be made again
        self._upstream = upstream
        self._look_every = look_every
        self._look_at = 0.0
        self._dropped_to: int | None = None  # the user that root's agent dropped to
        self._may_drop = os.getuid() == 0
        self._began: float | None = None  # when its agent was looked at first
        self._looks_at = 0.0
        self.refused = 0  # datagrams that were no message, or came from a foreign uid
        self._former: list[socket] = []  # bound to the same path before; programs may be connected to them
        self._socket, self._inode = _bound(path)

    def keep(self, now: float, watch: Callable[[int], None]) -> float:
        """Make the socket again where it does not lie at its path any more; when to be called again.

        `now`: monotonic seconds. `watch` is given the descriptor of a new one. What lies in the way is a closed socket
        or a stranger's file in a directory of our own.
        """
        if now < self._look_at:
            return self._look_at
        self._look_at = now + self._look_every
        if _inode(self.path) == self._inode:
            self.lost = False
            return self._look_at
        try:
            self._make_again()
        except OSError:
            self.lost = True
        else:
            self.lost = False
            watch(self._socket.fileno())
        return self._look_at

    def _make_again(self) -> None:
        notify = os.path.dirname(self.path)
        if not (prepared(os.path.dirname(notify)) and prepared(notify)):
            raise OSError(f"{notify} is not our own")
        if os.path.lexists(self.path):
            os.unlink(self.path)
        new, inode = _bound(self.path)
        if self._dropped_to is not None:
            os.chown(self.path, self._dropped_to, -1, follow_symlinks=False)
        self._former.append(self._socket)
        while len(self._former) > FORMER:
            self._former.pop(0).close()
        self._socket, self._inode = new, inode

    def fileno(self) -> int:
        """The descriptor, to ask for SIGIO on it."""
        return self._socket.fileno()

    def follow(self, agent_pid: int, now: float) -> float | None:
        """Give the socket to the user that root's agent has dropped to; the first one stays the only one.

        `now`, and when to be called again: monotonic seconds; None: no more. For an agent that is not waited for yet.
        """
        if not self._may_drop or not agent_pid:
            return None
        if self._began is None:
            self._began = self._looks_at = now
        if now >= self._looks_at:
            uid = _uid_of(agent_pid)
            if uid:
                self._dropped_to, self._may_drop = uid, False
                try:  # noqa: SIM105  contextlib costs memory
                    os.chown(self.path, uid, -1, follow_symlinks=False)
                except OSError:
                    pass  # it was removed: no process can send there any more
                return None
            self._looks_at = now + min(_LATEST, max(_SOONEST, (now - self._began) / 10))
        return self._looks_at

    def words(self, agent_pid: int) -> Iterator[Words]:
        """Yield what waits there and is a word of the agent's. A barrier is released after its message was taken."""
        self.more = False
        left = _PER_TURN
        for one in (*self._former, self._socket):
            while left:
                try:
                    data, ancillary, _, _ = one.recvmsg(MAX_BYTES + 1, _ROOM, MSG_DONTWAIT)
                except OSError:  # EAGAIN: empty
                    break
                left -= 1
                words = self._word(data, *_sender(ancillary), agent_pid)
                if words is not None:
                    yield words
        self.more = not left

    def close(self) -> None:
        """Close and remove the socket."""
        for one in (*self._former, self._socket):
            one.close()
        try:  # noqa: SIM105  contextlib costs memory
            os.unlink(self.path)
        except OSError:
            pass

    def _word(self, data: bytes, sender_pid: int, sender_uid: int, agent_pid: int) -> Words | None:
        if sender_uid not in (0, os.getuid(), self._dropped_to):
            self.refused += 1
            return None
        fields = parse_datagram(data)
        if not fields:
            self.refused += 1
            return None
        from_main = sender_pid == agent_pid != 0
        if self._upstream is not None:
            self._upstream(fields, from_main)
        return words_of(fields, from_main=from_main)


def open_inbox(
    control_socket: str, agent_id: str, upstream: Upstream | None = None, look_every: float = LOOK_SECONDS
) -> Inbox | None:
    """The agent's own socket, beside the control socket where that directory is ours, else in our runtime directory.

    Its name holds only the beginning of the id (`core.names.is_socket_of`): every user sees it (proc(5),
    /proc/net/unix), and until a daemon has registered the agent, any user could register that id. Nor is it ever an id,
    which others choose for theirs.

    None when no directory can be trusted or written; the agent is then watched by its process alone.
    """
    beside = os.path.dirname(control_socket)
    for directory in ([beside] if os.path.isdir(beside) else []) + user_directories():
        try:
            if prepared(directory) and prepared(f"{directory}/notify"):
                path = f"{directory}/notify/run-{agent_id[:8]}{os.urandom(12).hex()}"
                return Inbox(path, upstream, look_every)
        except OSError:  # for example a path that is too long for a socket
            continue
    return None


def prepared(directory: str) -> bool:
    """Make it where it is missing; False unless it is our own and no other user can write there."""
    system = os.path.dirname(SYSTEM_SOCKET)
    if not os.path.lexists(directory):
        os.mkdir(directory, 0o755 if directory in (system, f"{system}/notify") else 0o700)
    return directory_problem(directory, owners=(os.getuid(),)) is None


def _bound(path: str) -> tuple[socket, tuple[int, int] | None]:
    """A socket at that path to which its owner alone may write, and its inode. Raises OSError."""
    made = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK)
    mask = os.umask(0o177)
    try:
        made.setsockopt(SOL_SOCKET, SO_PASSCRED, 1)
        made.bind(path)
    except OSError:
        made.close()
        raise
    finally:
        os.umask(mask)
    return made, _inode(path)


def _inode(path: str) -> tuple[int, int] | None:
    """Device and inode of the socket that lies there; None where there is none, or none can be seen."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISSOCK(found.st_mode) else None


def _sender(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, int]:
    """Pid and uid of the sender of a datagram, as the kernel says."""
    for level, kind, content in ancillary:
        if level == SOL_SOCKET and kind == SCM_CREDENTIALS and len(content) >= 12:
            pid, uid, _ = _integers(content[:12])
            return pid, uid
    return 0, -1


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
