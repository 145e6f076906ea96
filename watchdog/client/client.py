"""A small HTTP client for the control socket: one request and one answer per connection.

`run`, `beat` and every other verb use it. It imports very little (`_socket` is what `socket` wraps; `socket` and
`json` cost 0.4 and 0.3 MB in each resident `run`) and trusts only daemons of its own uid or of root.
"""

import os
import stat
import sys
import time
from _collections_abc import Callable, Iterator
from _socket import AF_UNIX, SO_PEERCRED, SO_SNDTIMEO, SOCK_CLOEXEC, SOCK_STREAM, SOL_SOCKET, socket
from errno import EACCES, EAGAIN, ENOTCONN, EPERM

from watchdog.client.sockets import directory_problem
from watchdog.errors import BadRequest, DaemonBusy, DaemonUnreachable, UnsafeDirectory

_CHUNK = 65536
_LONG = 4 if sys.maxsize < 2**32 else 8  # bytes of a C long


def request(
    method: str,
    path: str,
    body: object | None = None,
    *,
    socket_path: str,
    timeout: float = 5.0,
    opened: Callable[[socket], object] | None = None,
) -> tuple[int, dict[str, object]]:
    """Send one request and return the status and the JSON object. `timeout` (seconds) covers the whole exchange.

    `opened` is called with the connection: another thread can shut it down to end the wait.

    Raises DaemonUnreachable (DaemonBusy if the daemon runs), UnsafeDirectory. An error status does not raise.
    """
    deadline = time.monotonic() + timeout
    connection = _connected(socket_path, timeout)
    try:
        if opened is not None:
            opened(connection)
        _send(connection, encode_request(method, path, body))
        received = bytearray()
        while True:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            piece = receive(connection, first=not received)
            if not piece:
                status, content = split_response(bytes(received))
                return status, decode_json(content)
            received += piece
    except TimeoutError:
        raise DaemonUnreachable(f"the daemon at {socket_path} did not answer within {timeout:g} s") from None
    except OSError as error:
        raise DaemonUnreachable(f"the daemon at {socket_path} hung up: {error.strerror}") from None
    finally:
        connection.close()


def stream(
    path: str, socket_path: str, *, timeout: float = 5.0, wait: Callable[[int], object] | None = None
) -> Iterator[dict[str, object]]:
    """Yield the JSON objects of an answer with one object per line (`/v1/events`), until the daemon closes it.

    `timeout` (seconds) covers the first byte only: with `follow` the next line may take days. `wait` is called with the
    connection's descriptor before each later read; it can stop the stream by raising BrokenPipeError. Raises
    DaemonUnreachable, DaemonBusy for 429 and 503, and BadRequest for any other error status.
    """
    import json  # lazily: not for `run` and `beat`

    connection = _connected(socket_path, timeout)
    try:
        _send(connection, encode_request("GET", path))
        source = _received(connection, wait)
        head, rest = _head_of(source, socket_path)
        status, headers = parse_head(head)
        pieces = _unchunked(rest, source) if headers.get("transfer-encoding") == "chunked" else _joined(rest, source)
        if status >= 300:
            answer = decode_json(b"".join(pieces))
            message = str(answer.get("message") or f"the daemon answered {status}")
            raise DaemonBusy(message) if status in (429, 503) else BadRequest(message)
        held = b""
        for piece in pieces:
            *lines, held = (held + piece).split(b"\n")
            for line in lines:
                if line.strip():
                    yield json.loads(line)
    except BrokenPipeError:  # from `wait`: receiving never raises it
        raise
    except TimeoutError:
        raise DaemonUnreachable(f"the daemon at {socket_path} did not answer within {timeout:g} s") from None
    except OSError as error:
        raise DaemonUnreachable(f"the daemon at {socket_path} hung up: {error.strerror}") from None
    finally:
        connection.close()


