"""Queries of retention: which rows are old enough to be deleted, and deleting a batch of them.

What is due is read in one query, outside of any write; each batch is deleted by its keys. So a batch never searches
while it holds the write lock (200 agents: 3 ms), and retention needs no index of its own.
"""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import assert_never

from sqlalchemy import Select, delete, or_, select

from watchdog.core.agent import ENDED, LIVE
from watchdog.registry.query_base import Queries, padded, values
from watchdog.registry.schema import (
    OPEN_STATUSES,
    TASK_ENDED,
    agent_lifecycle,
    cleanup_run,
    kill_request,
    lifecycle_event,
    operator_hold,
    orchestrator_task,
)

_agents = agent_lifecycle.columns
_tasks = orchestrator_task.columns
_events = lifecycle_event.columns
_holds = operator_hold.columns


class RetentionKind(StrEnum):
    """What is deleted, in this order: the later kinds go when nothing refers to them any more."""

    AGENTS = "agents"
    TASKS = "tasks"
    HOLDS = "holds"
    EVENTS = "events"


class RetentionQueries(Queries):
    """`registry.retention`: finds and deletes what is old."""

    def due(self, kind: RetentionKind, before: datetime, host: str, limit: int = 10_000) -> list[str | int]:
        """Keys of what ended before that time.

        Agents: of this host only (each host's daemon has its own `retention_days`), ended, and nothing depends on them:
        no open request, no unfinished task, no live child. Other kinds: ended, and the agent's row is gone.
        """
        with self.engines.begin(self.engines.reading) as connection:
            return list(connection.scalars(_due(kind, before, host).limit(limit)))

    def forget(self, kind: RetentionKind, keys: Sequence[str | int]) -> int:
        """Delete these rows in one transaction; returns how many. A power cut may bring the last ones back."""
        listed = padded(keys)
        with self.engines.begin(self.engines.quick) as connection:
            match kind:
                case RetentionKind.AGENTS:
                    ended = _agents.status.in_(values(ENDED)) & _agents.agent_id.in_(listed)
                    for table in (kill_request, cleanup_run):
                        column = table.columns.agent_id
                        connection.execute(delete(table).where(column.in_(select(_agents.agent_id).where(ended))))
                    return connection.execute(delete(agent_lifecycle).where(ended)).rowcount
                case RetentionKind.TASKS:
                    still = _tasks.task_id.in_(listed) & _tasks.status.in_(TASK_ENDED)  # an agent may work on it again
                    return connection.execute(delete(orchestrator_task).where(still)).rowcount
                case RetentionKind.HOLDS:
                    return connection.execute(delete(operator_hold).where(_holds.id.in_(listed))).rowcount
                case RetentionKind.EVENTS:
                    return connection.execute(delete(lifecycle_event).where(_events.id.in_(listed))).rowcount
                case _:
                    assert_never(kind)


def needed_agents() -> tuple[Select[tuple[str | None]], ...]:
    """The agents that something depends on, ended or not: an open request, an unfinished task, a live child."""
    return (
        select(kill_request.columns.agent_id).where(kill_request.columns.status.in_(OPEN_STATUSES)),
        select(_tasks.assigned_agent).where(_tasks.status.not_in(TASK_ENDED), _tasks.assigned_agent.is_not(None)),
        select(_agents.parent_id).where(_agents.status.in_(values(LIVE)), _agents.parent_id.is_not(None)),
    )


def _due(kind: RetentionKind, before: datetime, host: str) -> Select[tuple[str | int]]:
    there = select(_agents.agent_id)
    match kind:
        case RetentionKind.AGENTS:
            over = (_agents.status.in_(values(ENDED)), _agents.completed_at < before, _agents.host == host)
            return select(_agents.agent_id).where(*over, *(_agents.agent_id.not_in(ids) for ids in needed_agents()))
        case RetentionKind.TASKS:
            free = or_(_tasks.assigned_agent.is_(None), _tasks.assigned_agent.not_in(there))
            return select(_tasks.task_id).where(_tasks.status.in_(TASK_ENDED), _tasks.completed_at < before, free)
        case RetentionKind.HOLDS:
            return select(_holds.id).where(_holds.ended_at < before)
        case RetentionKind.EVENTS:
            free = or_(_events.agent_id.is_(None), _events.agent_id.not_in(there))
            return select(_events.id).where(_events.at < before, free).order_by(_events.id)
        case _:
            assert_never(kind)
