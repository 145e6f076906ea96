"""The contract of terminals: programs that show agents in panes and have a remote control.

A terminal
1. lists its panes (`panes`), each with its first process, or with the device of its terminal;
2. returns the text of one pane (`screen`), types into one (`write`), closes one (`close`);
3. is queried with a deadline; its answer "done" proves nothing: after closing, the panes are listed again. A terminal
   that hung processes its client's commands later: where possible (tmux), they carry a condition so that nothing is
   done;
4. identifies a pane by a name that is not reused while its server lives (`%4`; a window's number), never by a title;
5. gives the command with which a person would close it (`retry`).

The server is identified by the kernel: the process that listens on the socket, and its start. A restarted server
assigns the same numbers to other panes.

A server is never reached by the name of its socket. After the check the name may lead to a fake server, and tmux's
client executes any program that its server names (client.c of 3.3a: MSG_SHELL, MSG_EXEC, MSG_LOCK), and reads and
writes any file for it. So `reached` holds the socket itself by a descriptor, and everything goes to that one through
`/proc/self/fd/N`, which leads to the same inode whatever the name means by then.

Remaining risk: a server of the same uid may be fake too and have the client execute a program. That gains nothing,
since that uid can execute programs anyway; the program is killed together with the client (`client`).
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
OUTPUT_LIMIT = 4 << 20  # bytes per answer: kitty's list contains the environment of each window
_NOBODY = (errno.ENOENT, errno.ENOTDIR, errno.ECONNREFUSED, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG)
LEAST = 0.05  # minimum seconds for a command, even past its deadline
CONNECTING = 1.0  # seconds to reach a server
NAME = 200  # characters kept of a name from a server


@dataclass(frozen=True, slots=True)
class ListedPane:
    """One pane as a terminal lists it. `pid` 0: not reported (then its device identifies it)."""

    pane: str
    pid: int = 0
    device: int = 0  # of its terminal, as in /proc/PID/stat; 0: not reported
    dead: bool = False  # its first process has exited, but the pane is still shown
    read: bool = False  # a person is scrolling in it
    typed: bool = False  # a person pressed a key in it a moment ago
    busy: str = ""  # why nothing may be typed into it, apart from its processes
    sessions: tuple[str, ...] = ()
    window: str = ""
    size: str = ""  # 80x24, if reported


@dataclass(frozen=True, slots=True)
class TerminalServer:
    """One server of a terminal: its socket, and the process that listens there.

    `held`: an O_PATH descriptor of the socket, open during `reached`; None: an abstract socket.
    """

    socket: str
    pid: int
    ticks: int
    held: int | None = None


@dataclass(frozen=True, slots=True)
class Pane:
    """An agent's pane, distinguished from a later pane of the same name.

    `server` is its socket; `pid` and `ticks` are those of the pane's first process. `chain`: the launchers from above
    its main process up to and including that first process (pid and start ticks). `own`: the pane was made for the
    agent: its first process is the agent, its launcher, or was named by the program that started it; not a shell in
    which a person typed the command.
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
    """One terminal program. `until`: the deadline, in monotonic seconds. All except `servers` and `retry` may raise
    OwnerCallFailed.

    `servers`: the sockets where an agent's pane may be, from its environment and a name (empty: any).
    """

    servers: Callable[[Mapping[str, str], str], list[str]]
    panes: Callable[[TerminalServer, float], list[ListedPane]]
    screen: Callable[[TerminalServer, str, int, float], str]  # with that many lines of scrollback, if available
    write: Callable[[TerminalServer, Pane, str, float], None]
    close: Callable[[TerminalServer, Pane, float], None]
    retry: Callable[[str, str], str]
    variables: tuple[str, ...]  # that `servers` reads; the first one names a server
    # The rows with colours, and the cursor's column and row; None: the terminal cannot report them.
    cursor: Callable[[TerminalServer, str, float], tuple[list[str], int, int]] | None = None


def pane_json(pane: Pane) -> dict[str, object]:
    """A pane as JSON for the daemon, which stores it and passes it back."""
    return asdict(pane)


def pane_of(data: Mapping[str, Any]) -> Pane:
    """A pane from its JSON. Raises OwnerCallFailed (`no_pane`) for anything else."""
    known = {one.name for one in fields(Pane)}
    try:
        values = {key: value for key, value in data.items() if key in known}
        chain = tuple((int(pid), int(ticks)) for pid, ticks in values.pop("chain", ()))
        return Pane(**values, chain=chain)
    except (TypeError, ValueError) as error:
        raise OwnerCallFailed("no_pane", f"what is known of its pane cannot be read: {error}") from None


@contextmanager
def reached(address: str) -> Iterator[TerminalServer]:
    """The server at a unix socket, held during the context; `@name`: an abstract socket.

    Its socket must be this uid's own, in a directory that no other user may change, reached without links, and is held
    by a descriptor; the listening process must be this uid's (SO_PEERCRED, unix(7)).

    Raises OwnerCallFailed: `no_pane` when no such server listens; `unheard` when that is unknown, as the queue of a
    server that hangs is full.
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
    """A connection to exactly that socket, whatever its name means by now. Raises OwnerCallFailed as `reached`."""
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
    """Pid, uid and gid of the listening process at the time of listen(2) (SO_PEERCRED)."""
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
    """Run a terminal's program and return its output. Raises OwnerCallFailed named after the program: late, missing,
    error.

    The program finds the server's socket at `client.SOCKET`. None of its environment comes from the agent.
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
    """A server's name or message for people: truncated, without control characters."""
    return "".join(one if one.isprintable() else "?" for one in str(word)[:NAME])


def typed(key: str) -> str:
    """The bytes of a key in tmux(1)'s notation (`Enter`, `C-c`), for terminals that accept only text; text unchanged.

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