def check_peer(connection: socket) -> int:
    """Return the pid of the daemon at the other end; refuse one that is neither of our own uid nor root.

    The pid is 0 for a daemon in a pid namespace that we cannot see. Raises UnsafeDirectory.
    """
    pid, uid = credentials(connection)
    if uid not in (os.getuid(), 0):
        raise UnsafeDirectory(
            f"the daemon there runs as uid {uid}; this client talks only to one of its own uid or of root"
        )
    return pid


def credentials(connection: socket) -> tuple[int, int]:
    """Pid and uid of the process that listens at the other end, according to the kernel."""
    ucred = connection.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)  # struct ucred: pid, uid, gid (unix(7))
    return int.from_bytes(ucred[:4], sys.byteorder), int.from_bytes(ucred[4:8], sys.byteorder)


def encode_request(method: str, path: str, body: object | None = None) -> bytes:
    """One HTTP/1.1 request with `Connection: close`."""
    content = b"" if body is None else to_json(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: agent-watchdog\r\nConnection: close\r\n"
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
    return head.encode() + b"\r\n" + content


def split_response(received: bytes) -> tuple[int, bytes]:
    """Status and body of a complete answer (read until the connection was closed). Raises DaemonUnreachable."""
    head, blank, content = received.partition(b"\r\n\r\n")
    if not blank:
        raise DaemonUnreachable("the daemon ended the connection before it had answered")
    status, headers = parse_head(head)
    if headers.get("transfer-encoding") == "chunked":
        content = b"".join(_unchunked(content, iter(())))
    elif len(content) < _length(headers):
        raise DaemonUnreachable("the daemon ended the connection in the middle of its answer")
    return status, content


def _length(headers: dict[str, str]) -> int:
    told = headers.get("content-length", "")
    return int(told) if told.isascii() and told.isdigit() else 0


def parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Status and headers (names in lower case). Raises DaemonUnreachable if this is not HTTP."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise DaemonUnreachable("what answers on the control socket does not speak HTTP")
    pairs = (line.partition(":") for line in lines)
    return int(rest[:3]), {name.strip().lower(): value.strip() for name, _, value in pairs}


def decode_json(content: bytes) -> dict[str, object]:
    """The JSON object in a body; an empty object for an empty body; anything else is returned as `message`."""
    if not content.strip():
        return {}
    import json  # lazily: `run` reads a body only after a refusal

    try:
        found = json.loads(content)
    except ValueError:
        found = content.decode("utf-8", "replace")
    return found if isinstance(found, dict) else {"message": str(found)}


def to_json(value: object) -> str:
    """JSON for None, bool, finite numbers, strings, and lists and dictionaries of them: all that requests contain.

    Written by hand because importing `json` costs each resident `run` 0.3 MB. Raises TypeError, ValueError.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        if value - value != 0:
            raise ValueError(f"{value} has no JSON form")
        return repr(value)
    if isinstance(value, str):
        # Python represents a non-UTF-8 byte of a path as a lone surrogate; JSON can carry it as \udcXX.
        return '"' + "".join(_escaped(c) for c in value) + '"'
    if isinstance(value, list | tuple):
        return "[" + ",".join(to_json(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{to_json(str(key))}:{to_json(item)}" for key, item in value.items()) + "}"
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _escaped(character: str) -> str:
    number = ord(character)
    if character in '"\\':
        return "\\" + character
    return character if number >= 0x20 and not 0xD800 <= number <= 0xDFFF else f"\\u{number:04x}"


def _connected(socket_path: str, timeout: float) -> socket:
    problem = directory_problem(os.path.dirname(socket_path))
    if problem is not None and os.path.lexists(os.path.dirname(socket_path)):
        raise UnsafeDirectory(f"{problem}; its control socket is not trusted")
    connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC)
    try:
        _connect(connection, socket_path, timeout)
        connection.settimeout(timeout)
        check_peer(connection)
    except OSError as error:
        connection.close()
        if error.errno in (EACCES, EPERM):
            raise DaemonUnreachable(f"{socket_path}: not permitted to connect{_shut(socket_path)}") from None
        if error.errno == EAGAIN:  # unix(7): the backlog is full
            raise DaemonBusy(f"the daemon at {socket_path} has too many connections waiting; try again") from None
        reason = "timed out" if isinstance(error, TimeoutError) else error.strerror or error
        raise DaemonUnreachable(f"no daemon answers at {socket_path} ({reason})") from None
    except UnsafeDirectory:
        connection.close()
        raise
    return connection


def _shut(socket_path: str) -> str:
    """A description of the parent directory that we may not enter, with its mode."""
    parts = socket_path.split("/")
    for end in range(2, len(parts)):
        directory = "/".join(parts[:end])
        if not os.access(directory, os.X_OK):
            try:
                found = os.lstat(directory)
            except OSError:
                return ""
            return f"; {directory} of uid {found.st_uid} has mode {stat.S_IMODE(found.st_mode):04o}"
    return ""


def _connect(connection: socket, socket_path: str, timeout: float) -> None:
    """Connect; if the backlog is full, wait in the kernel's queue. Raises BlockingIOError after `timeout` seconds.

    Python's own timeout makes the socket non-blocking, and connecting a non-blocking socket does not wait for room in
    the backlog (unix(7)).
    """
    deadline = time.monotonic() + timeout
    while True:
        left = max(0.001, deadline - time.monotonic())
        seconds, microseconds = int(left), int(left % 1 * 1e6)
        long = [number.to_bytes(_LONG, sys.byteorder) for number in (seconds, microseconds)]
        connection.setsockopt(SOL_SOCKET, SO_SNDTIMEO, b"".join(long))  # struct timeval
        connection.connect(socket_path)
        try:
            connection.getpeername()
        except OSError as error:
            if error.errno != ENOTCONN or time.monotonic() >= deadline:
                raise
            continue  # a signal interrupted it: Python assumes that it continues to connect in the background
        return


def _send(connection: socket, request: bytes) -> None:
    """Send it all. A server that refuses us hangs up at once, but sends the reason first, which can still be read."""
    try:  # noqa: SIM105  contextlib costs memory
        connection.sendall(request)
    except BrokenPipeError:
        pass


def receive(connection: socket, *, first: bool) -> bytes:
    """The next bytes, empty at the end. `first`: nothing was received yet, so a reset is a failure, not the end."""
    try:
        return connection.recv(_CHUNK)
    except ConnectionResetError:  # it hung up without reading our request (unix(7)); its answer was complete
        if first:
            raise
        return b""


def _received(connection: socket, wait: Callable[[int], object] | None) -> Iterator[bytes]:
    """Yield bytes as they arrive; there is no deadline after the first ones."""
    begun = False
    while piece := receive(connection, first=not begun):
        begun = True
        connection.settimeout(None)
        yield piece
        if wait is not None:
            wait(connection.fileno())


def _head_of(source: Iterator[bytes], socket_path: str) -> tuple[bytes, bytes]:
    held = b""
    for piece in source:
        held += piece
        head, blank, rest = held.partition(b"\r\n\r\n")
        if blank:
            return head, rest
    raise DaemonUnreachable(f"the daemon at {socket_path} ended the connection before it had answered")


def _joined(first: bytes, source: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from source


def _unchunked(first: bytes, source: Iterator[bytes]) -> Iterator[bytes]:
    """The contents of chunks (RFC 9112, 7.1), each when it is complete; trailers are ignored."""
    held = first
    while True:
        while b"\r\n" not in held:
            piece = next(source, b"")
            if not piece:
                return
            held += piece
        line, _, held = held.partition(b"\r\n")
        size = int(line.split(b";")[0], 16)
        if size == 0:
            return
        while len(held) < size + 2:
            piece = next(source, b"")
            if not piece:
                return
            held += piece
        yield held[:size]
        held = held[size + 2 :]
