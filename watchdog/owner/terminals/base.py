"""The contract of terminals: programs that show agents in panes, and are spoken to by their own remote control.

A terminal
1. lists its panes (`panes`), each with its first process, or with the device that this one reads from;
2. gives the words of one pane as they are shown (`screen`), types into one (`write`), has one closed (`close`);
3. is asked with a deadline; its answer "done" proves nothing: after closing, the pane is looked for again. One that
   hung reads later what its client had said: where it can be told so (tmux), it does nothing then;
4. names a pane by what it is never called again while its server lives (`%4`; a window's number), never by a title;
5. says which command a person would type to close it (`retry`).

The kernel says which server it is: the process that listens on the socket, and since when that process lives. A server
that was restarted gives the same numbers to other people's panes.

A server is never reached by the name of its socket. A name that was checked and is opened again may lead to a fake
server by then, and tmux's client executes whatever program its server names (client.c of 3.3a: MSG_SHELL, MSG_EXEC,
MSG_LOCK), reads and writes any file for it. So `reached` holds the socket itself by a descriptor, and everything that
is said goes to that one: through `/proc/self/fd/N`, which leads to the same inode whatever its name means now.

What remains: a server of the same uid may be a fake one, too, and have the client execute a program. That gains it
nothing, since that uid can execute programs anyway; it is ended together with the client (`client`).
"""

import errno
import os
import re
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any

from watchdog.errors import OwnerCallFailed, PathRefused
from watchdog.owner import paths
from watchdog.owner.terminals import client, pane_lookup

KEY = re.compile(r"(?:[CMS]-)+\S+|Enter|Escape|Tab|Space|BSpace|Up|Down|Left|Right|Home|End")
OUTPUT_LIMIT = 4 << 20  # bytes of one answer: kitty's list holds the environment of each window
_NOBODY = (errno.ENOENT, errno.ENOTDIR, errno.ECONNREFUSED, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG)
LEAST = 0.05  # seconds that a word is given though its time is over
CONNECTING = 1.0  # seconds to reach a server
NAME = 200  # characters that are kept of a name that a server gives


@dataclass(frozen=True, slots=True)
class ListedPane:
    """One pane as a terminal lists it. `pid` 0: it does not tell (its device does)."""

    pane: str
    pid: int = 0
    device: int = 0  # of its terminal, as in /proc/PID/stat; 0: it does not tell
    dead: bool = False  # its first process has ended, and it is shown on
    read: bool = False  # a person scrolls in it
    typed: bool = False  # a person pressed a key in it a moment ago
    busy: str = ""  # why nothing may be typed into it, beside what its processes say
    sessions: tuple[str, ...] = ()
    window: str = ""
    size: str = ""  # 80x24, where it is told


@dataclass(frozen=True, slots=True)
class TerminalServer:
    """One server of a terminal: its socket, and the process that listens there.

    `held`: an O_PATH descriptor of the socket itself, open as long as `reached` lasts; None: it is an abstract one.
    """

    socket: str
    pid: int
    ticks: int
    held: int | None = None


@dataclass(frozen=True, slots=True)
class Pane:
    """Where an agent sits, never to be confused with a later pane of the same name.

    `server` is its socket; `pid` and `ticks` are those of the pane's first process. `chain`: its launchers between its
    main process and that first one, which too is in it (pid and start ticks). `own`: the pane was made for the agent:
    its first process is the agent, its launcher, or was named by the program that started it. A shell in which a
    person typed the command is none.
    """

    terminal: str
    server: str
    pane: str
    server_pid: int
    server_ticks: int
    pid: int
    ticks: int
    window: str = ""
    session: str = ""
    chain: tuple[tuple[int, int], ...] = ()
    own: bool = False


@dataclass(frozen=True, slots=True)
class Terminal:
    """One program. `until`: monotonic seconds at which the answer is late. All but `servers` and `retry` may raise
    OwnerCallFailed.

    `servers`: from the environment of an agent and a name (empty: any), the sockets where its pane may be.
    """

    servers: Callable[[Mapping[str, str], str], list[str]]
    panes: Callable[[TerminalServer, float], list[ListedPane]]
    screen: Callable[[TerminalServer, str, int, float], str]  # with so many lines above it, where it keeps them
    write: Callable[[TerminalServer, Pane, str, float], None]
    close: Callable[[TerminalServer, Pane, float], None]
    retry: Callable[[str, str], str]
    variables: tuple[str, ...]  # of an agent's environment, that `servers` reads; the first one names a server
    # The rows that it shows, with their colours, and the cursor's column and row; None: it cannot tell.
    cursor: Callable[[TerminalServer, str, float], tuple[list[str], int, int]] | None = None


def pane_json(pane: Pane) -> dict[str, object]:
    """A pane for the daemon, which keeps it and gives it back."""
    return asdict(pane)


def pane_of(data: Mapping[str, Any]) -> Pane:
    """A pane from its JSON. Raises OwnerCallFailed (`no_pane`) when it is none."""
    known = {one.name for one in fields(Pane)}
    try:
        values = {key: value for key, value in data.items() if key in known}
        chain = tuple((int(pid), int(ticks)) for pid, ticks in values.pop("chain", ()))
        return Pane(**values, chain=chain)
    except (TypeError, ValueError) as error:
        raise OwnerCallFailed("no_pane", f"what is known of its pane cannot be read: {error}") from None


