"""Agents to store."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from watchdog.core.agent import Registration, Status
from watchdog.core.process import Identity
from watchdog.registry.registry import Registry
from watchdog.registry.rows import AgentRow

NOW = datetime(2026, 11, 27, 22, 0, 0, 123456, tzinfo=UTC)
HERE = Identity(host="h1", boot_id="b1", pid=4242, start_ticks=99, pidfd_inode=7)
FULL = Registration(
    agent_id="a" * 32,
    name="alpha",
    owner_uid=1000,
    host="h1",
    boot_id="b1",
    agent_type="claude",
    tags=("x", 'quo"te'),
    task_id="T-1",
    parent_id="p1",
    identity=HERE,
    stall_after=timedelta(seconds=120),
    interval=timedelta(seconds=0.5),
    ttl=timedelta(0),
    worktree="/w",
    temp_dir="/tmp/t",
    beat_file="/tmp/b",
    log="/tmp/l",
    transcript="/tmp/t.jsonl",
    cgroup="/user.slice/user-1000.slice/agent-a.scope",
    source="run",
    command="agent.sh",
    created_at=NOW,
)


def add(registry: Registry, agent_id: str = "a1", status: Status = Status.RUNNING, **changes: object) -> AgentRow:
    """Store a minimal agent."""
    plain = Registration(agent_id=agent_id, name=agent_id, owner_uid=1000, host="h1", boot_id="b1", created_at=NOW)
    return registry.agents.add(replace(plain, **changes), status, NOW, "test")  # type: ignore[arg-type]
