"""How an agent ended, from the report of its `run`: no daemon received it at the time.

Only reports of the uid that owns the file count, read by that uid's helper: the agent's owner, or root if its `run`
started an agent that dropped to another uid. A report says how an agent ended, never that it has: only the kernel
proves that.
"""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from watchdog.agents.agent import Agent
from watchdog.errors import BadRequest, OwnerCallFailed
from watchdog.helpers.pool import HelperPool

DEADLINE = 3.0  # seconds for one answer
DIRECTORY = "reports"  # beside `notify`, as `cli.run.report` has it


@dataclass(frozen=True, slots=True)
class ExitReport:
    """An exit code or a signal, and its time; None: unknown."""

    exit_code: int | None
    exit_signal: int | None
    at: datetime | None


class ExitReports:
    """Reads the report of one agent."""

    def __init__(self, helpers: HelperPool) -> None:
        self._helpers = helpers

    async def learn(self, agent: Agent) -> bool:
        """Whether its report says how the agent ended, which is then recorded; else record why that is unknown."""
        agent.exit.unknown("its `run` exited without reporting its end")
        if agent.notify_socket is None:
            return False
        path = os.path.join(os.path.dirname(os.path.dirname(agent.notify_socket)), DIRECTORY, agent.agent_id)
        by_root = os.geteuid() == 0 and agent.reg.dropped  # its `run` is root's; no user's path is opened as root
        for uid in dict.fromkeys([agent.reg.owner_uid, *([0] if by_root else [])]):
            try:
                end = end_of(await self._helpers.call(uid, "end_report", {"path": path}, DEADLINE))
            except (OwnerCallFailed, BadRequest) as error:
                if getattr(error, "reason", "") not in ("ENOENT", "EACCES"):
                    agent.exit.unknown(f"the report that its `run` left cannot be read: {error}"[:500])
                continue
            agent.exit.read(end.exit_code, end.exit_signal, source_of(end))
            return True
        return False


def source_of(end: ExitReport) -> str:
    """The source of this information, as text."""
    at = f" at {end.at:%Y-%m-%dT%H:%M:%SZ}" if end.at is not None else ""
    return f"as its `run` recorded{at} when no daemon could be reached"


def end_of(report: Any) -> ExitReport:
    """Parse a report. Raises BadRequest: another process wrote it, so it may contain anything."""
    end = report.get("end") if isinstance(report, dict) else None
    if not isinstance(end, dict):
        raise BadRequest("a report has an `end`")
    code, number, at = end.get("exit_code"), end.get("exit_signal"), report.get("ended_at")
    if not (_within(code, 0, 255) and number is None) and not (_within(number, 1, 64) and code is None):
        raise BadRequest("a report's `end` is an exit_code of 0 to 255, or an exit_signal of 1 to 64")
    known = isinstance(at, int | float) and not isinstance(at, bool) and 0 <= at < 1e11  # no NaN, no huge integer
    return ExitReport(code, number, datetime.fromtimestamp(at, UTC) if known else None)


def _within(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most
