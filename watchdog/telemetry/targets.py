"""Targets of log lines: a descriptor (stderr), a file, the journal. Only the thread of `queue_handler` calls these.

Each takes a whole line or raises OSError; a partly written line is taken back or ended by a newline, so that the next
line is intact. None waits by itself: `wait(fd)` is the caller's, and raises when waiting is pointless.
"""

import contextlib
import json
import logging
import os
import re
import select
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TextIO

JOURNAL = "/run/systemd/journal/socket"  # systemd-journald.service(8)
ATOMIC = select.PIPE_BUF  # bytes that a writable pipe (by poll) takes without blocking (pipe(7))
MESSAGE_LIMIT = 400  # characters of the line that `journalctl` shows; the fields hold the rest
_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
_OWN = {"MESSAGE", "PRIORITY", "SYSLOG_IDENTIFIER", "EVENT", "TS", "LEVEL"}  # a line's own fields cannot replace these
# not repeated in MESSAGE
_QUIET = {"event", "ts", "level", "name", "why", "agent_id", "request_id", "host", "exception"}

Wait = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Line:
    """One rendered line without its newline, and its level (stdlib's number)."""

    level: int
    text: str


class Target(Protocol):
    """One place for lines."""

    name: str

    def write(self, line: Line, wait: Wait) -> None:
        """Write the whole line. Raises OSError (ValueError: closed); exceptions of `wait` pass through."""

    def reopen(self) -> None:
        """Close it; the next line opens it again."""


def priority(level: int) -> int:
    """The syslog(3) number of a level."""
    return _PRIORITY.get(level, 6)


class StreamTarget:
    """A stream that another program opened: stderr, be it a terminal, a pipe, a file or the journal's stream.

    `prefixed`: with sd-daemon(3)'s `<N>` before each line, if the journal reads it.
    """

    def __init__(self, stream: TextIO, *, prefixed: bool = False) -> None:
        self.name = "stderr"
        self._stream = stream
        self._prefixed = prefixed
        self._torn = False

    def write(self, line: Line, wait: Wait) -> None:
        """Write in pieces that a writable pipe takes at once: its reader may have stopped."""
        text = f"<{priority(line.level)}>{line.text}" if self._prefixed else line.text
        if self._prefixed:  # each line of a traceback is a separate message there
            text = text.replace("\n", f"\n<{priority(line.level)}>")
        rest = memoryview(("\n" * self._torn + text + "\n").encode("utf-8", "backslashreplace"))
        whole = len(rest)
        try:
            while rest:
                fd = self._stream.fileno()  # a stored number could be another file's by now
                wait(fd)
                with contextlib.suppress(BlockingIOError):
                    rest = rest[os.write(fd, rest[:ATOMIC]) :]
        finally:
            if len(rest) < whole:
                self._torn = bool(rest)

    def reopen(self) -> None:
        """Nothing to do: it is not ours."""


class FileTarget:
    """A file by its path, opened at the first line and whenever the path leads to another file.

    So a rename (logrotate's `create`), a deletion and a directory that comes back need no signal; neither does a
    truncation (`copytruncate`), since every write appends. A link at the end of the path is refused.
    """

    def __init__(self, path: str) -> None:
        self.name = path
        self._fd: int | None = None
        self._torn = False

    def write(self, line: Line, wait: Wait) -> None:
        """Append; nothing remains of a line that did not fit (full disk)."""
        fd = self._opened()
        found = os.fstat(fd)
        rest = memoryview(("\n" * self._torn + line.text + "\n").encode("utf-8", "backslashreplace"))
        whole = len(rest)
        try:
            while rest:
                if not stat.S_ISREG(found.st_mode):
                    wait(fd)
                with contextlib.suppress(BlockingIOError):
                    rest = rest[os.write(fd, rest if stat.S_ISREG(found.st_mode) else rest[:ATOMIC]) :]
        finally:
            if len(rest) < whole:
                self._torn = bool(rest)
            if self._torn and stat.S_ISREG(found.st_mode):
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, found.st_size)
                    self._torn = False

    def reopen(self) -> None:
        """Close it, so that a renamed file can be compressed and the space of a deleted one is freed."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _opened(self) -> int:
        if self._fd is not None:
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._fd), os.stat(self.name, follow_symlinks=False)):
                    return self._fd
            self.reopen()
        # O_NONBLOCK: a FIFO without a reader is an error, not a wait.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
        self._fd = os.open(self.name, flags, 0o640)
        return self._fd


class JournaldTarget:
    """journald by its native protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL): each field of a line can be searched for.

    Takes lines of JSON. A datagram is always small enough: the renderer limits the size of a line.
    """

    def __init__(self, path: str = JOURNAL) -> None:
        self.name = "journal"
        self._path = path
        self._socket: socket.socket | None = None

    def write(self, line: Line, wait: Wait) -> None:
        """Send one datagram; a restarted journald has a new socket, so a single failure does not count."""
        data = datagram(line)
        had = self._socket is not None
        try:
            self._send(data, wait)
        except (ConnectionError, FileNotFoundError):
            self.reopen()
            if not had:
                raise
            self._send(data, wait)

    def reopen(self) -> None:
        """Connect again at the next line."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, data: bytes, wait: Wait) -> None:
        if self._socket is None:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
            try:
                made.connect(self._path)
            except OSError:
                made.close()
                raise
            self._socket = made
        while True:
            wait(self._socket.fileno())
            with contextlib.suppress(BlockingIOError):
                self._socket.send(data)
                return


def datagram(line: Line) -> bytes:
    """A line of JSON as journald's fields: EVENT, AGENT_ID, REQUEST_ID, ..., MESSAGE for people."""
    fields: dict[str, object] = json.loads(line.text)
    own = {
        "MESSAGE": message(fields),
        "PRIORITY": priority(line.level),
        "SYSLOG_IDENTIFIER": "agent-watchdogd",
        "EVENT": fields.get("event"),
    }
    found = {_field(key): value for key, value in fields.items() if key not in ("event", "ts", "level")}
    return b"".join(_encoded(key, value) for key, value in (found | own).items() if key)


def message(fields: dict[str, object]) -> str:
    """`agent.stalled alpha: silent for 130 s (silence=130)`: one printable line with the main facts."""
    said = [printable(_text(fields[key])) for key in ("event", "name") if fields.get(key)]
    rest = [f"{key}={printable(_text(value))}" for key, value in fields.items() if key not in _QUIET and value]
    line = " ".join(said) + (f": {printable(_text(fields['why']))}" if fields.get("why") else "")
    line += f" ({', '.join(rest)})" if rest else ""
    return line if len(line) <= MESSAGE_LIMIT else line[: MESSAGE_LIMIT - 1] + "…"


def printable(text: str) -> str:
    """Foreign text with escape sequences and newlines escaped as in Python."""
    return text if text.isprintable() else ascii(text)


def trace(text: str) -> str:
    """The same for a traceback of ours, which keeps its newlines."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def _field(key: str) -> str:
    """A field name valid in journald: capitals, digits and `_`, no `_` or digit first, at most 64."""
    name = re.sub(r"[^A-Z0-9_]", "_", key.upper()).lstrip("_0123456789")[:63]
    return name + "_" * (name in _OWN)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _encoded(key: str, value: object) -> bytes:
    """`KEY=value`, or with a length before a value with newlines."""
    said = trace(str(value)) if key in ("EXCEPTION", "STACK") else printable(_text(value))
    data = said.encode("utf-8", "backslashreplace")
    if b"\n" in data:
        return key.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"
    return key.encode() + b"=" + data + b"\n"
