"""tmux: all servers of the owner, at their sockets; panes by their ids, which a server never reuses.

Session or window names are never used as targets: tmux takes them for a prefix or a pattern if nothing has that name,
and would kill a neighbour (tmux(1), target-session). The pane is chosen from the list of all panes by equality. A pane
of a window that several sessions show (a session group) is one pane: closed once, it is closed in all.

A stopped server later executes what it was sent meanwhile, long after its client was abandoned. So each command that
changes something has a condition that the server checks when it executes it.

A server's answer is untrusted data: ids, numbers and devices are accepted only in tmux's format.
"""

import math
import os
import re
import shlex
import time
from collections.abc import Mapping
from contextlib import suppress

from watchdog.errors import OwnerCallFailed, PathRefused
from watchdog.owner import paths
from watchdog.owner.terminals import base, client, pane_lookup

SERVERS = 1000  # sockets checked at most: most belong to killed servers, and cost 40 µs
TYPED = 30  # seconds after a person's last key in a pane: the person may be in the middle of a line
REFUSED = "not any more"
VARIABLES = ("TMUX", "TMUX_TMPDIR")
# The session's name is last, as it may contain the separator.
_ASKED = (
    "pane_id",
    "pane_pid",
    "pane_dead",
    "pane_in_mode",
    "pane_synchronized",
    "pane_input_off",
    "pane_tty",
    "pane_width",
    "pane_height",
    "window_id",
    "session_name",
)
# tmux's format of these, except the name.
_PANE = re.compile(
    r"%[0-9]{1,10}\|[0-9]{1,10}\|[01]?\|[0-9]{0,5}\|[01]?\|[01]?\|[!-{}~]*\|[0-9]{1,5}\|[0-9]{1,5}\|@[0-9]{1,10}"
)
_FORMAT = "|".join(f"#{{{name}}}" for name in _ASKED)
_CLIENTS = "client|#{pane_id}|#{client_activity}"  # for each attached client: the pane that gets its keys


def servers(variables: Mapping[str, str], name: str) -> list[str]:
    """Sockets: the agent's own server first, then the owner's `-L` servers; with a name only that one."""
    own = variables.get("TMUX", "").partition(",")[0]
    if name.startswith("/"):
        return [name]
    places = dict.fromkeys([variables.get("TMUX_TMPDIR", ""), os.environ.get("TMUX_TMPDIR", ""), "/tmp"])  # noqa: S108
    found = dict.fromkeys([own] if own.startswith("/") else ())
    for place in places:
        if place.startswith("/"):
            found |= dict.fromkeys(_sockets(f"{place}/tmux-{os.geteuid()}"))
    return [path for path in found if name in ("", os.path.basename(path))][:SERVERS]


def _sockets(place: str) -> list[str]:
    """The files in a directory of this uid's; none if it is another's, as any user may have made it."""
    with suppress(OSError, PathRefused):
        parent, _ = paths.open_private_parent(f"{place}/any")
        try:
            if os.fstat(parent).st_uid == os.geteuid():
                listing = paths.readable(parent)
                try:
                    return [f"{place}/{name}" for name in sorted(os.listdir(listing))]
                finally:
                    os.close(listing)
        finally:
            os.close(parent)
    return []


def panes(server: base.TerminalServer, until: float) -> list[base.ListedPane]:
    """All panes of a server; a pane that several sessions show is listed once."""
    found: dict[str, base.ListedPane] = {}
    asked = "list-panes", "-a", "-F", _FORMAT, ";", "list-clients", "-F", _CLIENTS
    told = _tmux(server, until, *asked).rstrip("\n").split("\n")
    typed = {line.split("|")[1] for line in told if _is_client(line) and _is_recent(line.split("|")[-1])}
    for line in told:
        if not line or _is_client(line):
            continue
        words = line.split("|", len(_ASKED) - 1)
        if len(words) != len(_ASKED) or not _PANE.fullmatch("|".join(words[:-1])):
            raise OwnerCallFailed("tmux", f"the server at {server.socket} lists what is no pane: {line[:80]!r}")
        pane, pid, dead, read, *flags, tty, width, height, window, session = words
        busy = "scrolled by a person, synchronized with others, or closed" if {*flags, read, dead} - {"0", ""} else ""
        if pane in typed:
            busy = "a person types in it"
        device = pane_lookup.device_of(tty) if dead != "1" else 0
        before = found[pane].sessions if pane in found else ()
        found[pane] = base.ListedPane(
            pane,
            int(pid),
            device,
            dead=dead == "1",
            read=read not in ("0", ""),
            typed=pane in typed,
            busy=busy,
            sessions=(*before, base.plain(session)),
            window=window,
            size=f"{width}x{height}",
        )
    return list(found.values())


