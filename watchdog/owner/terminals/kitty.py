"""kitty, by its remote control protocol (allow_remote_control and listen_on must be set in kitty.conf).

A command is JSON between `ESC P @kitty-cmd` and `ESC \\`, and so is its answer (kitty's documentation, "The kitty
remote control protocol"; tried with kitty 0.26.5). We implement it ourselves: no kitty program is run, and the process
that answers is identified by the credentials of this very connection, also with an abstract socket. A window's number
is not reused while its kitty lives.

Tests: tests/owner/terminals/test_other_terminals.py.
"""

import json
import shlex
import time
from collections.abc import Mapping
from typing import Any

from watchdog.errors import OwnerCallFailed
from watchdog.owner.terminals import base, pane_lookup

# kitty rejects commands with a later version than its own; this one is from the documentation's example.
VERSION = (0, 14, 2)
BEGIN, END = b"\x1bP@kitty-cmd", b"\x1b\\"
VARIABLES = ("KITTY_LISTEN_ON",)


def servers(variables: Mapping[str, str], name: str) -> list[str]:
    """The kitty named by `name` or the environment (`unix:/path`, `unix:@abstract`)."""
    address = (name or variables.get("KITTY_LISTEN_ON", "")).removeprefix("unix:")
    return [address] if address.startswith(("/", "@")) else []


def panes(server: base.TerminalServer, until: float) -> list[base.ListedPane]:
    """All windows, in all tabs and OS windows."""
    found = []
    try:
        for outer in json.loads(_asked(server, until, "ls")):
            for tab in outer["tabs"]:
                for window in tab["windows"]:
                    found.append(_seen(window, str(tab["id"])))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OwnerCallFailed("kitty", f"kitty lists what is no window: {base.plain(repr(error))}") from None
    return found


def _seen(window: dict[str, Any], tab: str) -> base.ListedPane:
    pid = int(window["pid"] or 0)
    try:
        first = pane_lookup.stat_of(pid)
    except OwnerCallFailed:
        return base.ListedPane(str(int(window["id"])), pid, dead=True, busy="closed", window=tab)
    return base.ListedPane(str(int(window["id"])), pid, first.device, window=tab)


def screen(server: base.TerminalServer, pane: str, above: int, until: float) -> str:
    """Its screen, with `above` also the scrollback; wrapped lines are joined."""
    return _asked(server, until, "get-text", match=f"id:{pane}", extent="all" if above else "screen")


def write(server: base.TerminalServer, pane: base.Pane, key: str, until: float) -> None:
    """Send the key as text without escape processing.

    kitty answers `send-text` only on failure (0.26.5), so a second command follows, which it always answers.
    """
    window = f"id:{pane.pane}"
    said = _command("send-text", match=window, data=f"text:{base.typed(key)}")
    _answer(server, until, "send-text", said + _command("get-text", match=window, extent="selection"))


def close(server: base.TerminalServer, pane: base.Pane, until: float) -> None:
    """Close the window; its tab closes with its last window."""
    _asked(server, until, "close-window", match=f"id:{pane.pane}")


def retry(socket: str, pane: str) -> str:
    """The command with which a person can close it."""
    return shlex.join(["kitty", "@", "--to", f"unix:{socket}", "close-window", "--match", f"id:{pane}"])


def _asked(server: base.TerminalServer, until: float, name: str, **payload: object) -> str:
    return _answer(server, until, name, _command(name, **payload))


def _command(name: str, **payload: object) -> bytes:
    command = {"cmd": name, "version": VERSION, "no_response": False, "payload": payload}
    return BEGIN + json.dumps(command).encode() + END


def _answer(server: base.TerminalServer, until: float, name: str, said: bytes) -> str:
    """The data of its first answer, or "". Raises OwnerCallFailed: `no_pane`, `unheard`, `kitty`."""
    try:
        answer = json.loads(_exchanged(server, until, said))
        if answer["ok"]:
            return str(answer.get("data") or "")
        raise OwnerCallFailed("kitty", f"kitty refused {name}: {base.plain(answer.get('error'))}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OwnerCallFailed("kitty", f"kitty's answer to {name} is not valid: {base.plain(repr(error))}") from None


def _exchanged(server: base.TerminalServer, until: float, said: bytes) -> bytes:
    """The body of the first answer on a new connection to exactly that process."""
    began = time.monotonic()
    late = OwnerCallFailed("kitty", f"kitty did not answer in {max(base.LEAST, until - began):.1f} s")
    with base.connected(server, until) as asked:
        if base.peer(asked)[0] != server.pid or not pane_lookup.lives(server.pid, server.ticks):
            raise OwnerCallFailed("no_pane", f"another process listens at {server.socket} now")
        heard = bytearray()
        try:
            asked.sendall(said)  # within the connection's timeout
            while END not in heard[-(1 << 16) - 1 :]:
                asked.settimeout(max(base.LEAST, until - time.monotonic()))
                got = asked.recv(1 << 16)
                heard += got
                if not got or len(heard) > base.OUTPUT_LIMIT:
                    raise OwnerCallFailed("kitty", f"kitty's answer is no whole one, of {len(heard)} bytes")
                if time.monotonic() > until + base.LEAST:
                    raise late
        except TimeoutError:
            raise late from None
        except OSError as error:
            raise OwnerCallFailed("kitty", f"kitty cannot be asked: {error.strerror}") from error
    begin = heard.find(BEGIN)
    return bytes(heard[begin + len(BEGIN) : heard.find(END, begin)]) if begin >= 0 else b""


KITTY = base.Terminal(servers, panes, screen, write, close, retry, VARIABLES)
