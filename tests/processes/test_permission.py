"""Whom a user may signal: our answer and the kernel's, which is asked with signal 0 by a process of that user's."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes.conftest import HOST, Family, known, needs_root, pending, wait_readable
from tests.world import wait_for
from watchdog.processes import identity, permission
from watchdog.processes.permission import may_signal
from watchdog.processes.signals import Guard, SendResult, send

U, V, SUB = 12001, 12002, 1_200_000  # the users, and the first uid of those that are U's in /etc/subuid
KERNEL = """
import os, signal, sys
try:
    signal.pidfd_send_signal(os.pidfd_open(int(sys.argv[1])), 0)
except PermissionError:
    sys.exit(1)
"""
# Four uids as setresuid(2) and setfsuid(2) make them; then it waits.
BECOME = """
import ctypes, os, sys
real, effective, saved, fs = map(int, sys.argv[1:])
os.setresuid(real, effective, saved)
ctypes.CDLL(None).setfsuid(fs)
print("up", flush=True)
sys.stdin.readline()
"""
# In a user namespace of its own, made by the first uid, it becomes the second uid of that namespace; then it waits.
INSIDE = """
import ctypes, os, sys
maker, inner, deep = map(int, sys.argv[1:])
os.setresuid(maker, maker, maker)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x10000000) == 0, os.strerror(ctypes.get_errno())
libc.prctl(4, 1)
print("mapped?", flush=True)
sys.stdin.readline()
os.setresgid(0, 0, 0)
os.setresuid(inner, inner, inner)
if deep:
    assert libc.unshare(0x10000000) == 0, os.strerror(ctypes.get_errno())
print("up", flush=True)
sys.stdin.readline()
"""


def kernel_says(uid: int, pid: int) -> bool:
    return (
        subprocess.run(
            ["/usr/bin/python3", "-I", "-c", KERNEL, str(pid)], user=uid, group=uid, extra_groups=[], timeout=20
        ).returncode
        == 0
    )


@contextmanager
def pinned(pid: int) -> Iterator[int]:
    fd = identity.pin(known(pid))
    assert fd is not None
    try:
        yield fd
    finally:
        os.close(fd)


@needs_root
@pytest.mark.parametrize(
    ("uids", "allowed"),
    [
        ((U, U, U, U), True),
        ((U, 0, 0, 0), True),  # passwd: it keeps its caller's real uid
        ((0, 0, 0, 0), False),  # sudo
        ((0, U, 0, U), False),  # the effective uid is nobody's right
        ((0, 0, U, 0), True),
        ((V, V, V, V), False),
        ((V, 0, U, 0), True),
        ((V, 0, 0, U), False),
    ],
)
def test_a_process_of_our_namespace(family: Family, uids: tuple[int, int, int, int], allowed: bool) -> None:
    """Real or saved uid."""
    child = family.start("/usr/bin/python3", "-I", "-c", BECOME, *map(str, uids))
    assert family.line(child) == "up"
    with pinned(child.pid) as fd:
        assert kernel_says(U, child.pid) is may_signal(U, fd) is allowed
        assert may_signal(0, fd)
        result = send(known(child.pid), signal.SIGCONT, Guard(HOST, sender=U), fd)
        assert result is (SendResult.SENT if allowed else SendResult.NOT_PERMITTED)


@needs_root
@pytest.mark.parametrize("by_ioctl", [True, False], ids=["PIDFD_GET_USER_NAMESPACE", "/proc"])
@pytest.mark.parametrize("deep", [0, 1], ids=["made by U", "two deep"])
@pytest.mark.parametrize("inner", [0, 7], ids=["root inside", "a sub-uid"])
def test_a_process_in_a_namespace_that_a_user_made(
    family: Family, monkeypatch: pytest.MonkeyPatch, inner: int, deep: int, by_ioctl: bool
) -> None:
    """Rootless containers: what runs there as a sub-uid is its maker's to signal, and no other user's."""
    if not by_ioctl:
        monkeypatch.setattr(permission, "PIDFD_GET_USER_NAMESPACE", 0xFF7F)  # as before kernel 6.11
    child = family.start("/usr/bin/python3", "-I", "-c", INSIDE, str(U), str(inner), str(deep))
    assert family.line(child) == "mapped?"
    Path(f"/proc/{child.pid}/uid_map").write_text(f"0 {U} 1\n1 {SUB} 1000\n")
    Path(f"/proc/{child.pid}/gid_map").write_text(f"0 {U} 1\n1 {SUB} 1000\n")
    assert child.stdin is not None
    child.stdin.write(b"\n")
    child.stdin.flush()
    assert family.line(child) == "up"
    wait_for(lambda: os.stat(f"/proc/{child.pid}").st_uid == (SUB + inner - 1 if inner else U), "its uid")
    with pinned(child.pid) as fd:
        for uid, allowed in ((U, True), (V, False)):
            assert kernel_says(uid, child.pid) is may_signal(uid, fd) is allowed


@needs_root
def test_one_that_is_reaped_reaches_nobody_and_a_look_that_fails_permits_nothing(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = family.start("sleep", "300")
    with pinned(child.pid) as fd:
        assert not may_signal(U, fd)
        monkeypatch.setattr(identity, "uids", lambda _: (_ for _ in ()).throw(identity.LookFailed(5, "no")))
        assert not may_signal(U, fd)
        monkeypatch.undo()
        child.kill()
        wait_readable(fd)
        child.wait(20)
        assert may_signal(U, fd)


@needs_root
def test_a_signal_by_a_users_right_is_held_back_from_roots_process(family: Family) -> None:
    """The same process takes it by our own right."""
    code = (
        "import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [15]); print('up', flush=True); sys.stdin.read()"
    )
    child = family.start(sys.executable, "-c", code)
    assert family.line(child) == "up"

    for sender, result, bit in ((U, SendResult.NOT_PERMITTED, 0), (None, SendResult.SENT, 1 << 14)):
        assert send(known(child.pid), signal.SIGTERM, Guard(HOST, sender=sender)) is result
        assert pending(child.pid) == bit
