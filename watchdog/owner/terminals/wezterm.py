"""WezTerm, by `wezterm cli`. It lists panes with their device but without a pid, which is the session leader's.

A pane's number is not reused while its server lives. `--no-auto-start`: a query starts no server. `-n`: its
configuration, a Lua program, is not run.

Tests: tests/owner/terminals/test_other_terminals.py.
"""

import json
import shlex
from collections.abc import Mapping

from watchdog.errors import OwnerCallFailed
from watchdog.owner.terminals import base, client, pane_lookup

VARIABLES = ("WEZTERM_UNIX_SOCKET",)


def servers(variables: Mapping[str, str], name: str) -> list[str]:
    """The server named by `name` or the environment."""
    address = name or variables.get("WEZTERM_UNIX_SOCKET", "")
    return [address] if address.startswith("/") else []


def panes(server: base.TerminalServer, until: float) -> list[base.ListedPane]:
    """All panes of the server."""
    found = []
    try:
        for one in json.loads(_wezterm(server, until, "list", "--format", "json")):
            device = pane_lookup.device_of(str(one.get("tty_name") or ""))
            size = one.get("size") or {}
            across = f"{int(size['cols'])}x{int(size['rows'])}" if size else ""
            found.append(
                base.ListedPane(
                    str(int(one["pane_id"])), 0, device, window=base.plain(one.get("tab_id", "")), size=across
                )
            )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OwnerCallFailed("wezterm", f"wezterm lists what is no pane: {base.plain(repr(error))}") from None
    return found


def screen(server: base.TerminalServer, pane: str, above: int, until: float) -> str:
    """Its screen; with `above` also scrollback, with wrapped lines joined: wrapping is not reported, so each line that
    fills a row counts as wrapped.
    """
    if not above:
        return _wezterm(server, until, "get-text", "--pane-id", pane)
    width = next((int(one.size.partition("x")[0] or 0) for one in panes(server, until) if one.pane == pane), 0)
    text = _wezterm(server, until, "get-text", "--pane-id", pane, "--start-line", str(-above))
    return "".join(row if len(row) == width else f"{row}\n" for row in text.split("\n"))


def write(server: base.TerminalServer, pane: base.Pane, key: str, until: float) -> None:
    """Send the key by stdin, as typed rather than pasted."""
    words = "send-text", "--pane-id", pane.pane, "--no-paste"
    _wezterm(server, until, *words, given=base.typed(key))


def close(server: base.TerminalServer, pane: base.Pane, until: float) -> None:
    """Close it; its tab closes with its last pane."""
    _wezterm(server, until, "kill-pane", "--pane-id", pane.pane)


def retry(socket: str, pane: str) -> str:
    """The command with which a person can close it."""
    return f"WEZTERM_UNIX_SOCKET={shlex.quote(socket)} wezterm cli kill-pane --pane-id {shlex.quote(pane)}"


def _wezterm(server: base.TerminalServer, until: float, *words: str, given: str = "") -> str:
    argv = ["wezterm", "-n", "cli", "--no-auto-start", *words]
    return base.say(argv, server, until, environ={"WEZTERM_UNIX_SOCKET": client.SOCKET}, given=given)


WEZTERM = base.Terminal(servers, panes, screen, write, close, retry, VARIABLES)
