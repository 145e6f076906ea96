"""Who speaks on a connection, told by the kernel, and how many connections he may hold.

Nothing that a client writes says who it is. A slow or hostile client costs its own uid's connections and nobody
else's: `Gate` counts them per uid, keeps a share of the descriptors for pidfds, and cuts whoever does not begin.
Whoever follows the history has places of its own; and a connection that was refused for a limit may have carried a
heartbeat, so `unheard` is told whose it was.
"""

import asyncio
import json
import os
import resource
import socket
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

from watchdog import nss
from watchdog.errors import TooMany

_SO_PEERGROUPS = 59  # linux/asm-generic/socket.h, Linux 4.13; Python has no name for it
_UCRED = struct.Struct("iII")
Key = TypeVar("Key")

PER_UID = 32
RESERVED = 8  # beyond these for root and our own uid, one a process: an operator can ask whatever another one holds
FOLLOWERS = 32  # of one uid: connections that follow the history, not counted among the others
FIRST_BYTE_SECONDS = 5.0
REQUEST_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end, as it was when it connected (unix(7), SO_PEERCRED).

    `admin`: acts on everybody's agents: root, the uid of a user's own daemon, members of `control.admin_group`.
    """

    uid: int
    gid: int
    pid: int
    admin: bool = False

    @property
    def by(self) -> str:
        """How events name it."""
        return f"uid {self.uid}"

    def may(self, owner_uid: int) -> bool:
        """Whether it may act on that owner's agents and see their evidence."""
        return self.admin or self.uid == owner_uid


def peer_of(connection: socket.socket, admin_group: str = "") -> Peer:
    """Read the credentials of a connected unix socket. Raises OSError when the kernel does not tell."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(raw)
    own = os.geteuid()
    admin = uid == 0 or (own != 0 and uid == own) or _in_group(connection, gid, admin_group)
    return Peer(uid, gid, pid, admin)


def _in_group(connection: socket.socket, gid: int, name: str) -> bool:
    """Whether the peer was a member of the group when it connected; a group that does not exist has no members."""
    if not name:
        return False
    wanted = nss.gid_of(name)
    if wanted is None:
        return False
    if gid == wanted:
        return True
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 1024)  # the most that Python lets us ask for
    except OSError:
        return False  # over 256 groups (ERANGE), or an older kernel: no proof of membership
    return wanted in struct.unpack(f"{len(raw) // 4}I", raw)


class Gate:
    """Counts connections and makes a guarded protocol for each. Used as the protocol factory of the server."""

    def __init__(
        self,
        inner: Callable[[], asyncio.Protocol],
        *,
        per_uid: int = PER_UID,
        first_byte_seconds: float = FIRST_BYTE_SECONDS,
        request_seconds: float = REQUEST_SECONDS,
        total: int | None = None,
        unheard: Callable[[int], None] | None = None,
    ) -> None:
        """`total` bounds the connections of all but root and the daemon's own uid (default: a quarter of the limit).

        `unheard` is called with the uid of each connection that a limit refuses.
        """
        self.inner = inner
        self.unheard = unheard
        self.per_uid = per_uid
        self.first_byte_seconds = first_byte_seconds
        self.request_seconds = request_seconds
        self.total = total or max(2 * per_uid, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self.open: Counter[int] = Counter()
        self.processes: Counter[tuple[int, int]] = Counter()  # the same, of one uid and pid
        self.followers: Counter[int] = Counter()

    def __call__(self) -> asyncio.Protocol:
        return Guarded(self)

    def enter(self, peer: Peer) -> str | None:
        """Count a connection, or say why it is refused."""
        refusal = self._refusal(peer)
        if refusal is None:
            self.open[peer.uid] += 1
            self.processes[peer.uid, peer.pid] += 1
        elif self.unheard is not None:
            self.unheard(peer.uid)
        return refusal

    def _refusal(self, peer: Peer) -> str | None:
        ours = peer.uid in (0, os.geteuid())
        reserved = RESERVED if ours and not self.processes[peer.uid, peer.pid] else 0
        if self.open[peer.uid] >= self.per_uid + reserved:
            return f"uid {peer.uid} has {self.open[peer.uid]} connections open already; close some, or try again"
        if not ours and self.open.total() + self.followers.total() >= self.total:
            return "the daemon has too many connections open; try again"
        return None

    def follow(self, peer: Peer) -> str | None:
        """Count an entered connection as a follower's from now on, or say why it is none."""
        if self.followers[peer.uid] >= FOLLOWERS:
            return f"uid {peer.uid} follows the history {FOLLOWERS} times already; end one, or ask without follow"
        self.followers[peer.uid] += 1
        self.leave(peer)
        return None

    def leave(self, peer: Peer) -> None:
        """A counted connection has ended."""
        _less(self.open, peer.uid)
        _less(self.processes, (peer.uid, peer.pid))

    def leave_following(self, peer: Peer) -> None:
        """A follower's connection has ended."""
        _less(self.followers, peer.uid)


def _less(counts: Counter[Key], key: Key) -> None:
    counts[key] -= 1
    if counts[key] <= 0:
        del counts[key]


class Guarded(asyncio.Protocol):
    """Stands before aiohttp's protocol: asks the gate first, and wants the head of a request in time."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._inner: asyncio.Protocol | None = None
        self._peer: Peer | None = None
        self._follows = False
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        try:
            peer = peer_of(transport.get_extra_info("socket"))
        except OSError:  # it has gone already
            self._transport.abort()
            return
        refusal = self._gate.enter(peer)
        if refusal is not None:
            body = json.dumps({"error": TooMany.code, "message": refusal}) + "\n"
            self._transport.write(
                b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(body), body.encode())
            )
            self._transport.close()
            return
        self._peer = peer
        self._inner = self._gate.inner()
        self._inner.connection_made(transport)
        self._expect(self._gate.first_byte_seconds)

    def follow(self) -> str | None:
        """From now on this connection follows the history; or why it may not."""
        if self._peer is None or self._follows:
            return None
        refusal = self._gate.follow(self._peer)
        self._follows = refusal is None
        return refusal

    def data_received(self, data: bytes) -> None:
        if self._inner is None:
            return
        if self._timer is not None:
            # The whole head within one deadline that no trickle of bytes moves.
            if not self._head:
                self._expect(self._gate.request_seconds)
            self._head = (self._head + data)[-4096:]
            if b"\r\n\r\n" in self._head:
                self._timer.cancel()
                self._timer = None
                self._head = b""
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._inner is not None else None

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._peer is not None:
            (self._gate.leave_following if self._follows else self._gate.leave)(self._peer)
            self._peer = None
        if self._inner is not None:
            self._inner.connection_lost(exc)

    def _expect(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        assert self._transport is not None
        self._timer = asyncio.get_running_loop().call_later(seconds, self._transport.abort)
