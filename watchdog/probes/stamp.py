"""What the helper's `stamp` of a registered file tells: it grew, or was written anew.

Tests: tests/probes/test_output_growth.py.
"""

from typing import Any

from watchdog.agents.agent import Agent
from watchdog.core.observed_activity import ActivityKind


def question(agent: Agent, kind: ActivityKind) -> dict[str, object] | None:
    """About the file that was registered, if one was."""
    path = kind.probe.path(agent.reg)
    return None if path is None else {"path": path}


def read(kind: ActivityKind, answer: Any, before: Any, now: float) -> tuple[str | None, object]:
    """Another size, content or file than at the last look is growth; other rights (ctime) are none."""
    stamp = [answer[key] for key in ("device", "inode", "size", "mtime_ns")]
    return f"its {kind} grew" if before is not None and before != stamp else None, stamp