def _is_client(line: str) -> bool:
    return line.startswith("client|")


def _is_recent(then: str) -> bool:
    """Whether the time is near now in either direction, as the clock may have been set."""
    return re.fullmatch("[0-9]{1,12}", then) is not None and abs(time.time() - int(then)) < TYPED


def screen(server: base.TerminalServer, pane: str, above: int, until: float) -> str:
    """Its screen, and that many lines of scrollback; wrapped lines are joined (-J)."""
    return _tmux(server, until, "capture-pane", "-p", "-J", "-S", str(-above), "-t", pane)


def cursor(server: base.TerminalServer, pane: str, until: float) -> tuple[list[str], int, int]:
    """The rows with colours, and the cursor's position, even if it is hidden."""
    asked = "display-message", "-p", "-t", pane, "#{cursor_x} #{cursor_y}", ";", "capture-pane", "-p", "-e", "-t", pane
    place, _, rows = _tmux(server, until, *asked).partition("\n")
    if not re.fullmatch("[0-9]{1,5} [0-9]{1,5}", place):
        raise OwnerCallFailed("tmux", f"the server at {server.socket} says of a cursor: {base.plain(place)}")
    x, y = place.split()
    return rows.split("\n"), int(x), int(y)


def write(server: base.TerminalServer, pane: base.Pane, key: str, until: float) -> None:
    """Type a key by its name, or literal text. Also raises OwnerCallFailed (`left`): the server reports it in use."""
    word = _quoted(key) if base.KEY.fullmatch(key) else f"-l -- {_quoted(key)}"
    free = "#{==:#{pane_dead}#{pane_in_mode}#{pane_synchronized}#{pane_input_off},0000}"
    if not _done_if(server, pane, free, f"send-keys -t {_quoted(pane.pane)} {word}", until):
        raise OwnerCallFailed("left", f"tmux pane {pane.pane} is now used for something else")


def close(server: base.TerminalServer, pane: base.Pane, until: float) -> None:
    """Close it; its window closes with its last pane, in all sessions that show it, and a session with its last
    window.
    """
    if not _done_if(server, pane, "#{?pane_in_mode,0,1}", f"kill-pane -t {_quoted(pane.pane)}", until):
        raise OwnerCallFailed("tmux", "it is now used for something else")


def _done_if(server: base.TerminalServer, pane: base.Pane, condition: str, command: str, until: float) -> bool:
    """Have the server run the command if, at that time, the condition (formats, tmux(1)) holds and it is not late."""
    deadline = math.ceil(time.time() + until - time.monotonic())
    same = f"#{{==:#{{pid}}/#{{pane_pid}},{pane.server_pid}/{pane.pid}}}"
    in_time = f"#{{<:#{{T:#{{l:%s}}}},{deadline}}}"  # both have ten digits
    still = f"#{{&&:{in_time},#{{&&:{same},{condition}}}}}"
    answer = _tmux(server, until, "if-shell", "-F", "-t", pane.pane, still, command, f"display-message -p '{REFUSED}'")
    return answer.strip() != REFUSED


def retry(socket: str, pane: str) -> str:
    """The command with which a person can close it, with its socket, as plain `tmux` may mean another server.

    For a server that was only reported at most a name is known.
    """
    where = f"-{'S' if '/' in socket else 'L'} {shlex.quote(socket)} " if socket else ""
    return f"tmux {where}kill-pane -t {_quoted(pane)}"


def _quoted(word: str) -> str:
    """A word quoted for tmux: nothing in it is a separator, a variable or an escape."""
    return "'" + word.replace("'", "'\\''") + "'"


def _tmux(server: base.TerminalServer, until: float, *words: str) -> str:
    """Run a tmux command. -u: names are not altered, whatever the locale. No command used here starts a server
    (tmux(1)).
    """
    return base.say(["tmux", "-u", "-S", client.SOCKET, *words], server, until)


TMUX = base.Terminal(servers, panes, screen, write, close, retry, VARIABLES, cursor)
