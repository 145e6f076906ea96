"""Case N22: an agent stopped by a person is waited for, and reported; by an unknown process, it is a stall."""

import ctypes
import os
import pty
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.world import BIN, World, alive, make_world, wait_for

PTRACE_ATTACH, PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 16, 17, 0x4206, 0x4207


@pytest.fixture
def world() -> Iterator[World]:
    times: dict[str, Any] = {
        "sweep": {"interval_seconds": 0.5},
        "stall": {"after_seconds": 2},
        "log": {"level": "debug"},
    }
    yield from make_world(**times)


@contextmanager
def job(world: World, name: str, *words: str, behind: bool = False) -> Iterator[int]:
    """An agent below `run` as a job of a person's shell on its own terminal; the terminal's other end."""
    run = [str(BIN / "agent-watchdog"), "run", "--name", name, "--", *world.script("agent.py", *words)]
    shell, terminal = pty.fork()
    if shell == 0:
        os.chdir(world.dir)
        os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "-i"], {**world.environ, "TERM": "dumb"})
    try:
        os.write(terminal, f"{shlex.join(run)}{' &' if behind else ''}\n".encode())
        yield terminal
    finally:
        os.kill(shell, signal.SIGKILL)
        os.waitpid(shell, 0)
        os.close(terminal)


def main_of(world: World, name: str) -> int:
    return int(world.story(name)["agent"]["pid"])


def waits(world: World, name: str, words: str) -> None:
    """It is reported, and survives three times the allowed silence."""
    event = world.wait_event("agent.waiting", name=name)
    assert words in event["why"], event
    pid = main_of(world, name)
    wait_for(lambda: world.story(name)["agent"]["silence_seconds"] > 6, f"{name} is silent for long")
    world.wait_sweeps(4)
    assert alive(pid)
    assert not world.count("kill.requested", name=name)


@pytest.mark.parametrize("how", ["attached", pytest.param("seized", marks=pytest.mark.faults)])
def test_an_agent_held_by_a_debugger_is_waited_for_and_gets_a_fresh_limit_afterwards(world: World, how: str) -> None:
    """Both ways in which debuggers stop a process. It is still silent when released, and then it is a stall."""
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


def test_an_agent_stopped_by_ctrl_z_is_waited_for(world: World) -> None:
    """The person at its terminal stops it with its whole job, and continues it later."""
    world.start()
    with job(world, "job", "beat=0.3") as terminal:
        world.wait_event("agent.first_beat", name="job")
        os.write(terminal, b"\x1a")
        waits(world, "job", "it is stopped in its terminal")
        os.killpg(os.getpgid(main_of(world, "job")), signal.SIGCONT)
        wait_for(lambda: world.story("job")["agent"]["verdict"] == "healthy", "it beats again")


def test_a_job_in_the_background_that_reads_from_its_terminal_is_waited_for(world: World) -> None:
    """SIGTTIN stops it until the person brings it to the foreground."""
    world.start()
    with job(world, "back", "beat=0.3/3", "read", behind=True):
        waits(world, "back", "it is stopped in ")


def test_an_agent_stopped_by_an_unknown_process_is_a_stall(world: World) -> None:
    """Case B9: SIGSTOP without a terminal; and a debugger that lets it run is no reason for silence."""
    world.start()
    for name in ("stopped", "traced"):
        world.registered(name, *world.script("agent.py", "beat=0.3/3"))
        world.wait_event("agent.first_beat", name=name)
    os.kill(main_of(world, "stopped"), signal.SIGSTOP)
    libc, pid = ctypes.CDLL(None, use_errno=True), main_of(world, "traced")
    assert libc.ptrace(PTRACE_SEIZE, pid, None, None) == 0
    for name in ("stopped", "traced"):
        world.wait_event("kill.requested", name=name)
    libc.ptrace(PTRACE_DETACH, pid, None, None)


def test_why_says_that_a_stranger_stopped_it_and_how_to_continue_it(world: World) -> None:
    """SIGSTOP leaves no other trace. Held, so that it stays a stalled agent that is looked at."""
    world.start()
    world.registered("stopped", *world.script("agent.py", "beat=0.3"))
    world.wait_event("agent.first_beat", name="stopped")
    world.cli("hold", "stopped")
    main = main_of(world, "stopped")
    os.kill(main, signal.SIGSTOP)

    wait_for(lambda: world.story("stopped")["agent"]["verdict"] == "stalled", "the verdict is the same")
    words = f"Its main process ({main}) was stopped at the last scan (state T: by a signal)"
    wait_for(lambda: words in world.cli("why", "stopped").stdout, "`why` says that it is stopped")
    assert f"do: if that is not wanted, let it go on: kill -CONT {main}\n" in world.cli("why", "stopped").stdout

    os.kill(main, signal.SIGCONT)
    wait_for(lambda: world.story("stopped")["agent"]["verdict"] == "healthy", "it beats again")
