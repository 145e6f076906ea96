"""kitty, by its remote control protocol (allow_remote_control and listen_on must be set in kitty.conf).

A command is JSON between `ESC P @kitty-cmd` and `ESC \\`, and so is its answer (kitty's documentation, "The kitty
remote control protocol"; spoken to kitty 0.26.5). We speak it ourselves: no program of kitty's is run, and the process
that answers is known by the credentials of this very connection, of an abstract socket, too.
A window's number is given once while its kitty lives.

Tests: tests/owner/terminals/test_other_terminals.py.
"""

import json
import shlex
import time
from collections.abc import Mapping
from typing import Any

from watchdog.errors import OwnerCallFailed
from watchdog.owner.terminals import base, pane_lookup

# A kitty refuses a command of a later version than its own; this one is in the documentation's example.
VERSION = (0, 14, 2)
BEGIN, END = b"\x1bP@kitty-cmd", b"\x1b\\"
VARIABLES = ("KITTY_LISTEN_ON",)


def servers(variables: Mapping[str, str], name: str) -> list[str]:
    """The kitty that its environment names, or that was named (`unix:/path`, `unix:@abstract`)."""
    address = (name or variables.get("KITTY_LISTEN_ON", "")).removeprefix("unix:")
    return [address] if address.startswith(("/", "@")) else []


def panes(server: base.TerminalServer, until: float) -> list[base.ListedPane]:
    """All windows, of every tab and window of the desktop."""
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
    """What it shows, and all above it; lines that were broken at its edge are whole."""
    return _asked(server, until, "get-text", match=f"id:{pane}", extent="all" if above else "screen")


def write(server: base.TerminalServer, pane: base.Pane, key: str, until: float) -> None:
    """As text in which nothing is read as an escape.

    A kitty answers to `send-text` only when it fails (0.26.5), so a second command follows, which it always answers.
    """
    window = f"id:{pane.pane}"
    said = _command("send-text", match=window, data=f"text:{base.typed(key)}")
    _answer(server, until, "send-text", said + _command("get-text", match=window, extent="selection"))


def close(server: base.TerminalServer, pane: base.Pane, until: float) -> None:
    """Its tab goes with its last window."""
    _asked(server, until, "close-window", match=f"id:{pane.pane}")


def retry(socket: str, pane: str) -> str:
    """What a person types to close it."""
    return shlex.join(["kitty", "@", "--to", f"unix:{socket}", "close-window", "--match", f"id:{pane}"])


def _asked(server: base.TerminalServer, until: float, name: str, **payload: object) -> str:
    return _answer(server, until, name, _command(name, **payload))


def _command(name: str, **payload: object) -> bytes:
    command = {"cmd": name, "version": VERSION, "no_response": False, "payload": payload}
    return BEGIN + json.dumps(command).encode() + END


def _answer(server: base.TerminalServer, until: float, name: str, said: bytes) -> str:
    """The data of its first answer, "" without any. Raises OwnerCallFailed: `no_pane`, `unheard`, `kitty`."""
    try:
        answer = json.loads(_exchanged(server, until, said))
        if answer["ok"]:
            return str(answer.get("data") or "")
        raise OwnerCallFailed("kitty", f"kitty refused {name}: {base.plain(answer.get('error'))}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OwnerCallFailed("kitty", f"kitty's answer to {name} is not valid: {base.plain(repr(error))}") from None


def _exchanged(server: base.TerminalServer, until: float, said: bytes) -> bytes:
    """What is in the first answer on a new connection to that very process."""
    began = time.monotonic()
    late = OwnerCallFailed("kitty", f"kitty did not answer in {max(base.LEAST, until - began):.1f} s")
    with base.connected(server, until) as asked:
        if base.peer(asked)[0] != server.pid or not pane_lookup.lives(server.pid, server.ticks):
            raise OwnerCallFailed("no_pane", f"another process listens at {server.socket} now")
        heard = bytearray()
        try:
            asked.sendall(said)  # within the time that was set for the connection
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
