"""The exit timer: ends the process when nothing else does. Each test is a process of its own, which has to die."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PRELUDE = """
import os, signal, sys, threading, time
from watchdog.concurrency import threads
from watchdog.service import exit_timer
from watchdog.service.exit_timer import ExitTimer
class Log:
    def event(self, event, **fields): print(event, fields, flush=True)
exit_timer.LIMIT = 1.0
exit_timer.LOOP_LIMIT = 2.0
exit_timer.TICK = 0.1
exit_timer.KERNEL, exit_timer.LAST_WORDS = 3.0, 0.2
asked = threading.Event()
timer = ExitTimer(Log(), asked.is_set, lambda seconds: None)
"""


def story(code: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", PRELUDE + code]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2])


def test_a_shutdown_that_hangs_exits_at_its_limit() -> None:
    """With the intended exit status; what it waited for is logged, and the locks are released before."""
    done = story(
        "timer.on_exit(lambda: print('released', flush=True))\n"
        "timer.arm(0); timer.arm(70); timer.arm(0)\n"
        "exit_timer.threads.OVERDUE = 0\n"
        "with threads.noted('/dead/mount'): time.sleep(60)\n"
    )
    assert done.returncode == 70, done.stderr
    assert "stop.overdue" in done.stdout and "MainThread" in done.stdout
    assert "released" in done.stdout


def test_a_lock_that_cannot_be_released_delays_no_exit() -> None:
    """Neither one that fails nor one that hangs."""
    done = story("timer.on_exit(lambda: 1 / 0); timer.on_exit(lambda: time.sleep(60)); timer.arm(0); time.sleep(60)")
    assert done.returncode == 0, done.stderr
    assert "stop.unreleased" in done.stdout


def test_threads_of_libraries_are_not_waited_for() -> None:
    """Python's own finalization joins them (threading._shutdown)."""
    done = story("threading.Thread(target=time.sleep, args=(60,), name='old').start(); timer.arm(75)")
    assert done.returncode == 75, done.stderr
    assert "thread old" in done.stdout


def test_a_loop_that_does_not_run_is_dead() -> None:
    """70, by itself; one that runs is left alone."""
    alive = "began = time.monotonic()\nwhile time.monotonic() - began < 4: timer.alive(); time.sleep(0.05)\n"
    done = story(f"{alive}print('lived', flush=True); time.sleep(60)")
    assert done.returncode == 70, done.stderr
    assert done.stdout.startswith("lived\nscheduler.dead")


def test_a_stop_that_a_stuck_loop_has_not_seen_counts() -> None:
    """Before the loop counts as dead."""
    done = story("exit_timer.LOOP_LIMIT = 50\ntimer.alive(); asked.set(); time.sleep(60)")
    assert done.returncode == 0, done.stderr
    assert "stop.overdue" in done.stdout


def test_a_process_stuck_with_the_interpreters_lock_is_killed_by_the_kernel() -> None:
    """No thread of ours runs any more: SIGALRM."""
    done = story("import ctypes; timer.arm(0); ctypes.PyDLL(None).sleep(60)")
    assert done.returncode == -signal.SIGALRM, done.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_seen_before_the_loop_has_a_turn(number: signal.Signals) -> None:
    """By its byte in the pair, whichever thread received it."""
    code = (
        "import asyncio\nfrom watchdog.service.signal_flags import SignalFlags\n"
        "async def go():\n"
        " summons = SignalFlags(lambda: None); before = summons.unheeded()\n"
        f" os.kill(os.getpid(), {int(number)}); print(before, summons.unheeded()); summons.close()\n"
        "asyncio.run(go())"
    )
    assert story(code).stdout.split() == ["False", "True"]
