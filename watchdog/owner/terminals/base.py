"""The contract of terminals: programs that show agents in panes, and are spoken to by their own remote control.

A terminal
1. lists its panes (`panes`), each with its first process, or with the device that this one reads from;
2. gives the words of one pane as they are shown (`screen`), types into one (`write`), has one closed (`close`);
3. is asked with a deadline; it is no proof of anything that it answers "done": who closes looks again. One that hung
   reads later what its client had said: where it can be told so (tmux), it does nothing then;
4. names a pane by what it is never called again while its server lives (`%4`; a window's number), never by a title;
5. says which command a person would type to close it (`retry`).

Which server it is, is told by the kernel: who listens on the socket, and since when that process lives. A server that
was started anew gives the same numbers to other people's panes.
"""

import errno
import os
import re
import socket
import stat
import struct
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from watchdog.errors import OwnerCallFailed
from watchdog.owner import confinement
from watchdog.owner.terminals import sitting

KEY = re.compile(r"(?:[CMS]-)+\S+|Enter|Escape|Tab|Space|BSpace|Up|Down|Left|Right|Home|End")
OUTPUT_LIMIT = 4 << 20  # bytes of one answer: kitty's list holds the environment of each window
_NOBODY = (errno.ENOENT, errno.ENOTDIR, errno.ECONNREFUSED, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG)
LEAST = 0.05  # seconds that a word is given though its time is over


@dataclass(frozen=True, slots=True)
class Seen:
    """One pane as a terminal lists it. `pid` 0: it does not tell (its device does)."""

    pane: str
    pid: int = 0
    device: int = 0  # of its terminal, as in /proc/PID/stat; 0: it does not tell
    dead: bool = False  # its first process has ended, and it is shown on
    read: bool = False  # somebody scrolls in it
    typed: bool = False  # somebody pressed a key in it a moment ago
    busy: str = ""  # why nothing may be typed into it, beside what its processes say
    sessions: tuple[str, ...] = ()
    window: str = ""
    size: str = ""  # 80x24, where it is told


@dataclass(frozen=True, slots=True)
class Server:
    """One server of a terminal: its socket, and who listens there."""

    socket: str
    pid: int
    ticks: int


@dataclass(frozen=True, slots=True)
class Pane:
    """Where an agent sits, never to be confused with a later pane of the same name.

    `server` is its socket; `pid` and `ticks` are those of the pane's first process. `chain`: its launchers between its
    main process and that first one, which too is in it (pid and start ticks). `own`: the pane was made for the agent:
    its first process is the agent, its launcher, or was named by who started it. A shell in which a person typed the
    command is none.
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
    panes: Callable[[str, float], list[Seen]]
    screen: Callable[[str, str, int, float], str]  # with so many lines above it, where it keeps them
    write: Callable[[Pane, str, float], None]
    close: Callable[[Pane, float], None]
    retry: Callable[[str, str], str]
    variables: tuple[str, ...]  # of an agent's environment, that `servers` reads; the first one names a server


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


def listener(address: str) -> Server:
    """Who listens on a unix socket (SO_PEERCRED, unix(7)); `@name`: an abstract one. It is our own uid's, or refused.

    Raises OwnerCallFailed: `no_pane` for nobody, or somebody else; `unheard` when that cannot be told: of one that
    hangs for long the queue is full.
    """
    try:
        if not address.startswith("@"):
            found = os.stat(address)
            if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
                raise OwnerCallFailed("no_pane", f"{address} is no socket of ours")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
            asked.settimeout(1.0)
            asked.connect("\0" + address[1:] if address.startswith("@") else address)
            pid, uid, _ = struct.unpack("3i", asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    except OSError as error:
        if error.errno not in _NOBODY:
            raise OwnerCallFailed("unheard", f"{address} cannot be asked: {error.strerror or error}") from error
        raise OwnerCallFailed("no_pane", f"no server listens at {address}: {error.strerror}") from error
    if uid != os.geteuid() or pid <= 1:
        raise OwnerCallFailed("no_pane", f"the server at {address} is another user's")
    return Server(address, pid, sitting.stat_of(pid).ticks)


def say(
    argv: Sequence[str], until: float, *, environ: Mapping[str, str] | None = None, given: str | None = None
) -> str:
    """What a terminal's program prints. Raises OwnerCallFailed with the program's name: late, missing, or its words.

    Nothing of its environment comes from the agent but what `environ` names.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("TMUX", "KITTY", "WEZTERM"))}
    seconds = max(LEAST, until - time.monotonic())
    try:
        ran = subprocess.run(
            list(argv),
            env=kept | dict(environ or {}),
            input=None if given is None else given.encode("utf-8", "surrogateescape"),
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            timeout=seconds,
            check=False,
            # kitty and wezterm come with launchers (AppImage, flatpak, scripts) that run further programs.
            preexec_fn=confinement.only_runs("tmux") if argv[0] == "tmux" else None,
        )
    except subprocess.TimeoutExpired:
        raise OwnerCallFailed(argv[0], f"{argv[0]} did not answer in {seconds:.1f} s") from None
    except OSError as error:
        raise OwnerCallFailed(argv[0], f"{argv[0]} cannot be run: {error.strerror}") from error
    if ran.returncode:
        words = ran.stderr.decode("utf-8", "replace").strip()[:200]
        raise OwnerCallFailed(argv[0], f"{' '.join(argv[:2])} ended with {ran.returncode}: {words}".rstrip(": "))
    return ran.stdout[:OUTPUT_LIMIT].decode("utf-8", "replace")


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
