"""A stand-in for kitty and WezTerm: real programs in real terminals, behind the remote control that both document.

`serve SOCKET` is the terminal; `kitty ...` and `wezterm ...` are its clients, with the words that we use of kitty 0.26
(`kitty @ --help`) and of `wezterm cli --help`, and lists of the shape that those give. What SOCKET.mode holds, the
client does badly: `lies` (a close that says it is done), `refuses`, `hangs`, `garbage` (in place of a list). Each call
is a line in SOCKET.calls.
"""

import json
import os
import selectors
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any


class Terminal:
    """Windows by number, each a pty with a process in it; a dead one's goes, as both programs have it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.last = 0  # no number is given twice
        self.windows: dict[int, tuple[int, int, str, str]] = {}  # pid, descriptor, device, what it shows
        self.selector = selectors.DefaultSelector()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(8)
        self.selector.register(self.listener, selectors.EVENT_READ)

    def serve(self) -> None:
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is self.listener:
                    with self.listener.accept()[0] as client:
                        client.settimeout(1)
                        with suppress(OSError, ValueError):
                            request = client.makefile().readline()
                            client.sendall(json.dumps(self.do(**json.loads(request))).encode())
                else:
                    self.read(key.data)

    def read(self, number: int) -> None:
        pid, descriptor, device, text = self.windows[number]
        try:
            data = os.read(descriptor, 4096)
        except OSError:  # EIO: nobody has the other end open any more
            data = b""
        if data:
            self.windows[number] = pid, descriptor, device, text + data.decode(errors="replace").replace("\r", "")
        else:
            self.close(number)

    def close(self, number: int) -> None:
        pid, descriptor, _, _ = self.windows.pop(number)
        self.selector.unregister(descriptor)
        os.close(descriptor)  # the kernel hangs up the terminal
        for number in (signal.SIGHUP, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        os.waitpid(pid, 0)

    def do(self, call: str, number: int = 0, argv: list[str] | None = None, text: str = "") -> Any:
        if call == "open":
            self.last = number = self.last + 1
            descriptor, inner = os.openpty()
            tty, pid = os.ttyname(inner), os.fork()
            if not pid:
                os.login_tty(inner)
                os.closerange(3, 64)
                os.execvpe("/bin/sh", argv or [], {**os.environ, "PS1": "$ ", "ENV": ""})
            os.close(inner)
            self.windows[number] = pid, descriptor, tty, ""
            self.selector.register(descriptor, selectors.EVENT_READ, number)
            return {"number": number, "pid": pid}
        if call == "list":
            return [{"number": one, "pid": pid, "tty": tty} for one, (pid, _, tty, _) in self.windows.items()]
        if number not in self.windows:
            return None
        if call == "text":
            return self.windows[number][3]
        if call == "write":
            os.write(self.windows[number][1], text.encode())
        elif call == "close":
            self.close(number)
        return True


def ask(path: str, **request: Any) -> Any:
    """One question to the terminal at that socket."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(path)
        asked.sendall(json.dumps(request).encode() + b"\n")
        return json.loads(asked.makefile().read())


def client(program: str, words: list[str]) -> int:
    """What `kitty` and `wezterm` do with these words."""
    path = os.environ.get("WEZTERM_UNIX_SOCKET", "") if program == "wezterm" else words[2].removeprefix("unix:")
    name, *rest = words[2:] if program == "wezterm" else words[3:]
    call = {"ls": "list", "list": "list", "get-text": "text", "send-text": "write"}.get(name, "close")
    with Path(f"{path}.calls").open("a") as calls:
        calls.write(f"{call}\n")
    mode = Path(f"{path}.mode").read_text() if os.path.exists(f"{path}.mode") else ""
    if call == "list":
        found = ask(path, call="list")
        print("{]" if mode == "garbage" else json.dumps(_listed(program, found)))
        return 0
    if call == "close" and mode in ("lies", "refuses"):
        return int(mode == "refuses")
    if call == "close" and mode == "hangs":
        time.sleep(60)
    number = int(rest[1].removeprefix("id:"))
    done = ask(path, call=call, number=number, text=sys.stdin.read() if call == "write" else "")
    if done is None:
        print(f"no matching window: {number}", file=sys.stderr)
        return 1
    if call == "text":
        print(done)
    return 0


def _listed(program: str, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if program == "kitty":
        windows = [{"id": one["number"], "pid": one["pid"], "cmdline": [], "env": {}} for one in found]
        return [{"id": 1, "tabs": [{"id": 1, "title": "", "windows": windows}]}]
    size = {"rows": 24, "cols": 80}
    return [
        {"window_id": 0, "tab_id": 0, "pane_id": one["number"], "tty_name": one["tty"], "size": size} for one in found
    ]


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        Terminal(sys.argv[2]).serve()
    sys.exit(client(sys.argv[1], sys.argv[2:]))
