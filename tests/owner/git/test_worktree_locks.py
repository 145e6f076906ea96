"""Whose lock of a worktree is none any more: only one whose maker is proved to have ended."""

import os
import subprocess
import sys
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
        "claude agent agent-a58482f593258ecf9 (pid {pid} start 4711)",
        "claude session cycle-35/upsert… (pid {pid} start 4711)\n",  # as its file has it
        "openclaw pid={pid}",
    ],
)
def test_a_lock_of_a_process_that_has_ended_is_none(tmp_path: Path, reason: str) -> None:
    """Case P10."""
    pid = gone()
    assert ended_maker(reason.format(pid=pid), str(tmp_path)) == f"process {pid}, which made its lock, has ended"


def test_a_start_tells_that_another_process_has_its_number(tmp_path: Path) -> None:
    """Case P10: reused. The very process that made it holds it; without a start nothing tells them apart.

    Nor does the start of a process that is said to have begun later than the one that is there: of another boot.
    """
    me = os.getpid()
    assert ended_maker(f"claude agent a (pid {me} start {ticks(me) - 1})", str(tmp_path))
    assert not ended_maker(f"claude agent a (pid {me} start {ticks(me)})", str(tmp_path))
    assert not ended_maker(f"claude agent a (pid {me} start {ticks(me) + 1})", str(tmp_path))
    assert not ended_maker(f"claude agent a (pid {me})", str(tmp_path))


@pytest.mark.parametrize("lives", [True, False])
@pytest.mark.parametrize("start", ["1764500000", "2026", "99999999999", "Fri Jun 19 21:37:40 2026", "0", ""])
def test_a_start_that_is_none_by_ticks_since_boot_proves_nothing(tmp_path: Path, lives: bool, start: str) -> None:
    """In seconds since the epoch, by another system's clock, of a boot that was longer. 2026 ticks are early in one."""
    pid = os.getpid() if lives else gone()
    words = ended_maker(f"claude agent a (pid {pid} start {start})", str(tmp_path))
    assert not words or start == "2026"


@pytest.mark.parametrize(
    "reason",
    [
        "",
        "initializing",
        "on a portable device",
        "see pull request 4194303",
        "pid {pid}",
        "agent x (pid {pid})",
        '{{"pid": {pid}, "procStart": "99"}}',
        "PID={pid}; pid {pid}",
        "pid {pid} on build-host-b",
        "pid {pid} start 2026",
        "in container 3f2a, pid {pid}",
        "do not remove: experiment pid {pid} of bob, results needed",
        "pid {pid}; user wants this kept until Friday",
        "claude agent a (pid {pid}) on build-host-b",
        "claude agent a (pid {pid}); keep",
        "keep: claude agent a (pid {pid})",
        "claude agent a keep this (pid {pid})",
        "claude agent a (pid {pid})\nkeep this",
        "claude agent a\nkeep (pid {pid})",
        "claude agent a (pid {pid} start 4711 of 3f2a)",
        "claude agent a (pid {pid} start 1 start 2)",
        "openclaw pid={pid} in container 3f2a",
        "claude agent a (pid 99999999)",
        "claude agent a (pid 1)",
        "bob@elsewhere pid {pid}",
    ],
)
def test_every_other_lock_is_somebodys_word(tmp_path: Path, reason: str) -> None:
    """A person's, git's own, another host's or container's, one that names nobody for certain."""
    assert ended_maker(reason.format(pid=gone()), str(tmp_path)) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a pid namespace")
def test_in_a_pid_namespace_of_our_own_no_number_is_proved_to_have_ended(tmp_path: Path) -> None:
    """Its maker may live outside, or in a neighbour: /proc shows neither."""
    asked = """if True:
        import sys
        from watchdog.owner.git import worktree_locks
        print(worktree_locks.ended_maker("openclaw pid=99", sys.argv[1]))
    """
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", asked, str(tmp_path)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "\n"


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
            wait_for(lambda: not ended_maker(f"claude agent a (pid {number})", str(tmp_path)), "it is seen")
        finally:
            process.kill()
    wait_for(lambda: bool(ended_maker(f"claude agent a (pid {number})", str(tmp_path))), "the container is gone")
