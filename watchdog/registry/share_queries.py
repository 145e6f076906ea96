"""Queries of the users' shares: how much of the registry each user's agents take, and what can be deleted early.

For SQLite only, which is on this host's disk; a server's disk is its administrator's business. They read outside of any
write, like retention's.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, assert_never

from sqlalchemy import ColumnElement, FromClause, LargeBinary, Table, cast, delete, func, literal, select

from watchdog.core.agent import ENDED
from watchdog.registry.query_base import Queries, padded, values
from watchdog.registry.retention_queries import RetentionKind, needed_agents
from watchdog.registry.schema import (
    TASK_ENDED,
    CleanText,
    agent_lifecycle,
    cleanup_run,
    kill_request,
    lifecycle_event,
    operator_hold,
    orchestrator_task,
)

ROW = 200  # bytes that each row counts besides its text: numbers, keys, indexes

_agents = agent_lifecycle.columns
_events = lifecycle_event.columns
_holds = operator_hold.columns
_tasks = orchestrator_task.columns
Uses = dict[int, Counter[RetentionKind]]


class ShareQueries(Queries):
    """`registry.shares`: the owners of all rows, and their sizes."""

    def bytes_in_use(self) -> int:
        """Bytes of the database that are in use; deleted rows are not, though the file keeps its size."""
        with self.engines.begin(self.engines.reading) as connection:
            pages, free, size = (
                int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
                for name in ("page_count", "freelist_count", "page_size")
            )
        return (pages - free) * size

    def uses(self) -> Uses:
        """The bytes of all rows, by owner's uid and kind. Tasks, requests and runs count for their agent's owner."""
        found: Uses = defaultdict(Counter)
        with self.engines.begin(self.engines.reading) as connection:
            for kind, table, uid, source in _SOURCES:
                size = func.sum(_size(table) + ROW)
                for owner, total in connection.execute(select(uid, size).select_from(source).group_by(uid)):
                    if owner is not None:
                        found[int(owner)][kind] += int(total)
        return found

    def oldest(self, kind: RetentionKind, uids: Collection[int], limit: int) -> dict[str | int, int]:
        """Keys of these owners' oldest rows that may be deleted early, each with its bytes.

        All events; agents and holds only if they have ended. As with retention, an agent stays while something depends
        on it. An agent's bytes include its requests, runs and events.
        """
        size = _size(_TABLE[kind]) + ROW
        match kind:
            case RetentionKind.EVENTS:
                query = select(_events.id, size).where(_events.owner_uid.in_(uids)).order_by(_events.id)
            case RetentionKind.HOLDS:
                over = _holds.by_uid.in_(uids), _holds.ended_at.is_not(None)
                query = select(_holds.id, size).where(*over).order_by(_holds.id)
            case RetentionKind.TASKS:
                whose = _tasks.assigned_agent.in_(select(_agents.agent_id).where(_agents.owner_uid.in_(uids)))
                over = whose, _tasks.status.in_(TASK_ENDED)
                query = select(_tasks.task_id, size).where(*over).order_by(_tasks.completed_at)
            case RetentionKind.AGENTS:
                for table in (kill_request, cleanup_run, lifecycle_event):
                    its = select(func.sum(_size(table) + ROW)).where(table.columns.agent_id == _agents.agent_id)
                    if table is lifecycle_event:
                        its = its.where(_events.owner_uid.in_(uids))
                    size += func.coalesce(its.scalar_subquery(), 0)
                over = _agents.owner_uid.in_(uids), _agents.status.in_(values(ENDED))
                free = (_agents.agent_id.not_in(ids) for ids in needed_agents())
                query = select(_agents.agent_id, size).where(*over, *free).order_by(_agents.completed_at)
            case _:
                assert_never(kind)
        with self.engines.begin(self.engines.reading) as connection:
            return {key: int(total) for key, total in connection.execute(query.limit(limit))}

    def forget_events_of(self, agent_ids: Sequence[str]) -> int:
        """Delete the events of agents whose rows have been deleted; returns how many."""
        with self.engines.begin(self.engines.quick) as connection:
            return connection.execute(delete(lifecycle_event).where(_events.agent_id.in_(padded(agent_ids)))).rowcount


def total(uses: Mapping[int, Counter[RetentionKind]], uids: Collection[int]) -> Counter[RetentionKind]:
    """What these uids use together."""
    return sum((uses[uid] for uid in uids if uid in uses), Counter())


_TABLE = {
    RetentionKind.AGENTS: agent_lifecycle,
    RetentionKind.TASKS: orchestrator_task,
    RetentionKind.HOLDS: operator_hold,
    RetentionKind.EVENTS: lifecycle_event,
}


def _with_agent(table: Table, column: str = "agent_id") -> FromClause:
    return table.join(agent_lifecycle, table.columns[column] == _agents.agent_id)


_SOURCES: tuple[tuple[RetentionKind, Table, ColumnElement[Any], FromClause], ...] = (
    (RetentionKind.AGENTS, agent_lifecycle, _agents.owner_uid, agent_lifecycle),
    (RetentionKind.AGENTS, kill_request, _agents.owner_uid, _with_agent(kill_request)),
    (RetentionKind.AGENTS, cleanup_run, _agents.owner_uid, _with_agent(cleanup_run)),
    (RetentionKind.TASKS, orchestrator_task, _agents.owner_uid, _with_agent(orchestrator_task, "assigned_agent")),
    (RetentionKind.HOLDS, operator_hold, _holds.by_uid, operator_hold),
    (RetentionKind.EVENTS, lifecycle_event, _events.owner_uid, lifecycle_event),
)


def _size(table: Table) -> ColumnElement[int]:
    """Bytes of a row's text; length() of text would count characters, which take up to four bytes each."""
    size: ColumnElement[int] = literal(0)
    for column in table.columns:
        if isinstance(column.type, CleanText):
            size += func.coalesce(func.length(cast(column, LargeBinary)), 0)
    return size
