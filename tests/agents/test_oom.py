"""Which deaths are reported as OOM kills: a count that grew, and a SIGKILL."""

import signal
from pathlib import Path

import pytest

from watchdog.agents import oom
from watchdog.agents.agent import Agent
from watchdog.core.agent import Policy, Registration, Status


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    """Killed by SIGKILL; in cgroups of v2, its own and the one above, with one earlier OOM kill."""
    for name in ("own", "above"):
        (tmp_path / name).mkdir()
        events(tmp_path / name, 1)
    found = Agent(Registration("a" * 32, "alpha", 1000, "h", "b"), Policy(), Status.ENDING)
    found.tree.oom_counts = {f"{tmp_path}/own": 1, f"{tmp_path}/above": 1}
    found.exit.signal = signal.SIGKILL
    return found


def events(directory: Path, count: int) -> None:
    """The kernel's format (cgroup-v2.rst, memory.events)."""
    (directory / "memory.events").write_text(f"low 0\nhigh 0\nmax 7\noom 3\noom_kill {count}\noom_group_kill 0\n")


def test_a_count_that_grew_names_the_victim(agent: Agent, tmp_path: Path) -> None:
    assert oom.oom_kill_reason(agent) is None
    events(tmp_path / "own", 3)
    assert oom.oom_kill_reason(agent) == f"killed by the kernel's OOM killer (oom_kill 2 in {tmp_path}/own)"


def test_the_cgroup_above_counts_when_the_own_one_is_gone(agent: Agent, tmp_path: Path) -> None:
    """systemd removes a scope as soon as it is empty; the count above may refer to others."""
    (tmp_path / "own/memory.events").unlink()
    assert oom.oom_kill_reason(agent) is None
    events(tmp_path / "above", 2)
    assert oom.oom_kill_reason(agent) == f"probably killed by the kernel's OOM killer (oom_kill 1 in {tmp_path}/above)"


def test_a_shell_that_reports_its_programs_death_is_believed(agent: Agent, tmp_path: Path) -> None:
    """`run -- sh -c "claude …"`: the kernel killed the shell's child, and the shell exits with 128 + 9 (sh(1p))."""
    agent.exit.signal, agent.exit.code = None, 128 + signal.SIGKILL
    assert oom.oom_kill_reason(agent) is None
    events(tmp_path / "own", 2)
    assert oom.oom_kill_reason(agent) == f"probably killed by the kernel's OOM killer (oom_kill 1 in {tmp_path}/own)"


@pytest.mark.parametrize("ended", [None, signal.SIGTERM])
def test_another_death_is_not_reported_as_an_oom_kill(agent: Agent, tmp_path: Path, ended: int | None) -> None:
    """The victim was a child of the agent."""
    events(tmp_path / "own", 2)
    agent.exit.signal = ended
    assert oom.oom_kill_reason(agent) is None
