"""What /proc shows an owner of real processes of its own."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.world import wait_for
from watchdog.owner.sources import kernel

NO_PID = 2**22 + 7  # over the largest pid that any kernel gives out


@pytest.mark.parametrize("value", [0, 1, -2, NO_PID, True, "42", 42.0, None])
def test_what_can_be_no_agents_pid_is_none(value: object) -> None:
    """Some programs write down a thread's id, or init's."""
    assert kernel.as_pid(value) is None
    assert kernel.as_pid(2) == 2
    assert kernel.as_pid(kernel.pid_max()) == kernel.pid_max()


def test_a_process_is_told_with_its_words_and_when_it_began(tmp_path: Path) -> None:
    """Words may hold spaces, and be no text."""
    before = time.time()
    with subprocess.Popen(["sleep", "1000"], cwd=tmp_path) as child:
        try:
            # Popen returns once exec has closed its pipe; the kernel lays the words out a little later (fs/exec.c).
            wait_for(lambda: Path(f"/proc/{child.pid}/cmdline").read_bytes(), "its words")
            seen = kernel.process(child.pid)
            assert seen is not None
            assert (seen.pid, seen.parent, seen.words) == (child.pid, os.getpid(), ("sleep", "1000"))
            assert kernel.link(child.pid, "cwd") == os.path.realpath(tmp_path)
            assert kernel.own_processes()[child.pid] == seen
            assert before - 1 <= kernel.began(seen.ticks) <= time.time() + 1
        finally:
            child.kill()


def test_what_is_left_of_a_process_is_none() -> None:
    """Nobody has waited for it."""
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert kernel.process(child.pid) is None
    assert child.pid not in kernel.own_processes()
    child.wait()
    assert kernel.process(child.pid) is None
    assert kernel.link(child.pid, "cwd") == ""


def test_no_other_link_is_followed() -> None:
    """`root` and `fd/0` may lead to a file system that hangs."""
    assert kernel.link(os.getpid(), "root") == ""


def test_this_boot_has_one_id() -> None:
    """The kernel's."""
    assert kernel.this_boot() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
