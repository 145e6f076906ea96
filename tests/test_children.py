"""Children of the loop: they are started beside it, spoken to, waited for; a start that hangs is given up."""

import asyncio
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
from watchdog import children

PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def test_a_child_is_spoken_to_and_waited_for() -> None:
    """Its streams, its exit status, the signal that ended it."""

    async def story() -> None:
        script = "read line; echo got $line; echo bad >&2; exit 3"
        child = await children.start("sh", "-c", script, **PIPES)
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        child.stdin.write(b"hello\n")
        await child.stdin.drain()
        assert (await child.stdout.readline(), await child.stderr.read()) == (b"got hello\n", b"bad\n")
        assert (await child.wait(), child.returncode) == (3, 3)
        child.kill()  # it is reaped: nobody gets it
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
    """Whoever asked has no time any more: seen on a busy machine, by a helper that was late (an unclosed FileIO)."""
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


# -3: subprocess.DEVNULL; the child that hangs would else hold the pipes of the test.
STUCK = """
import asyncio, sys, time
from watchdog import children, threads
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


def test_a_start_that_hangs_stops_neither_the_loop_nor_the_end() -> None:
    """With vfork(2) no thread ran until execve(2) had returned: no turn of the loop, and no timer."""
    for world in make_world():
        hanging = Hanging(world.dir)
        hanging.begin("exec", "/bin/true")
        command = ["env", *hanging.words, sys.executable, "-c", STUCK]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parent.parent)
        words = done.stdout.split(maxsplit=3)
        assert words[:2] == ["TimeoutError", "110"], done.stderr
        assert int(words[2]) > 4
        assert "the start of a program" in words[3]
        hanging.take_away()


def test_a_start_that_comes_too_late_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for it any more. One that no thread has begun with yet is not begun at all."""
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
    """The suites of hangs need it."""
    assert library().exists()
