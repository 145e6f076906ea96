"""A stand-in for kitty and WezTerm: real programs in real terminals, behind the remote control that both document.

`serve SOCKET` is the terminal. It speaks kitty's protocol ("The kitty remote control protocol" of its documentation, as
kitty 0.26 answers) on its socket; `wezterm ...` is the client of WezTerm, with the words that we use of
`wezterm cli --help`, and a list of the shape that it gives. What SOCKET.mode holds is done badly: `lies` (a close that
says it is done), `refuses`, `hangs`, `garbage` (in place of a list). Each call is a line in SOCKET.calls.
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

BEGIN, END = b"\x1bP@kitty-cmd", b"\x1b\\"
CALLS = {
    "ls": "list",
    "list": "list",
    "get-text": "text",
    "send-text": "write",
    "close-window": "close",
    "kill-pane": "close",
}


class Terminal:
    """Windows by number, each a pty with a process in it; a dead one's goes, as both programs have it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.last = 0  # no number is given twice
        self.windows: dict[int, tuple[int, int, str, str]] = {}  # pid, descriptor, device, what it shows
        self.waiting: list[socket.socket] = []  # clients that get no answer
        self.selector = selectors.DefaultSelector()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(8)
        self.selector.register(self.listener, selectors.EVENT_READ)

    def serve(self) -> None:
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is self.listener:
                    client = self.listener.accept()[0]
                    client.settimeout(1)
                    with suppress(OSError, ValueError):
                        self.serve_one(client)
                    if client not in self.waiting:
                        client.close()
                else:
                    self.read(key.data)

    def serve_one(self, client: socket.socket) -> None:
        """One request: of the client below, or of kitty's protocol."""
        said = b""
        while not said.endswith((b"\n", END)):
            got = client.recv(65536)
            if not got:
                return
            said += got
        if not said.startswith(BEGIN):
            client.sendall(json.dumps(self.do(**json.loads(said))).encode())
            return
        for command in said.split(END)[:-1]:
            answer = self.kitty(**json.loads(command.removeprefix(BEGIN)))
            if answer is not None:
                client.sendall(BEGIN + json.dumps(answer).encode() + END)
            elif len(self.waiting) < 8:
                self.waiting.append(client)  # it hears nothing more from us

    def kitty(self, cmd: str, version: list[int], no_response: bool, payload: dict[str, str]) -> dict[str, Any] | None:
        """What kitty answers; None: nothing."""
        call = CALLS[cmd]
        note(self.path, call)
        if call == "list":
            listed = _listed("kitty", self.do("list"))
            return {"ok": True, "data": "{]" if mode(self.path) == "garbage" else json.dumps(listed)}
        if call == "close" and mode(self.path) == "lies":
            return {"ok": True}
        if call == "close" and mode(self.path) == "refuses":
            return {"ok": False, "error": "not now\x1b]0;x"}
        if call == "close" and mode(self.path) == "hangs":
            return None
        if payload.get("extent") == "selection":
            return {"ok": True, "data": ""}
        number = int(payload["match"].removeprefix("id:"))
        done = self.do(call, number, text=payload.get("data", "").removeprefix("text:"))
        if done is None:
            return {"ok": False, "error": f"No matching windows for expression: id:{number}"}
        if call == "write":  # it answers to a failure alone
            return None
        return {"ok": True, "data": done} if call == "text" else {"ok": True}

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


def mode(path: str) -> str:
    """What is done badly."""
    return Path(f"{path}.mode").read_text() if os.path.exists(f"{path}.mode") else ""


def note(path: str, call: str) -> None:
    """Write down one call."""
    with Path(f"{path}.calls").open("a") as calls:
        calls.write(f"{call}\n")


def client(words: list[str]) -> int:
    """What `wezterm` does with these words."""
    path = os.path.realpath(os.environ.get("WEZTERM_UNIX_SOCKET", ""))
    name, *rest = words[words.index("cli") + 2 :]
    call = CALLS[name]
    note(path, call)
    if call == "list":
        found = ask(path, call="list")
        print("{]" if mode(path) == "garbage" else json.dumps(_listed("wezterm", found)))
        return 0
    if call == "close" and mode(path) in ("lies", "refuses"):
        return int(mode(path) == "refuses")
    if call == "close" and mode(path) == "hangs":
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
    sys.exit(client(sys.argv[1:]))
