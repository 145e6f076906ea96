"""Who stands above a real process, and the marker that it was started with."""

import os
import sys

import pytest

from tests.processes.conftest import Family
from watchdog.processes.ancestry import lineage, marker
from watchdog.processes.procfs import stat

NO_PID = 2**22 + 7  # over the largest pid that any kernel gives out
GRANDCHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print("grandchild", child.pid, flush=True)
child.wait()
"""


def test_a_process_stands_below_its_parent_and_theirs(family: Family) -> None:
    """Each by pid and start, so that no later one of the same number is meant."""
    child = family.python(GRANDCHILD)
    grandchild = family.pids(child, {"grandchild"})["grandchild"]
    found = lineage(grandchild)
    for pid in (grandchild, child.pid, os.getpid()):
        assert (pid, stat(pid).start_ticks) in found
    assert lineage(os.getpid()) < found


def test_who_has_ended_stands_nowhere() -> None:
    """Nobody may be taken for its ancestor."""
    with pytest.raises(OSError):
        lineage(NO_PID)
    with pytest.raises(ProcessLookupError, match="another pid namespace"):
        lineage(0)


def test_the_marker_is_what_it_was_started_with(family: Family) -> None:
    """Not what it sets itself; and none is none."""
    print_and_wait = (
        sys.executable,
        "-u",
        "-c",
        "import os, time; os.environ['AGENT_WATCHDOG_ID'] = 'x'; print(1); time.sleep(1000)",
    )
    marked = family.start(*print_and_wait, env={"AGENT_WATCHDOG_ID": "a" * 32})
    plain = family.start(*print_and_wait)
    family.line(marked)
    family.line(plain)
    assert marker(marked.pid) == "a" * 32
    assert marker(plain.pid) is None
    with pytest.raises(OSError):
        marker(NO_PID)