@contextmanager
def reached(address: str) -> Iterator[TerminalServer]:
    """The server at a unix socket, for as long as the context lasts; `@name`: an abstract one.

    Its socket is this uid's own, in a directory that no other user may change, through no link, and held by a
    descriptor; the process that listens is this uid's (SO_PEERCRED, unix(7)).

    Raises OwnerCallFailed: `no_pane` when no such server listens; `unheard` when that cannot be known: the queue of one
    that hangs for long is full.
    """
    held = None
    try:
        if not address.startswith("@"):
            held = _held(address)
        with connected(TerminalServer(address, 0, 0, held), time.monotonic() + CONNECTING) as asked:
            pid, uid, _ = peer(asked)
        if uid != os.geteuid() or pid <= 1:
            raise OwnerCallFailed("no_pane", f"the server at {address} belongs to another user")
        yield TerminalServer(address, pid, pane_lookup.stat_of(pid).ticks, held)
    finally:
        if held is not None:
            os.close(held)


def _held(address: str) -> int:
    try:
        parent, name = paths.open_private_parent(address)
        try:
            held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        finally:
            os.close(parent)
    except PathRefused as refused:
        raise OwnerCallFailed("no_pane", f"the socket {address!r} is not used: {refused}") from refused
    except OSError as error:
        raise _unreachable(address, error) from error
    status = os.fstat(held)
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.geteuid():
        os.close(held)
        raise OwnerCallFailed("no_pane", f"{address} is not a socket of uid {os.geteuid()}")
    return held


@contextmanager
def connected(server: TerminalServer, until: float) -> Iterator[socket.socket]:
    """A connection to that socket, whatever its name means by now. Raises OwnerCallFailed as `reached`."""
    if server.held is None and not server.socket.isprintable():
        raise OwnerCallFailed("no_pane", f"the socket {server.socket!r} is not used: its name is not plain text")
    address = f"\0{server.socket[1:]}" if server.held is None else f"/proc/self/fd/{server.held}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.settimeout(max(LEAST, until - time.monotonic()))
        try:
            asked.connect(address)
        except OSError as error:
            raise _unreachable(server.socket, error) from error
        yield asked


def peer(asked: socket.socket) -> tuple[int, int, int]:
    """Pid, uid and gid of the process that listened, as they were then (SO_PEERCRED)."""
    pid, uid, gid = struct.unpack("3i", asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid, gid


def _unreachable(address: str, error: OSError) -> OwnerCallFailed:
    if error.errno in _NOBODY:
        return OwnerCallFailed("no_pane", f"no server listens at {address}: {error.strerror}")
    return OwnerCallFailed("unheard", f"{address} cannot be asked: {error.strerror or error}")


def say(
    argv: Sequence[str],
    server: TerminalServer,
    until: float,
    *,
    environ: Mapping[str, str] | None = None,
    given: str = "",
) -> str:
    """What a terminal's program prints. Raises OwnerCallFailed with the program's name: late, missing, or its words.

    It finds the server's socket at `client.SOCKET`. Nothing of its environment comes from the agent.
    """
    if server.held is None:
        raise OwnerCallFailed("no_pane", f"{argv[0]} has no abstract sockets")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("TMUX", "KITTY", "WEZTERM"))}
    seconds = max(LEAST, until - time.monotonic())
    ran = client.run(argv, kept | dict(environ or {}), server.held, os.fsencode(given), seconds, OUTPUT_LIMIT)
    if ran.late:
        raise OwnerCallFailed(argv[0], f"{argv[0]} did not answer in {seconds:.1f} s")
    if ran.missing:
        raise OwnerCallFailed(argv[0], f"{argv[0]} cannot be run: {ran.error}")
    if ran.status:
        words = plain(ran.error)
        raise OwnerCallFailed(argv[0], f"{' '.join(argv[:2])} ended with {ran.status}: {words}".rstrip(": "))
    return ran.output.decode("utf-8", "replace")


def plain(word: object) -> str:
    """A name or message of a server, without control characters and cut: it is shown to people."""
    return "".join(one if one.isprintable() else "?" for one in str(word)[:NAME])


def typed(key: str) -> str:
    """The bytes of a key as tmux(1) names it (`Enter`, `C-c`), for terminals that take text alone; text as it is.

    Raises OwnerCallFailed (`no_key`) for a key that has no bytes of its own.
    """
    known = {"Enter": "\r", "Escape": "\x1b", "Tab": "\t", "Space": " ", "BSpace": "\x7f"}
    known |= {"Up": "\x1b[A", "Down": "\x1b[B", "Right": "\x1b[C", "Left": "\x1b[D", "Home": "\x1b[H", "End": "\x1b[F"}
    if key in known:
        return known[key]
    if len(key) == 3 and key[:2] in ("C-", "M-"):
        return f"\x1b{key[2]}" if key[0] == "M" else chr(ord(key[2].upper()) & 0x1F)
    if KEY.fullmatch(key):
        raise OwnerCallFailed("no_key", f"the key {key} can be typed into a tmux pane alone")
    return key
