"""Case N22: an agent that a person stopped is waited for, and told; one that nobody known stopped is a stall."""

import ctypes
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.world import BIN, World, alive, make_world, started_at, wait_for

PTRACE_ATTACH, PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 16, 17, 0x4206, 0x4207
SHELL = """
import os, signal, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
job = os.fork()
if job == 0:
    os.setpgid(0, 0)
    if sys.argv[1] == "front":
        os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execvp(sys.argv[2], sys.argv[2:])
while True:
    try:
        os.waitpid(job, os.WUNTRACED)
    except ChildProcessError:
        break
"""


@pytest.fixture
def world() -> Iterator[World]:
    times: dict[str, Any] = {
        "sweep": {"interval_seconds": 0.5},
        "stall": {"after_seconds": 2},
        "log": {"level": "debug"},
    }
    yield from make_world(**times)


@contextmanager
def job(world: World, name: str, *words: str, place: str = "front") -> Iterator[int]:
    """An agent below `run` as a job of a shell on a terminal of its own; the terminal's other end."""
    run = [str(BIN / "agent-watchdog"), "run", "--name", name, "--", *world.script("agent.py", *words)]
    ours, theirs = pty.openpty()
    shell = subprocess.Popen(
        [sys.executable, "-c", SHELL, place, *run],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=world.environ,
        cwd=world.dir,
        start_new_session=True,
        preexec_fn=lambda: os.close(os.open(os.ttyname(theirs), os.O_RDWR)),  # the session's terminal, from now on
    )
    world.started.append(shell)
    os.close(theirs)
    try:
        yield ours
    finally:
        os.close(ours)


def main_of(world: World, name: str) -> int:
    return int(world.story(name)["agent"]["pid"])


def waits(world: World, name: str, words: str) -> None:
    """It is told, and lives on for three times the silence that is too long."""
    event = world.wait_event("agent.waiting", name=name)
    assert words in event["why"], event
    pid = main_of(world, name)
    wait_for(lambda: world.story(name)["agent"]["silence_seconds"] > 6, f"{name} is silent for long")
    world.wait_sweeps(4)
    assert alive(pid)
    assert not world.count("kill.requested", name=name)


@pytest.mark.parametrize("how", ["attached", "seized"])
def test_one_that_a_debugger_holds_is_waited_for_and_has_a_fresh_limit_when_it_goes_on(world: World, how: str) -> None:
    """Both ways in which debuggers stop a process. It is silent still when it is let go, and then it is a stall."""
    world.start()
    world.registered("held", *world.script("agent.py", "beat=0.3/3"))
    world.wait_event("agent.first_beat", name="held")
    libc, pid = ctypes.CDLL(None, use_errno=True), main_of(world, "held")
    assert libc.ptrace(PTRACE_ATTACH if how == "attached" else PTRACE_SEIZE, pid, None, None) == 0
    if how == "seized":
        assert libc.ptrace(PTRACE_INTERRUPT, pid, None, None) == 0
    os.waitpid(pid, 0)
    waits(world, "held", f"a debugger (process {os.getpid()}) holds it")
    before = time.monotonic()
    assert libc.ptrace(PTRACE_DETACH, pid, None, None) == 0
    world.wait_event("kill.requested", name="held")
    assert time.monotonic() - before > 1.9
    world.wait_status("held", "killed")


def test_one_that_ctrl_z_stopped_is_waited_for(world: World) -> None:
    """The person at its terminal has it stopped with its whole job, and continues it later."""
    world.start()
    with job(world, "job", "beat=0.3") as terminal:
        world.wait_event("agent.first_beat", name="job")
        os.write(terminal, b"\x1a")
        waits(world, "job", "Ctrl-Z at its terminal stopped it")
        pid, story = main_of(world, "job"), world.story("job")
        os.killpg(os.getpgid(pid), signal.SIGCONT)
        wait_for(lambda: world.story("job")["agent"]["silence_seconds"] < 1, "it beats again")
        assert world.story("job")["agent"]["verdict"] == "healthy", story


def test_a_job_in_the_background_that_reads_from_its_terminal_is_waited_for(world: World) -> None:
    """SIGTTIN stops it until the person takes it to the front."""
    world.start()
    with job(world, "back", "beat=0.3/3", "read", place="back"):
        waits(world, "back", "it reads from its terminal")


def test_one_that_nobody_known_stopped_is_a_stall(world: World) -> None:
    """Case B9: SIGSTOP, on a terminal or not; and a debugger that lets it run is no reason to be silent."""
    world.start()
    with job(world, "on-terminal", "beat=0.3") as _:
        world.wait_event("agent.first_beat", name="on-terminal")
        os.kill(main_of(world, "on-terminal"), signal.SIGSTOP)
        world.registered("traced", *world.script("agent.py", "beat=0.3/3"))
        world.wait_event("agent.first_beat", name="traced")
        libc, pid = ctypes.CDLL(None, use_errno=True), main_of(world, "traced")
        assert libc.ptrace(PTRACE_SEIZE, pid, None, None) == 0
        for name in ("on-terminal", "traced"):
            world.wait_event("kill.requested", name=name)
        assert libc.ptrace(PTRACE_DETACH, pid, None, None) in (0, -1)
        assert started_at(pid) is None or world.wait_status("traced", "killed")
