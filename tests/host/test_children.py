"""Children of the event loop: started beside it, connected, waited for; a start that hangs is given up."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.faults.hanging import Hanging, library
from tests.world import make_world, wait_for
from watchdog.host import children

PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def test_a_child_is_connected_and_waited_for() -> None:
    """Its streams, its exit status, the signal that killed it."""

    async def story() -> None:
        script = "read line; echo got $line; echo bad >&2; exit 3"
        child = await children.start("sh", "-c", script, **PIPES)
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        child.stdin.write(b"hello\n")
        await child.stdin.drain()
        assert (await child.stdout.readline(), await child.stderr.read()) == (b"got hello\n", b"bad\n")
        assert (await child.wait(), child.returncode) == (3, 3)
        child.kill()  # already reaped: no other process gets it
        child.close()
        other = await children.start("sleep", "1000")
        assert other.returncode is None
        other.kill()
        assert await asyncio.wait_for(other.wait(), 60) == -signal.SIGKILL
        other.close()
        with pytest.raises(FileNotFoundError):
            await children.start("/no/such/program")

    asyncio.run(story())


@pytest.mark.parametrize("during", [0, 1], ids=["its first pipe", "its second pipe"])
def test_a_start_that_is_given_up_before_its_pipes_are_streams_leaves_none_open(
    during: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller was out of time: seen on a busy machine, with a late helper (an unclosed FileIO)."""
    made: list[subprocess.Popen[bytes]] = []

    def popen(*args: object) -> "subprocess.Popen[bytes]":
        made.append(started(*args))  # type: ignore[arg-type]
        return made[-1]

    async def story() -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(children.start("sleep", "1000", **PIPES))
        name = ("connect_write_pipe", "connect_read_pipe")[during]
        connect = getattr(loop, name)

        def given_up(*args: object) -> object:
            task.cancel()
            return connect(*args)

        monkeypatch.setattr(loop, name, given_up)
        with pytest.raises(asyncio.CancelledError):
            await task

    started = children._popen
    monkeypatch.setattr(children, "_popen", popen)
    asyncio.run(story())
    (child,) = made
    assert all(pipe is not None and pipe.closed for pipe in (child.stdin, child.stdout, child.stderr))
    assert child.wait(60) == -signal.SIGKILL


# -3: subprocess.DEVNULL; otherwise the child that hangs would hold the pipes of the test.
STUCK = """
import asyncio, sys, time
from watchdog.concurrency import threads
from watchdog.host import children
async def story():
    turns, began = 0, time.monotonic()
    task = asyncio.create_task(children.start("/bin/true", stdin=-3, stdout=-3, stderr=-3))
    while not task.done():
        await asyncio.sleep(0.05)
        turns += 1
    print(type(task.exception()).__name__, task.exception().errno, turns, [*threads.overdue(1)])
children.START = 2.0
asyncio.run(story())
"""


def test_a_start_that_hangs_stops_neither_the_loop_nor_the_exit() -> None:
    """With vfork(2) no thread ran until execve(2) had returned: no turn of the loop, and no timer."""
    for world in make_world():
        hanging = Hanging(world.dir)
        hanging.begin("exec", "/bin/true")
        command = ["env", *hanging.words, sys.executable, "-c", STUCK]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2])
        words = done.stdout.split(maxsplit=3)
        assert words[:2] == ["TimeoutError", "110"], done.stderr
        assert int(words[2]) > 4
        assert "the start of a program" in words[3]
        hanging.take_away()


def test_a_start_that_comes_too_late_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its caller no longer waits. One that no thread has begun yet is not begun at all."""
    real, submit = children._popen, children._starters.submit
    begun, gate = threading.Event(), threading.Event()
    pids: list[int] = []

    def slow(argv: tuple[str, ...], options: dict[str, object]) -> "subprocess.Popen[bytes]":
        begun.set()
        gate.wait(60)
        made = real(argv, options)
        pids.append(made.pid)
        return made

    def submit_and_begin(*words: Any) -> "Future[subprocess.Popen[bytes]]":
        future = submit(*words)
        assert begun.wait(60)
        return future

    monkeypatch.setattr(children, "_popen", slow)
    monkeypatch.setattr(children._starters, "submit", submit_and_begin)
    monkeypatch.setattr(children, "START", 0.05)

    async def story() -> None:
        with pytest.raises(TimeoutError, match="no start within"):
            await children.start("sleep", "1000", **PIPES)

    asyncio.run(story())
    gate.set()
    wait_for(lambda: pids and not Path(f"/proc/{pids[0]}").exists(), "it is ended and reaped")


def test_the_library_that_hangs_can_be_built() -> None:
    """The hang tests need it."""
    assert library().exists()


def test_a_child_that_we_did_not_start_is_reaped_and_ours_are_left_to_us() -> None:
    """Case N07: at the second check, when its starter has had the time. `exec` gave us one, too."""
    adopted = children.Adopted()
    orphan, living = os.fork(), os.fork()
    if not orphan:
        os._exit(0)
    if not living:
        signal.pause()
        os._exit(0)
    try:
        os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT)
        ours = subprocess.Popen(["true"])
        os.waitid(os.P_PID, ours.pid, os.WEXITED | os.WNOWAIT)
        assert adopted.look() == 0
        assert ours.wait() == 0
        assert adopted.look() == 1
        with pytest.raises(ChildProcessError):
            os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOHANG)
        assert adopted.look() == 0
        assert os.waitid(os.P_PID, living, os.WEXITED | os.WNOHANG) is None
    finally:
        os.kill(living, signal.SIGKILL)
        os.waitpid(living, 0)


INSIDE = """
import os, signal, subprocess, sys, time
daemon, config, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
if os.fork() == 0:
    deadline = time.monotonic() + 120
    ask = [sys.argv[4], "--socket", sys.argv[5], "status", "--json"]
    while subprocess.run(ask, capture_output=True).returncode and time.monotonic() < deadline:
        time.sleep(0.2)
    for _ in range(limit):
        subprocess.run(["sh", "-c", "sleep 0.01 & sleep 0.01 &"])
    mine = subprocess.Popen([sys.argv[4], "--socket", sys.argv[5], "run", "--name", "one", "--", "sleep", "1000"])
    while "running" not in subprocess.run([*ask[:3], "list", "--json"], capture_output=True, text=True).stdout:
        time.sleep(0.2)
    subprocess.run([*ask[:3], "kill", "one"], capture_output=True)
    mine.wait()
    def zombies():
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] == "Z":
                found.append(pid)
        return found
    while zombies() and time.monotonic() < deadline:
        time.sleep(0.2)
    print("left", len(zombies()), flush=True)
    os.kill(1, signal.SIGTERM)
    os._exit(0)
os.execv(daemon, [daemon, "--config", config])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a pid namespace")
def test_a_daemon_that_is_pid_1_of_a_container_leaves_no_zombie() -> None:
    """Case N07: 40 grandchildren that exit after their parents, and an agent that the daemon killed; TERM stops it."""
    for world in make_world():
        programs = Path(sys.executable).parent
        words = [programs / "agent-watchdogd", world.config, "20", programs / "agent-watchdog", world.socket]
        unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        done = subprocess.run(
            [*unshare, sys.executable, "-c", INSIDE, *map(str, words)],
            capture_output=True,
            text=True,
            env=world.environ,
            timeout=200,
            check=False,
        )
        assert "left 0" in done.stdout, done.stdout + done.stderr
        assert done.returncode == 0
