"""Helpers shared by the tests of kills: programs that record the signals they get."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.world import World, wait_for

# A server: reports its pid, records each signal, and continues whatever it was.
SERVER = """
import os, signal, time
place = os.environ["WORLD"]
def saw(number, frame):
    with open(f"{place}/signals", "a") as file:
        file.write(f"{os.getpid()} {signal.Signals(number).name}\\n")
for name in ("HUP", "INT", "QUIT", "TERM", "CONT", "USR1", "USR2", "ALRM", "TSTP", "PIPE"):
    signal.signal(getattr(signal, "SIG" + name), saw)
with open(f"{place}/{os.environ.get('ROLE', 'servers')}", "a") as file:
    file.write(f"{os.getpid()} {os.getppid()}\\n")
while True:
    time.sleep(1000)
"""

# Starts three servers, each below a shell that waits for it, beats twice and then sleeps.
LEAVES = """
import os, socket, subprocess, sys, time
for number in range(3):
    subprocess.Popen(["sh", "-c", '"$PYTHON" "$WORLD/srv.py"; :'])
if os.environ.get("NOTIFY_SOCKET"):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaker:
        for number in range(2):
            speaker.sendto(b"WATCHDOG=1", os.environ["NOTIFY_SOCKET"])
            time.sleep(0.2)
time.sleep(1000)
"""
SERVERS = ("sh", "-c", '"$PYTHON" "$WORLD/srv.py"; :')  # what LEAVES starts, for bystanders that look the same


def with_servers(world: World) -> None:
    """Put the server's program where the others start it."""
    (world.dir / "srv.py").write_text(SERVER)


def told(world: World, role: str, count: int) -> dict[int, int]:
    """pid -> parent of each server of that role, once so many have reported."""
    path = world.dir / role
    wait_for(lambda: path.exists() and len(path.read_text().splitlines()) >= count, f"{count} {role}")
    return {int(pid): int(parent) for pid, parent in (line.split() for line in path.read_text().splitlines())}


def signals_of(world: World, pid: int) -> list[str]:
    """The signals that a server or a witness got, in order."""
    return [line.split()[1] for line in world.witnessed() if line.split()[0] == str(pid)]


def bystander(world: World, role: str, *command: str, orphan: bool = False) -> int:
    """A server with the agents' command line that belongs to no agent; `orphan`: its parent exits at once. Its pid."""
    start = ("sh", "-c", '"$@" & exit', "sh", *command) if orphan else command
    process = world.spawn(*start, ROLE=role)
    if orphan:
        process.wait(60)
    return next(iter(told(world, role, 1)))


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def in_pid_namespace(module: str, *words: str, limit: float = 110) -> str:
    """Run a module as the first process of its own pid namespace; returns its output. Needs root."""
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-m", module, *words],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=limit,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout


# One server for several clients: answers each line with its own pid. argv: what such servers are started with.
SHARED = """
import os, socket, sys, threading
import ctypes; ctypes.CDLL(None).prctl(15, b"mcp-shared", 0, 0, 0)  # PR_SET_NAME
import signal
def saw(number, frame):
    with open(os.environ["WORLD"] + "/signals", "a") as file:
        file.write(f"{os.getpid()} {signal.Signals(number).name}\\n")
for name in ("HUP", "INT", "TERM", "CONT", "USR1"):
    signal.signal(getattr(signal, "SIG" + name), saw)
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[-1])
server.listen()
def serve(client):
    for line in client.makefile("rb"):
        client.sendall(b"%d\\n" % os.getpid())
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""

# Starts argv[2:] as a daemon if given, queries the server again and again, and records each answer.
ASKER = """
import os, socket, subprocess, sys, time
if sys.argv[3:]:
    subprocess.run(["sh", "-c", 'setsid "$@" </dev/null >/dev/null 2>&1 &', "sh", *sys.argv[3:]])
while True:
    try:
        client = socket.socket(socket.AF_UNIX)
        client.connect(sys.argv[1])
        break
    except OSError:
        time.sleep(0.05)
lines = client.makefile("rb")
while True:
    client.sendall(b"?\\n")
    with open(sys.argv[2], "ab") as file:
        file.write(lines.readline())
    time.sleep(0.1)
"""
