"""Writes that several queries share, in their caller's transaction: an agent's status, what a sweep saw, its task."""

import math
from collections.abc import Iterable, Set
from dataclasses import fields
from datetime import datetime

from sqlalchemy import Connection, bindparam, or_, select, text, update

from watchdog.core.agent import ENDED, Status
from watchdog.registry.query_base import write_event
from watchdog.registry.row_codec import dump
from watchdog.registry.rows import SweepRow
from watchdog.registry.schema import LIVE_SQL, TASK_ENDED, agent_lifecycle, orchestrator_task

_columns = agent_lifecycle.columns
_SWEPT = tuple(field.name for field in fields(SweepRow))
# Columns that a change of status may set, too; all others have methods of their own.
SETTABLE = frozenset({"exit_code", "exit_signal", "error_message", "retry_count", "verdict", "state", "note"})
_EVENTS = {
    Status.QUEUED: "agent.registered",
    Status.STARTING: "agent.starting",
    Status.RUNNING: "agent.pid_known",
    Status.ENDING: "agent.ending",
    Status.UNKILLABLE: "agent.unkillable",
}


def change_status(
    connection: Connection,
    agent_id: str,
    from_: Set[Status],
    to: Status,
    *,
    now: datetime,
    who: str,
    why: str,
    expected_version: int | None = None,
    evidence: object = None,
    event: str | None = None,
    say: bool = True,
    **columns: object,
) -> bool:
    """See `AgentQueries.transition`."""
    if unknown := columns.keys() - SETTABLE:
        raise TypeError(f"no column that a change of status may set: {', '.join(sorted(unknown))}")
    found = connection.execute(STANDING, {"key": agent_id}).one_or_none()
    if found is None or found.status not in from_ or expected_version not in (None, found.version):
        return False
    if to in ENDED:
        columns["completed_at"] = now
    known = {"key": agent_id, "former": found.status, "known": found.version}
    changed = connection.execute(_TRANSITION, {**known, **columns, "status": to.value})
    if changed.rowcount != 1 or not say:
        return changed.rowcount == 1
    write_event(
        connection,
        event or _EVENTS.get(to, "agent.ended"),
        agent_id,
        who,
        why,
        now,
        from_status=found.status,
        to_status=to,
        owner_uid=found.owner_uid,
        evidence=evidence,
    )
    return True


def write_watched(connection: Connection, rows: Iterable[SweepRow]) -> None:
    """See `AgentQueries.save_sweep`; at least one row."""
    # Not asdict(), which copies each value deeply: 58 of the 110 ms that a thousand rows took.
    connection.execute(_SAVE_SWEEP, [{f"new_{name}": _stored(getattr(row, name)) for name in _SWEPT} for row in rows])


def write_task(
    connection: Connection, task_id: str, status: str, error_message: str | None, agent_id: str | None, now: datetime
) -> bool:
    """See `HistoryQueries.update_task`."""
    columns = orchestrator_task.columns
    stored: dict[str, object] = {"status": status, "error_message": error_message, "updated_at": now}
    if status in TASK_ENDED:
        stored["completed_at"] = now
    if status == "ready_for_retry":
        stored |= {"retry_count": columns.retry_count + 1, "assigned_agent": None}
    statement = update(orchestrator_task).where(columns.task_id == task_id)
    if agent_id is not None:
        statement = statement.where(or_(columns.assigned_agent == agent_id, columns.assigned_agent.is_(None)))
    return connection.execute(statement.values(stored)).rowcount == 1


# Worded like the index, not in_(): SQLite uses no partial index with parameters (sqlite.org/partialindex.html), and
# would read all ended agents.
LIVING = text(LIVE_SQL)
KEY = _columns.agent_id == bindparam("key")
STANDING = select(_columns.status, _columns.version, _columns.owner_uid).where(KEY)
_TRANSITION = (
    update(agent_lifecycle)
    .where(KEY, _columns.status == bindparam("former"), _columns.version == bindparam("known"))
    .values(version=_columns.version + 1)  # by the database: someone may have written text there by hand
)
_SAVE_SWEEP = (
    update(agent_lifecycle)
    .where(
        _columns.agent_id == bindparam("new_agent_id"),
        LIVING,
        _columns.beats <= bindparam("new_beats"),
        _columns.watched_seconds <= bindparam("new_watched_seconds"),
    )
    .values({name: bindparam(f"new_{name}") for name in _SWEPT if name != "agent_id"})
)


def _stored(value: object) -> object:
    """A list as JSON; NaN and infinity as NULL: an agent's `progress=nan` would make its row unreadable."""
    if isinstance(value, tuple):
        return dump(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
