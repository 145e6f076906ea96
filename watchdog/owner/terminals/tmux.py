"""tmux: every server of the owner's, at its socket; panes by their ids, which a server gives to one pane only.

No target is ever a session's or window's name: tmux takes such a word for a prefix or a pattern when nothing has that
name, and ends the neighbour (tmux(1), target-session). Who is meant is chosen from the list of all panes, by equality.
A pane of a window that several sessions show (a session group) is one pane: closed once, it is closed in all.
"""

import os
from collections.abc import Mapping

from watchdog.errors import OwnerCallFailed
from watchdog.owner.terminals import base, sitting

SERVERS = 32  # sockets that are looked at
VARIABLES = ("TMUX", "TMUX_TMPDIR")
# The session's name last: it may hold what separates.
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
_FORMAT = "|".join(f"#{{{name}}}" for name in _ASKED)


def servers(variables: Mapping[str, str], name: str) -> list[str]:
    """Sockets: the agent's own server first, then `-L` servers of the owner's; with a name that one alone."""
    own = variables.get("TMUX", "").partition(",")[0]
    if name.startswith("/"):
        return [name]
    places = dict.fromkeys([variables.get("TMUX_TMPDIR", ""), os.environ.get("TMUX_TMPDIR", ""), "/tmp"])  # noqa: S108
    found = dict.fromkeys([own] if own.startswith("/") else ())
    for place in places:
        directory = f"{place}/tmux-{os.geteuid()}"
        if place.startswith("/") and os.path.isdir(directory):
            found |= dict.fromkeys(sorted(entry.path for entry in os.scandir(directory)))
    return [path for path in found if name in ("", os.path.basename(path))][:SERVERS]


def panes(socket: str, until: float) -> list[base.Seen]:
    """All panes of a server; one that several sessions show is one."""
    found: dict[str, base.Seen] = {}
    for line in _tmux(socket, until, "list-panes", "-a", "-F", _FORMAT).splitlines():
        words = line.split("|", len(_ASKED) - 1)
        if len(words) != len(_ASKED) or not words[1].isdigit():
            raise OwnerCallFailed("tmux", f"the server at {socket} lists what is no pane: {line[:80]!r}")
        pane, pid, dead, read, *flags, tty, width, height, window, session = words
        busy = "scrolled in by somebody, coupled with others, or closed" if {*flags, read, dead} - {"0", ""} else ""
        device = sitting.device_of(tty) if dead != "1" else 0
        before = found[pane].sessions if pane in found else ()
        found[pane] = base.Seen(
            pane,
            int(pid),
            device,
            dead=dead == "1",
            read=read not in ("0", ""),
            busy=busy,
            sessions=(*before, session),
            window=window,
            size=f"{width}x{height}",
        )
    return list(found.values())


def screen(socket: str, pane: str, until: float) -> str:
    """What it shows; lines that were broken at its edge are whole (-J)."""
    return _tmux(socket, until, "capture-pane", "-p", "-J", "-t", pane)


def write(socket: str, pane: str, key: str, until: float) -> None:
    """A key by its name, or text as it is."""
    word = [key] if base.KEY.fullmatch(key) else ["-l", "--", key]
    _tmux(socket, until, "send-keys", "-t", pane, *word)


def close(socket: str, pane: str, until: float) -> None:
    """Its window goes with its last pane, in all sessions that show it; a session without a window goes too."""
    _tmux(socket, until, "kill-pane", "-t", pane)


def retry(socket: str, pane: str) -> str:
    """What a person types to close it, on a server of that socket or name."""
    own = f"/tmp/tmux-{os.geteuid()}"  # noqa: S108 where tmux has its servers
    name = socket.removeprefix(f"{own}/")
    if name in ("", "default"):
        return f"tmux kill-pane -t {_quoted(pane)}"
    if "/" not in name:
        return f"tmux -L {_quoted(name)} kill-pane -t {_quoted(pane)}"
    return f"tmux -S {_quoted(socket)} kill-pane -t {_quoted(pane)}"


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'" if not word.isalnum() else word


def _tmux(socket: str, until: float, *words: str) -> str:
    """-u: names come as they are, whatever the locale. None of these words starts a server (tmux(1))."""
    return base.say(["tmux", "-u", "-S", socket, *words], until)


TMUX = base.Terminal(servers, panes, screen, write, close, retry, VARIABLES)
