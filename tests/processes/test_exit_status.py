"""How a process ended that is another parent's child, or nobody's yet."""

import os

import pytest

from tests.processes.conftest import Family, known, wait_readable
from tests.processes.test_identity import ZOMBIE
from watchdog.processes import identity as identities
from watchdog.processes.exit_status import exit_status

pytestmark = pytest.mark.usefixtures("no_leak")


@pytest.mark.parametrize(("script", "told"), [("exit 7", (7, None)), ("exit 0", (0, None)), ("kill -9 $$", (None, 9))])
def test_the_exit_status_of_another_parents_child_is_told(
    script: str, told: tuple[int | None, int | None], family: Family
) -> None:
    """By a zombie's stat before it is reaped, by the pidfd afterwards (kernel >= 6.15); else nothing is claimed."""
    code = f"""
import subprocess, sys
child = subprocess.Popen(["sh", "-c", "read x; {script}"], stdin=subprocess.PIPE)
print(child.pid)
sys.stdin.readline()
child.communicate(b"go\\n") if sys.stdin.readline() else None
print("reaped")
sys.stdin.readline()
"""
    parent = family.python(code)
    pid = family.track(int(family.line(parent)))
    fd = identities.pin(known(pid))
    assert fd is not None and parent.stdin is not None
    assert exit_status(fd) is None
    parent.stdin.write(b"\n\n")
    parent.stdin.flush()
    assert family.line(parent) == "reaped"
    assert exit_status(fd) in (told, None)
    if tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 15):
        assert exit_status(fd) == told
    os.close(fd)


def test_the_exit_status_of_a_zombie_is_told(family: Family) -> None:
    """Nobody has reaped it, so the kernel keeps it in stat."""
    parent = family.python(ZOMBIE)
    pid = family.track(int(family.line(parent)))
    fd = identities.pin(known(pid))
    assert fd is not None
    wait_readable(fd)
    assert exit_status(fd) == (3, None)
    os.close(fd)
