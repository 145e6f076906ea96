"""What the kernel says of processes that are stopped: real ones."""

import ctypes
import os
import pty
import signal
import time

from tests.processes.conftest import Family, until
from watchdog.core.halts import StopState
from watchdog.processes.stops import stops, tracers_of

PTRACE_ATTACH, PTRACE_DETACH = 16, 17


def test_who_is_stopped_by_a_signal_is_told_with_it(family: Family) -> None:
    """Which signal it was, as long as its parent has not asked; one that runs is left out."""
    stopped, runs = family.start("sleep", "300", session=True), family.start("sleep", "300")
    os.kill(stopped.pid, signal.SIGSTOP)
    until(lambda: stops((stopped.pid,)), "it is stopped")
    assert stops((stopped.pid, runs.pid)) == {stopped.pid: StopState("T", 0, "SIGSTOP")}
    os.kill(stopped.pid, signal.SIGCONT)
    until(lambda: not stops((stopped.pid,)), "it goes on")


def test_whom_a_debugger_holds_is_told_with_the_debugger(family: Family) -> None:
    """Ours, for a moment."""
    held, libc = family.start("sleep", "300"), ctypes.CDLL(None, use_errno=True)
    assert libc.ptrace(PTRACE_ATTACH, held.pid, None, None) == 0
    try:
        os.waitpid(held.pid, 0)
        found = stops((held.pid,))[held.pid]
        assert (found.state, found.tracer) == ("t", os.getpid())
        assert tracers_of((held.pid, os.getpid())) == {held.pid: os.getpid()}
    finally:
        libc.ptrace(PTRACE_DETACH, held.pid, None, None)


def test_whose_terminal_it_is_now_is_told() -> None:
    """A session with a terminal of its own stops itself; it is in front there, and no shell took its place."""
    child, terminal = pty.fork()
    if child == 0:
        while True:
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(0.01)
    try:
        until(lambda: stops((child,)), "it is stopped")
        assert stops((child,))[child] == StopState("T", 0, "SIGSTOP", has_terminal=True, in_front=True)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)


def test_who_is_gone_is_left_out(family: Family) -> None:
    """Between the scan and this look it ended."""
    ended = family.start("true")
    ended.wait()
    assert stops((ended.pid,)) == {}
