"""States that a process may be in when it is to be ended, and places where it may be."""

import os
import secrets
import subprocess
import sys
from functools import partial
from pathlib import Path

from tests.faults.private import UP, running, start
from tests.faults.table import Row, Run
from tests.world import alive, wait_for

FOREVER = "\nwhile True: time.sleep(1000)\n"

DEAD_LEADER = f"""
import ctypes, threading
def live():
    while open("/proc/self/stat").read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    {UP.strip()}
    time.sleep(1000)
threading.Thread(target=live).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def dead_leader(run: Run, code: str = DEAD_LEADER) -> None:
    for _ in range(run.times):
        with running() as world:
            pid = start(world, "half", code)
            assert not alive(pid), "its leader is a zombie"
            assert world.agents()["half"]["status"] == "running"
            done = world.cli("kill", "half", check=False)
            assert done.returncode == 0, f"{done.stderr}{world.log.read_text()}"
            wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists(), "its last thread is dead")  # type: ignore[misc]


HANDLER = """
def bye(*_):
    open("handled", "w").close()
    os._exit(0)
signal.signal(signal.SIGTERM, bye)
"""


def stopped(run: Run) -> None:
    for _ in range(run.times):
        with running(kill={"grace_seconds": 10}) as world:
            start(world, "stopped", f"{HANDLER}{UP}os.kill(os.getpid(), signal.SIGSTOP){FOREVER}")
            world.cli("kill", "stopped")
            assert (world.dir / "handled").exists()
            assert world.agents()["stopped"]["status"] == "killed"


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# As strace does it: lets it stop, and passes every other signal on (ptrace(2)). `held` stops it for ever instead.
TRACER = """
import ctypes, os, signal, sys, time
CONT, SEIZE, INTERRUPT, LISTEN, EVENT_STOP, ALL = 7, 0x4206, 0x4207, 0x4208, 128, 0x40000000
pid, held = int(sys.argv[1]), sys.argv[2] == "held"
def ptrace(request, signal=0):
    assert ctypes.CDLL(None).ptrace(request, pid, ctypes.c_void_p(0), ctypes.c_void_p(signal)) == 0
ptrace(SEIZE)
if held:
    ptrace(INTERRUPT)
    os.waitpid(pid, ALL)
print("traced", flush=True)
while held:
    time.sleep(1000)
while True:
    status = os.waitpid(pid, ALL)[1]
    if not os.WIFSTOPPED(status):
        break
    event, number = status >> 16, os.WSTOPSIG(status)
    if event == EVENT_STOP and number == signal.SIGSTOP:
        ptrace(LISTEN)
    else:
        ptrace(CONT, 0 if event else number)
"""


def traced(run: Run, *, held: bool) -> None:
    for _ in range(run.times):
        with running(kill={"grace_seconds": 1 if held else 10}) as world:
            pid = start(world, "traced", f"{HANDLER}{UP}{FOREVER}")
            words = [sys.executable, "-c", TRACER, str(pid), "held" if held else "let"]
            with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as tracer:
                try:
                    assert tracer.stdout is not None
                    assert tracer.stdout.readline() == "traced\n"
                    if not held:
                        os.kill(pid, 19)
                    wait_for(lambda pid=pid: state(pid) == "t", "it is stopped by its tracer")  # type: ignore[misc]
                    world.cli("kill", "traced")
                finally:
                    tracer.kill()
            assert world.agents()["traced"]["status"] == "killed"
            assert not alive(pid)
            assert (world.dir / "handled").exists() != held


# Starts the agent and never waits for it: argv is its environment as JSON, and its command.
NEVER_WAITS = """
import json, os, subprocess, sys, time
child = subprocess.Popen(sys.argv[2:], env={**os.environ, **json.loads(sys.argv[1])}, start_new_session=True)
print(child.pid, flush=True)
time.sleep(1000)
"""


def foreign_zombie(run: Run) -> None:
    for number in range(run.times):
        with running() as world:
            sleep = ("sleep", "1000" if number % 2 else "1")
            words = (sys.executable, "-c", NEVER_WAITS, "{}", *sleep)
            with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=world.environ) as parent:
                try:
                    assert parent.stdout is not None
                    pid = int(parent.stdout.readline())
                    status, answer = world.ask("POST", "/v1/agents", {"name": "child", "pid": pid})
                    assert status == 201, answer
                    if number % 2:
                        world.cli("kill", "child")
                    world.wait_status("child", "killed", "completed")
                    assert state(pid) == "Z"
                    assert world.count("kill.unkillable") == 0
                finally:
                    parent.kill()


# Two that ignore TERM, one without environment and in a session of its own, below a pid namespace's own process 1.
SANDBOX = """
argv = ["unshare", *(["-Ur"] if os.getuid() else []), "--pid", "--fork", "--mount-proc", "sh", "-c", INNER]
subprocess.Popen(argv)
"""


def sandboxed(run: Run, *, by_run: bool) -> None:
    for _ in range(run.times):
        number = str(10**8 + secrets.randbelow(10**8))  # seconds to sleep: what they are known by
        inner = f"trap '' TERM; env -i setsid sleep {number} & sleep {number} & wait"
        with running() as world:
            start(world, "box", f"INNER = {inner!r}\n{SANDBOX}{UP}{FOREVER}", by_run=by_run)
            found = wait_for(lambda n=number: two(n), "both are there")  # type: ignore[misc]
            world.cli("kill", "box")
            assert [pid for pid in found if alive(pid)] == []


def two(number: str) -> list[int]:
    """The pids of both, as we see them."""
    wanted = f"sleep\0{number}\0".encode()
    found = [path.parent for path in Path("/proc").glob("[0-9]*/cmdline") if wanted == read(path)]
    return [int(path.name) for path in found] if len(found) == 2 else []


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


ROWS = [
    Row(
        "zombie main with a living thread",
        "pthread_exit in the first thread",
        "counts as alive; then killed",
        dead_leader,
        runs=20,
        limit=300,
    ),
    Row(
        "zombie main with a living thread that ignores TERM",
        "pthread_exit in the first thread; `cgroup.kill` ends no such process (seen on 6.18)",
        "killed by its pidfd",
        partial(dead_leader, code="signal.signal(signal.SIGTERM, signal.SIG_IGN)" + DEAD_LEADER),
        runs=20,
        limit=300,
    ),
    Row(
        "foreign zombie",
        "the agent's parent never waits for it; it ends by itself, or is killed",
        "counts as dead, and its row is closed",
        foreign_zombie,
        runs=20,
        least=2,
        limit=300,
    ),
    Row("stopped agent", "SIGSTOP before the order", "its TERM handler runs after CONT", stopped, runs=20, limit=300),
    Row(
        "traced and stopped agent",
        "a tracer (PTRACE_SEIZE) that passes signals on, and SIGSTOP",
        "its TERM handler runs after CONT",
        partial(traced, held=False),
        runs=20,
        root=True,
        limit=300,
    ),
    Row(
        "agent held by a debugger",
        "a tracer (PTRACE_INTERRUPT) that never lets it go on",
        "no handler can run: killed after the grace",
        partial(traced, held=True),
        runs=20,
        root=True,
        limit=300,
    ),
    Row(
        "sandboxed child, started by `run`",
        "in a pid namespace of its own, deaf, half of it without environment",
        "dies with the agent",
        partial(sandboxed, by_run=True),
        runs=20,
        limit=300,
    ),
    Row(
        "sandboxed child, only registered",
        "in a pid namespace of its own, deaf, half of it without environment",
        "dies with the agent",
        partial(sandboxed, by_run=False),
        runs=20,
        limit=300,
    ),
]
