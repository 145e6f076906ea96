"""The helper's call `moved`: the bytes that an agent's processes read and write.

Tests: tests/probes/test_output_growth.py.
"""

from typing import Any

from watchdog.agents.agent import Agent
from watchdog.core.observed_activity import ActivityKind

PROCESSES = 256  # per query, of one tree


def question(agent: Agent, kind: ActivityKind) -> dict[str, object] | None:
    """The arguments about its processes, if any are known."""
    pids = [[m.identity.pid, m.identity.start_ticks] for m in agent.tree.members[:PROCESSES]]
    return {"processes": pids} if pids else None


def read(kind: ActivityKind, answer: Any, before: Any, now: float) -> tuple[str | None, object]:
    """The bytes that each process moved since the last answer; a new process only gets its baseline.

    `before`: the time of that answer, and the bytes of each process.
    """
    moved = {str(pid): int(count) for pid, count in answer.items()}
    then, former = before or (now, moved)
    count = sum(bytes_ - former.get(pid, bytes_) for pid, bytes_ in moved.items())
    busy = now > then and count / (now - then) >= kind.probe.threshold
    return f"its processes moved {count / (now - then) / 1000:.0f} kB/s" if busy else None, (now, moved)
