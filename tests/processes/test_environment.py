"""The environment that a process was started with, as the daemon reads it: what its own uid chose, and nothing else."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.world import wait_for
from watchdog.processes.environment import environment


@contextmanager
def running(**more: object) -> Iterator[int]:
    with subprocess.Popen(["/bin/sleep", "60"], env={"WORD": "x=y"}, **more) as child:  # type: ignore[call-overload]
        try:
            comm = Path(f"/proc/{child.pid}/comm")
            wait_for(lambda: comm.read_text().strip() == "sleep" or None, "it runs")
            yield child.pid
        finally:
            child.kill()


def test_it_is_what_the_process_was_started_with() -> None:
    with running() as pid:
        assert environment(pid) == {"WORD": "x=y"}
    assert environment(pid) == {}, "it has ended"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a process of another uid")
def test_it_is_nothing_where_another_uid_started_it() -> None:
    """Root could read it, and would take a stranger's variable for its own."""
    with running(user=54321) as pid:
        assert b"WORD" in Path(f"/proc/{pid}/environ").read_bytes()
        assert environment(pid) == {}
