"""Which user is behind a connection, as the kernel says, and how many connections a user may hold.

Nothing that a client writes says who it is. A slow or hostile client uses up its own user's connections and no other
user's: `ConnectionLimiter` counts them per uid and per user, keeps a share of the descriptors for pidfds and some for
root, and closes a connection that does not begin. A request is charged before it is parsed: one that has to be refused,
or to wait for its tokens, stays unread meanwhile. A client that only connects pays as well: `Listener` closes the
connections of a user that connects more often than it could send requests. Clients that follow the history are counted
separately. A connection that was refused for a limit may have carried a heartbeat, so `unheard` gets its uid.
"""

import asyncio
import json
import os
import resource
import socket
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar, cast

from watchdog.agents.admission import Admission, retry_after
from watchdog.core.admission import WAIT, LimitKind, cost_of, may_take
from watchdog.core.peer import Peer
from watchdog.errors import Limited, TooMany
from watchdog.helpers import nss
from watchdog.host.fd_limit import reserved

_SO_PEERGROUPS = 59  # linux/asm-generic/socket.h, Linux 4.13; Python has no name for it
_UCRED = struct.Struct("iII")
Key = TypeVar("Key")

PER_UID = 32
RESERVED = 8  # more for root and our own uid, one a process: an operator gets one, however many others are held
FOLLOWERS = 32  # of one uid: connections that follow the history, not counted among the others
FIRST_BYTE_SECONDS = 5.0
REQUEST_SECONDS = 30.0
MAX_LINE = 8190  # bytes of a request's first line, as aiohttp
BACKLOG = 4096  # connections that wait to be accepted; the kernel's own limit (net.core.somaxconn) since Linux 5.4
DROPS = 256  # connections that are hung up on before the loop does something else: 4 ms


def peer_of(connection: socket.socket, admin_group: str = "") -> Peer:
    """Read the credentials of a connected unix socket. Raises OSError if the kernel does not give them."""
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


@dataclass(slots=True)
class OpenConnections:
    """How many connections each uid, and each user that is not exempt, has."""

    uids: Counter[int] = field(default_factory=Counter)
    users: Counter[int] = field(default_factory=Counter)
    everyone: int = 0  # the exempt left out

    def add(self, uid: int, user: int | None) -> None:
        self.uids[uid] += 1
        if user is not None:
            self.users[user] += 1
            self.everyone += 1

    def drop(self, uid: int, user: int | None) -> None:
        _less(self.uids, uid)
        if user is not None:
            _less(self.users, user)
            self.everyone -= 1


