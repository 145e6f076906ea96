"""The agent's notify socket, owned by its `run`: reads datagrams, identifies their senders, releases barriers.

Any process of the agent's tree may send its messages, even if it has exited since: the socket belongs to the agent. The
kernel identifies the sender; foreign uids are refused. Nothing here blocks.

Only its owner may write to it: ten datagrams fill it (net.unix.max_dgram_qlen), so anyone who may write could keep the
agent's own messages out and get it killed for silence. An agent started by root may drop to a user, which is then
given the socket; so its uid is checked, at first every 10 ms. A message sent before that fails (EACCES).

The socket, or its directory, may be removed: by `systemctl stop` of the daemon, by logind at the last logout, by a
person. Then it is made again at the same path, which the agent has in its environment; programs that had connected to
the former one are still read there.

Passed descriptors are never received: close(2) of one calls its file system, and a FUSE server that does not answer
would block us for ever. Without buffer space the kernel drops them with the message (unix(7), MSG_CTRUNC), which also
releases a BARRIER=1.
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
_ROOM = CMSG_SPACE(12)  # space for struct ucred, which comes first (scm_recv), and nothing else
_PER_TURN = 64  # messages per turn; then signals are handled, however fast another process writes
# Seconds between two checks whether root's agent has dropped its uid: a tenth of its age, within these limits.
_SOONEST, _LATEST = 0.01, 10.0
LOOK_SECONDS = 5.0  # between two checks that the socket still exists; less for an agent with a shorter promise
FORMER = 4  # newest removed sockets that are still read


class Inbox:
    """One bound datagram socket. `more` is True if the last read left something."""

    def __init__(self, path: str, upstream: Upstream | None = None, look_every: float = LOOK_SECONDS) -> None:
        """Bind `path`. `upstream` is called with each message. Raises OSError."""
        self.path = path
        self.more = False
        self.lost = False  # the socket is gone from its path and could not be made again
        self._upstream = upstream
        self._look_every = look_every
        self._look_at = 0.0
        self._dropped_to: int | None = None  # the user that root's agent dropped to
        self._may_drop = os.getuid() == 0
        self._began: float | None = None  # when its agent's uid was first checked
        self._looks_at = 0.0
        self.refused = 0  # datagrams that were invalid or from a foreign uid
        self._former: list[socket] = []  # bound to the same path before; programs may be connected to them
        self._socket, self._inode = _bound(path)

    def keep(self, now: float, watch: Callable[[int], None]) -> float:
        """Make the socket again if it is no longer at its path; return when to call this again.

        `now`: monotonic seconds. `watch` is called with the descriptor of a new one. Anything else at the path is a
        closed socket or a foreign file in a directory of our own, and is replaced.
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
        """The descriptor, for SIGIO."""
        return self._socket.fileno()

    def follow(self, agent_pid: int, now: float) -> float | None:
        """Give the socket to the user that root's agent has dropped to; only once.

        Takes and returns monotonic seconds: now, and when to call this again; None: never. The agent must not have been
        reaped yet.
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
                    pass  # it was removed: no process can send to it
                return None
            self._looks_at = now + min(_LATEST, max(_SOONEST, (now - self._began) / 10))
        return self._looks_at

    def words(self, agent_pid: int) -> Iterator[Words]:
        """Yield the agent's waiting messages. A barrier is released after its message was handled."""
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
    """The agent's own socket, next to the control socket if that directory is ours, else in our runtime directory.

    Its name contains only the start of the id (`core.names.is_socket_of`): all users can see it (proc(5),
    /proc/net/unix), and until a daemon has registered the agent, any user could register that id. It also never equals
    an id that others may choose.

    None when no directory can be trusted or written; the agent is then watched by its process alone.
    """
    beside = os.path.dirname(control_socket)
    for directory in ([beside] if os.path.isdir(beside) else []) + user_directories():
        try:
            if prepared(directory) and prepared(f"{directory}/notify"):
                path = f"{directory}/notify/run-{agent_id[:8]}{os.urandom(12).hex()}"
                return Inbox(path, upstream, look_every)
        except OSError:  # for example the path is too long for a socket
            continue
    return None


def prepared(directory: str) -> bool:
    """Make it if it is missing; False unless it is our own and writable for no other user."""
    system = os.path.dirname(SYSTEM_SOCKET)
    if not os.path.lexists(directory):
        os.mkdir(directory, 0o755 if directory in (system, f"{system}/notify") else 0o700)
    return directory_problem(directory, owners=(os.getuid(),)) is None


def _bound(path: str) -> tuple[socket, tuple[int, int] | None]:
    """A socket at that path that only its owner may write to, and its inode. Raises OSError."""
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
    """Device and inode of the socket at that path; None if there is none, or it is not visible."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISSOCK(found.st_mode) else None


def _sender(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, int]:
    """Pid and uid of a datagram's sender, according to the kernel."""
    for level, kind, content in ancillary:
        if level == SOL_SOCKET and kind == SCM_CREDENTIALS and len(content) >= 12:
            pid, uid, _ = _integers(content[:12])
            return pid, uid
    return 0, -1


def _integers(content: bytes) -> list[int]:
    whole = len(content) - len(content) % 4
    return [int.from_bytes(content[i : i + 4], sys.byteorder, signed=True) for i in range(0, whole, 4)]


def _uid_of(pid: int) -> int | None:
    """The uid of a process; None if its four uids differ, or cannot be read."""
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            for line in status:
                if line.startswith(b"Uid:"):
                    uids = line.split()[1:]
                    return int(uids[0]) if uids.count(uids[0]) == 4 else None
    except OSError:
        pass
    return None
