"""The helper's call `stamp` on a registered file: it grew, or was rewritten.

Tests: tests/probes/test_output_growth.py.
"""

from typing import Any

from watchdog.agents.agent import Agent
from watchdog.core.observed_activity import ActivityKind


def question(agent: Agent, kind: ActivityKind) -> dict[str, object] | None:
    """The arguments about the registered file, if there is one."""
    path = kind.probe.path(agent.reg)
    return None if path is None else {"path": path}


def read(kind: ActivityKind, answer: Any, before: Any, now: float) -> tuple[str | None, object]:
    """A different size, content or file since the last answer is growth; different permissions (ctime) are not."""
    stamp = [answer[key] for key in ("device", "inode", "size", "mtime_ns")]
    return f"its {kind} grew" if before is not None and before != stamp else None, stamp
