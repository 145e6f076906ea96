"""kitty, by its remote control (kitty(1), `kitty @`; allow_remote_control and listen_on must be set in kitty.conf).

Newer ones have it as `kitten @`, which answers at once; `kitty @` starts a Python first and takes half a second.
A window's number is given once while its kitty lives.
"""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from watchdog.errors import OwnerCallFailed
from watchdog.owner.terminals import base, sitting

VARIABLES = ("KITTY_LISTEN_ON",)


def servers(variables: Mapping[str, str], name: str) -> list[str]:
    """The kitty that its environment names, or that was named (`unix:/path`, `unix:@abstract`)."""
    address = (name or variables.get("KITTY_LISTEN_ON", "")).removeprefix("unix:")
    return [address] if address.startswith(("/", "@")) else []


def panes(socket: str, until: float) -> list[base.Seen]:
    """All windows, of every tab and window of the desktop."""
    found = []
    try:
        for outer in json.loads(_kitty(socket, until, "ls")):
            for tab in outer["tabs"]:
                for window in tab["windows"]:
                    found.append(_seen(window, str(tab["id"])))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OwnerCallFailed("kitty", f"kitty @ ls lists what is no window: {error!r}") from None
    return found


def _seen(window: dict[str, Any], tab: str) -> base.Seen:
    pid = int(window["pid"] or 0)
    try:
        first = sitting.stat_of(pid)
    except OwnerCallFailed:
        return base.Seen(str(int(window["id"])), pid, dead=True, busy="closed", window=tab)
    return base.Seen(str(int(window["id"])), pid, first.device, window=tab)


def screen(socket: str, pane: str, above: int, until: float) -> str:
    """What it shows, and all above it; lines that were broken at its edge are whole."""
    extent = ("--extent", "all") if above else ()
    return _kitty(socket, until, "get-text", "--match", f"id:{pane}", *extent)


def write(pane: base.Pane, key: str, until: float) -> None:
    """By stdin, where nothing is read as an escape."""
    _kitty(pane.server, until, "send-text", "--match", f"id:{pane.pane}", "--stdin", given=base.typed(key))


def close(pane: base.Pane, until: float) -> None:
    """Its tab goes with its last window."""
    _kitty(pane.server, until, "close-window", "--match", f"id:{pane.pane}")


def retry(socket: str, pane: str) -> str:
    """What a person types to close it."""
    return shlex.join(["kitty", "@", "--to", f"unix:{socket}", "close-window", "--match", f"id:{pane}"])


def _kitty(socket: str, until: float, *words: str, given: str | None = None) -> str:
    arguments = ["@", "--to", f"unix:{socket}", *words]
    try:
        return base.say(["kitten", *arguments], until, given=given)
    except OwnerCallFailed as error:
        if not isinstance(error.__cause__, OSError):  # EACCES, too: where a directory of PATH is closed to us
            raise
    return base.say(["kitty", *arguments], until, given=given)


KITTY = base.Terminal(servers, panes, screen, write, close, retry, VARIABLES)
