"""What the kernel says by a pidfd alone, where it can: of a living process, of one that was reaped."""

import os
import platform
import subprocess

import pytest

from tests.processes.conftest import Family
from watchdog.core.ownership import Uids
from watchdog.processes import pidfd_info
from watchdog.processes.pidfd_info import Info, info

KERNEL = tuple(map(int, platform.release().split("-")[0].split(".")[:2]))


def test_a_living_process_has_its_parent_and_uids(family: Family) -> None:
    """And no exit status yet."""
    child = family.start("sleep", "1000")
    fd = os.pidfd_open(child.pid)
    try:
        told = info(fd)
    finally:
        os.close(fd)
    if KERNEL < (6, 13):
        assert told is None
    else:
        me = os.geteuid()
        assert told == Info(os.getpid(), Uids(me, me, me, me), None)


def test_of_one_that_was_reaped_nothing_is_made_up() -> None:
    """Its exit status where the kernel kept it (6.15), else nothing at all."""
    child = subprocess.Popen(["sh", "-c", "exit 3"])
    fd = os.pidfd_open(child.pid)
    try:
        child.wait(60)
        told = info(fd)
    finally:
        os.close(fd)
    if KERNEL < (6, 15):
        assert told is None
    else:
        assert told is not None
        assert (told.uids, told.exit_status) == (None, 3 << 8)


def test_an_older_kernel_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a descriptor that is no pidfd."""
    with open("/dev/null") as file:
        assert info(file.fileno()) is None
    fd = os.pidfd_open(os.getpid())
    monkeypatch.setattr(pidfd_info, "_GET_INFO", 0xC0400000)  # no call of any kernel's
    try:
        assert info(fd) is None
    finally:
        os.close(fd)
