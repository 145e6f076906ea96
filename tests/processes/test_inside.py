"""Numbers that processes have in pid namespaces of their own: real ones."""

import os
import subprocess

import pytest

from tests.processes.conftest import Family, needs_root, until
from watchdog.processes.inside import numbered_inside


def with_number(family: Family, number: int, *more: str) -> subprocess.Popen[bytes]:
    """A pid namespace in which a `sleep` has that number."""
    give = f"echo {number - 1} > /proc/sys/kernel/ns_last_pid; exec 3>&1; {' '.join(more)} sleep 300 & echo up; wait"
    made = family.start("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", give)
    assert family.line(made) == "up"
    return made


@needs_root
def test_who_has_a_number_in_a_namespace_of_its_own_is_found_by_it(family: Family) -> None:
    """Under the number that it has here; a number that nobody has there is not named."""
    here = family.start("sleep", "300")
    with_number(family, here.pid)
    until(lambda: here.pid in numbered_inside((here.pid, 4_194_303), os.getuid()), "it has begun")
    found = numbered_inside((here.pid, 4_194_303), os.getuid())
    assert set(found) == {here.pid}
    with open(f"/proc/{found[here.pid]}/status") as status:
        numbers = next(line.split() for line in status if line.startswith("NSpid:"))
    assert numbers[1:] == [str(found[here.pid]), str(here.pid)]


@needs_root
def test_another_users_process_is_none(family: Family) -> None:
    """A registry of one user names no process of another's container."""
    here = family.start("sleep", "300")
    with_number(family, here.pid, "setpriv", "--reuid=65534", "--clear-groups")
    until(lambda: numbered_inside((here.pid,), 65534), "it has begun, as that user")
    assert numbered_inside((here.pid,), os.getuid()) == {}


def test_our_own_numbers_are_none(family: Family) -> None:
    """Who is in no other namespace has one number."""
    here = family.start("sleep", "300")
    assert numbered_inside((here.pid, os.getpid()), os.getuid()) == {}


@pytest.mark.parametrize("numbers", [(), (4_194_303,)])
def test_nobody_is_named_that_was_not_asked_for(numbers: tuple[int, ...]) -> None:
    assert numbered_inside(numbers, os.getuid()) == {}
