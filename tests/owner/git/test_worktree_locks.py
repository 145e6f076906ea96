"""Whose lock of a worktree is none any more: only one whose maker is proved to have ended."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.world import wait_for
from watchdog.owner.git.worktree_locks import ended_maker


def gone() -> int:
    """The number of a process that has just ended."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


def ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


@pytest.mark.parametrize(
    "reason",
    [
        "claude agent agent-1 (pid {pid})",
        "claude agent agent-1 (pid {pid} start 4711)",
        '{{"pid": {pid}, "procStart": "99"}}',
        "PID={pid}; pid {pid}",
    ],
)
def test_a_lock_of_a_process_that_has_ended_is_none(tmp_path: Path, reason: str) -> None:
    """Case P10."""
    pid = gone()
    assert ended_maker(reason.format(pid=pid), str(tmp_path)) == f"process {pid}, which made its lock, has ended"


def test_a_start_tells_that_another_process_has_its_number(tmp_path: Path) -> None:
    """Case P10: reused. The very process that made it holds it; without a start nothing tells them apart."""
    me = os.getpid()
    assert ended_maker(f"agent (pid {me} start {ticks(me) - 1})", str(tmp_path))
    assert not ended_maker(f"agent (pid {me} start {ticks(me)})", str(tmp_path))
    assert not ended_maker(f"agent (pid {me})", str(tmp_path))


@pytest.mark.parametrize(
    "reason",
    [
        "",
        "initializing",
        "on a portable device",
        "see pull request 4194303",
        "pid {pid} and pid 1",
        "pid {pid} on host elsewhere",
        "bob@elsewhere pid {pid}",
        "pid 99999999",
        "pid {pid} start 1 start 2",
    ],
)
def test_every_other_lock_is_somebodys_word(tmp_path: Path, reason: str) -> None:
    """A person's, git's own, another host's, one that names nobody for certain."""
    assert ended_maker(reason.format(pid=gone()), str(tmp_path)) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a pid namespace")
def test_a_number_of_a_container_is_no_dead_process(tmp_path: Path) -> None:
    """Sibling of P10: its maker may live there under that number."""
    number = gone()
    give = f"echo {number - 1} > /proc/sys/kernel/ns_last_pid; sleep 1000 & echo $!; wait"
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", give]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"{number}\n"
            wait_for(lambda: not ended_maker(f"agent (pid {number})", str(tmp_path)), "it is seen")
        finally:
            process.kill()
    wait_for(lambda: bool(ended_maker(f"agent (pid {number})", str(tmp_path))), "the container is gone")