class ConnectionLimiter:
    """Counts connections and makes a guarded protocol for each. Used as the protocol factory of the server."""

    def __init__(
        self,
        inner: Callable[[], asyncio.Protocol],
        *,
        per_uid: int = PER_UID,
        first_byte_seconds: float = FIRST_BYTE_SECONDS,
        request_seconds: float = REQUEST_SECONDS,
        unheard: Callable[[int], None] | None = None,
        admission: Admission | None = None,
        admin_group: Callable[[], str] = str,
    ) -> None:
        """`unheard` is called with the uid of each connection that a limit refuses. No `admission`: no user's share."""
        self.inner = inner
        self.unheard = unheard
        self.per_uid = per_uid
        self.first_byte_seconds = first_byte_seconds
        self.request_seconds = request_seconds
        self.admission = admission
        self.admin_group = admin_group
        self.descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.total = max(2 * per_uid, self.descriptors // 4)  # of all but root and the daemon's own uid
        self.open = OpenConnections()
        self.processes: Counter[tuple[int, int]] = Counter()  # the same, of one uid and pid
        self.followers = OpenConnections()

    def __call__(self) -> asyncio.Protocol:
        return Guarded(self)

    def user_of(self, uid: int) -> int | None:
        """The user whose share its connections count for; None: no user's."""
        if uid in (0, os.geteuid()):
            return None
        return uid if self.admission is None else self.admission.user_of(uid)

    def enter(self, peer: Peer, user: int | None, descriptor: int = 0) -> str | None:
        """Count a connection, or say why it is refused. `descriptor`: its number, which says how few are left."""
        refusal = self._refusal(peer, user, descriptor)
        if refusal is None:
            self.open.add(peer.uid, user)
            self.processes[peer.uid, peer.pid] += 1
        else:
            self._refused(peer.uid, user, LimitKind.CONNECTIONS)
            if self.unheard is not None:
                self.unheard(peer.uid)
        return refusal

    def _refusal(self, peer: Peer, user: int | None, descriptor: int) -> str | None:
        spare = RESERVED if user is None and not self.processes[peer.uid, peer.pid] else 0
        if self.open.uids[peer.uid] >= self.per_uid + spare:
            return f"uid {peer.uid} has {self.open.uids[peer.uid]} connections open already; close some, or try again"
        if user is None:
            return None
        everyone = self.open.everyone + self.followers.everyone
        if everyone >= self.total or descriptor >= self.descriptors - reserved(self.descriptors):
            return "the daemon has too many connections open; try again"
        if not may_take(self.open.users[user], everyone, self.per_uid, self.total):
            return (
                f"the user of uid {peer.uid} (uid {user}) has {self.open.users[user]} connections open, and"
                " other users need some; close some, or try again"
            )
        return None

    def may_knock(self, uid: int) -> bool:
        """Whether that uid may have one more connection by now; how many it has open is not asked."""
        return self.admission is None or self.admission.has(uid, LimitKind.CONNECTIONS)

    def hung_up_on(self, dropped: Counter[int]) -> None:
        """So many connections of these uids were closed unread."""
        for uid, count in dropped.items():
            if self.admission is not None:
                self.admission.refused(uid, LimitKind.CONNECTIONS, count)
            if self.unheard is not None:
                self.unheard(uid)

    def follow(self, peer: Peer, user: int | None) -> str | None:
        """Count an entered connection as a follower's from now on, or say why it is none."""
        if self.followers.uids[peer.uid] >= FOLLOWERS:
            self._refused(peer.uid, user, LimitKind.FOLLOWERS)
            return f"uid {peer.uid} follows the history {FOLLOWERS} times already; end one, or ask without follow"
        held = self.followers.everyone
        if user is not None and not may_take(self.followers.users[user], held, FOLLOWERS, self.total // 4):
            self._refused(peer.uid, user, LimitKind.FOLLOWERS)
            return f"the user of uid {peer.uid} (uid {user}) follows the history too often; end one, or try again"
        self.followers.add(peer.uid, user)
        self.leave(peer, user)
        return None

    def leave(self, peer: Peer, user: int | None) -> None:
        """A counted connection has ended."""
        self.open.drop(peer.uid, user)
        _less(self.processes, (peer.uid, peer.pid))

    def leave_following(self, peer: Peer, user: int | None) -> None:
        """A follower's connection has ended."""
        self.followers.drop(peer.uid, user)

    def _refused(self, uid: int, user: int | None, kind: LimitKind) -> None:
        if self.admission is not None and user is not None:
            self.admission.refused(uid, kind)


class Listener(socket.socket):
    """Accepts for the event loop the connections that the gate admits, and asks the others to try again.

    Without this a user that connects and leaves as fast as it can fills the backlog: root's client is then refused by
    the kernel (EAGAIN), and no `run` delivers its agent's heartbeat. Closing one takes 15 us, accepting it in asyncio
    200.
    """

    gate: ConnectionLimiter
    _left = DROPS  # connections to close before the loop continues; asyncio accepts a hundred times in a row

    @classmethod
    def of(cls, made: socket.socket, gate: ConnectionLimiter) -> "Listener":
        """Takes the descriptor of `made` over."""
        listener = cls(fileno=made.detach())
        listener.gate = gate
        return listener

    def accept(self) -> tuple[socket.socket, str]:
        """As socket.accept; BlockingIOError also after `DROPS` closed connections, so that the loop continues."""
        dropped: Counter[int] = Counter()
        try:
            while self._left > 0:
                connection, address = super().accept()
                uid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[1]
                if self.gate.may_knock(uid):
                    return connection, address
                self._left -= 1
                dropped[uid] += 1
                with connection, suppress(OSError):  # it has left already
                    connection.send(_COME_AGAIN, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            self._left = DROPS
            raise BlockingIOError
        finally:
            self.gate.hung_up_on(dropped)


def _less(counts: Counter[Key], key: Key) -> None:
    counts[key] -= 1
    if counts[key] <= 0:
        del counts[key]


def problem(status: str, code: str, message: str, header: bytes = b"") -> bytes:
    """An answer that ends the connection, made without aiohttp."""
    body = json.dumps({"error": code, "message": message}).encode()
    return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nConnection: close\r\n%sContent-Length: %d\r\n\r\n%s" % (
        status.encode(),
        header,
        len(body),
        body,
    )


_COME_AGAIN = problem("503 Service Unavailable", TooMany.code, "too many connections in a second; try again")


def too_often(uid: int, user: int, seconds: float) -> Limited:
    """The error for a user whose tokens are used up. `seconds`: until there are enough."""
    after = retry_after(seconds)
    whose = f"uid {uid}" if uid == user else f"the user of uid {uid} (uid {user})"
    return Limited(f"{whose} exceeds its share of requests; try again in {after} s", after)


class Guarded(asyncio.Protocol):
    """Stands before aiohttp's protocol: asks the gate first, and wants the head of a request in time."""

    def __init__(self, gate: ConnectionLimiter) -> None:
        self._gate = gate
        self._inner: asyncio.Protocol | None = None
        self._peer: Peer | None = None
        self._user: int | None = None
        self._follows = False
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._head = b""
        self._begun = False  # its first byte has come, and the request's time runs
        self._waits: asyncio.TimerHandle | None = None
        self._paid = False
        self._kind = LimitKind.REQUESTS

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        connection = transport.get_extra_info("socket")
        try:
            peer = peer_of(connection)
        except OSError:  # it has gone already
            self._transport.abort()
            return
        user = self._gate.user_of(peer.uid)
        refusal = self._gate.enter(peer, user, connection.fileno())
        if refusal is not None:
            self._transport.write(problem("503 Service Unavailable", TooMany.code, refusal))
            self._transport.close()
            return
        self._peer, self._user = peer, user
        self._expect(self._gate.first_byte_seconds)

    def follow(self) -> str | None:
        """From now on this connection follows the history; or why it may not."""
        if self._peer is None or self._follows:
            return None
        refusal = self._gate.follow(self._peer, self._user)
        self._follows = refusal is None
        return refusal

    def paid(self) -> bool:
        """Whether the request that is served now was paid for here: the first one of the connection."""
        paid, self._paid = self._paid, False
        return paid

    def data_received(self, data: bytes) -> None:
        if self._peer is None:
            return
        if self._inner is not None:
            self._give(data)
            return
        self._head += data
        if self._waits is not None:  # what came before reading was paused
            return
        self._head = self._head.lstrip(b"\r\n")  # RFC 9112, 2.2: an empty line before a request is passed over
        if b"\n" not in self._head and len(self._head) <= MAX_LINE:
            if not self._begun:
                self._begun = True
                self._expect(self._gate.request_seconds)
            return
        data, self._head = self._head, b""
        if (seconds := self._price(data)) > 0.0:
            self._keep(data, seconds)
        else:
            self._begin(data)

    def _price(self, data: bytes) -> float:
        """Pay for the first request, by its first line; what is none pays as the cheapest does.

        The seconds that it has to wait, as `Admission.take`.
        """
        admission, peer = self._gate.admission, self._peer
        if admission is None or peer is None or self._user is None:
            return 0.0
        words = data[:MAX_LINE].split(b"\n", 1)[0].strip(b"\r").split(b" ")
        cost = 1.0
        if len(words) == 3:
            self._kind, cost = cost_of(words[0].decode("latin-1"), words[1].decode("latin-1"))
            self._paid = True
        seconds = admission.take(peer.uid, self._kind, cost)
        return 0.0 if seconds > 0 and self._is_admin() else seconds

    def _is_admin(self) -> bool:
        assert self._transport is not None
        try:
            return peer_of(self._transport.get_extra_info("socket"), self._gate.admin_group()).admin
        except OSError:
            return False

    def _keep(self, data: bytes, seconds: float) -> None:
        """Leave it unread until it has its tokens; one that would wait too long is refused then, a heartbeat taken."""
        assert self._transport is not None
        self._transport.pause_reading()
        self._head = data
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._begun = False
        then = self._go_on if seconds <= WAIT else partial(self._late, seconds)
        self._waits = asyncio.get_running_loop().call_later(min(seconds, WAIT), then)

    def _go_on(self) -> None:
        assert self._transport is not None
        data, self._head, self._waits = self._head, b"", None
        self._transport.resume_reading()
        self._begin(data)

    def _late(self, seconds: float) -> None:
        admission, peer, user = self._gate.admission, self._peer, self._user
        if admission is None or peer is None or user is None or self._transport is None:
            return
        admission.refused(peer.uid, self._kind)
        if self._kind is LimitKind.BEATS:
            self._go_on()
            return
        limited = too_often(peer.uid, user, seconds)
        header = b"Retry-After: %d\r\n" % limited.retry_after
        self._transport.write(problem("429 Too Many Requests", limited.code, str(limited), header))
        self._transport.close()

    def _begin(self, data: bytes) -> None:
        assert self._transport is not None
        self._inner = self._gate.inner()
        self._inner.connection_made(self._transport)
        if not self._begun:
            self._expect(self._gate.request_seconds)  # the whole head, and no trickle of bytes moves that
        self._give(data)

    def _give(self, data: bytes) -> None:
        assert self._inner is not None
        if self._timer is not None:
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
        for timer in (self._timer, self._waits):
            if timer is not None:
                timer.cancel()
        self._waits = None
        if self._peer is not None:
            leave = self._gate.leave_following if self._follows else self._gate.leave
            leave(self._peer, self._user)
            self._peer = None
        if self._inner is not None:
            self._inner.connection_lost(exc)

    def _expect(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        assert self._transport is not None
        self._timer = asyncio.get_running_loop().call_later(seconds, self._transport.abort)
