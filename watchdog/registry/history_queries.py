"""Queries on everything beside agents and kills: cleanup runs, tasks, events and holds."""

from collections import Counter
from collections.abc import Collection, Mapping
from datetime import datetime

from sqlalchemy import bindparam, insert, or_, select, update

from watchdog.core.hooks import HookOutcome
from watchdog.registry.engines import Engines
from watchdog.registry.query_base import Queries, write_event
from watchdog.registry.row_codec import dump, to_event, to_hold, to_run, to_task
from watchdog.registry.rows import EventRow, HoldRow, RunRow, TaskRow
from watchdog.registry.schema import (
    agent_lifecycle,
    cleanup_run,
    lifecycle_event,
    operator_hold,
    orchestrator_task,
)
from watchdog.registry.shared_writes import write_task

_FINAL = frozenset({"done", "nothing", "kept"})  # a run with such an outcome is not repeated


class HistoryQueries(Queries):
    """`registry.history`: cleanup runs, tasks, events and holds."""

    def __init__(self, engines: Engines) -> None:
        super().__init__(engines)
        self.over: frozenset[int] = frozenset()  # uids over their share of the registry (`reaper.shares`)
        self.unwritten: Counter[int] = Counter()  # by uid, the events that were not written because of it

    def open_run(
        self, run_id: str, agent_id: str, hook: str, now: datetime, *, request_id: str | None = None, anew: bool = False
    ) -> RunRow:
        """Store durably that a hook is about to run, and count the attempt.

        A run that already ended well is returned unchanged (status done, nothing or kept): do not run it again. `anew`:
        one that kept something is tried again.
        """
        columns = cleanup_run.columns
        with self.engines.begin(self.engines.durable) as connection:
            found = connection.execute(select(columns.status).where(columns.run_id == run_id)).one_or_none()
            if found is None:
                connection.execute(
                    insert(cleanup_run).values(
                        run_id=run_id,
                        agent_id=agent_id,
                        request_id=request_id,
                        hook=hook,
                        status="running",
                        attempts=1,
                        started_at=now,
                    )
                )
            elif found.status not in _FINAL or (anew and found.status == "kept"):
                connection.execute(
                    update(cleanup_run)
                    .where(columns.run_id == run_id)
                    .values(status="running", attempts=columns.attempts + 1, finished_at=None)
                )
            row = connection.execute(select(cleanup_run).where(columns.run_id == run_id)).mappings().one()
            return to_run({str(key): value for key, value in row.items()})

    def finish_run(
        self,
        run_id: str,
        outcome: HookOutcome,
        message: str,
        now: datetime,
        details: Mapping[str, object] | None = None,
        *,
        event: str | None = None,
        evidence: Mapping[str, object] | None = None,
        owner_uid: int | None = None,
    ) -> bool:
        """Store how a hook's attempt ended, and the event if one is given. False if the run was not running."""
        columns = cleanup_run.columns
        with self.engines.begin(self.engines.durable) as connection:
            changed = connection.execute(
                update(cleanup_run)
                .where(columns.run_id == run_id, columns.status == "running")
                .values(status=outcome.value, message=message, details=dump(details or {}), finished_at=now)
                .returning(columns.agent_id, columns.hook)
            ).one_or_none()
            if changed is None:
                return False
            if event is not None:
                why = f"{changed.hook}: {outcome}: {message}"
                write_event(
                    connection, event, changed.agent_id, "daemon", why, now, evidence=evidence, owner_uid=owner_uid
                )
            return True

    def runs_of(self, agent_id: str) -> list[RunRow]:
        """Every cleanup run of one agent, in the order in which they began."""
        columns = cleanup_run.columns
        query = select(cleanup_run).where(columns.agent_id == agent_id).order_by(columns.started_at, columns.run_id)
        return self._rows(query, to_run)[0]

    def assign_task(self, task_id: str, agent_id: str, now: datetime) -> None:
        """Assign the task to an agent that works on it now; creates the row if there is none."""
        columns = orchestrator_task.columns
        assigned = {"status": "running", "assigned_agent": agent_id, "updated_at": now, "started_at": now}
        with self.engines.begin(self.engines.durable) as connection:
            changed = connection.execute(
                update(orchestrator_task)
                .where(columns.task_id == task_id)
                .values({**assigned, "completed_at": None, "error_message": None})
            )
            if changed.rowcount == 0:
                connection.execute(
                    insert(orchestrator_task).values({**assigned, "task_id": task_id, "created_at": now})
                )

    def update_task(
        self, task_id: str, status: str, error_message: str | None, agent_id: str | None, now: datetime
    ) -> bool:
        """Save a task's status. False if it does not exist or is another agent's; `agent_id` None: any agent's."""
        with self.engines.begin(self.engines.durable) as connection:
            return write_task(connection, task_id, status, error_message, agent_id, now)

    def task(self, task_id: str) -> TaskRow | None:
        """One task; None also when its row cannot be read."""
        query = select(orchestrator_task).where(orchestrator_task.columns.task_id == task_id)
        rows = self._rows(query, to_task)[0]
        return rows[0] if rows else None

    def add_event(
        self,
        event: str,
        agent_id: str | None,
        who: str,
        why: str,
        now: datetime,
        *,
        evidence: Mapping[str, object] | None = None,
        owner_uid: int | None = None,
    ) -> int:
        """Store an event that changed no status. Returns its id, or 0 if its owner is over its share of the registry.

        Then it is only counted in `unwritten`. Events of a kill are always written.
        """
        if owner_uid is not None and owner_uid in self.over and not event.startswith("kill."):
            self.unwritten[owner_uid] += 1
            return 0
        with self.engines.begin(self.engines.durable) as connection:
            return write_event(connection, event, agent_id, who, why, now, evidence=evidence, owner_uid=owner_uid)

    def events(
        self, after: int, *, agent_id: str | None = None, owner_uid: int | None = None, limit: int = 500
    ) -> list[EventRow]:
        """Events with an id above `after`, in id order. With `owner_uid` only those of that owner's agents."""
        columns = lifecycle_event.columns
        agents = agent_lifecycle.columns
        both = lifecycle_event.outerjoin(agent_lifecycle, agents.agent_id == columns.agent_id)
        query = select(lifecycle_event, agents.name).select_from(both)
        query = query.where(columns.id > after).order_by(columns.id).limit(limit)
        if agent_id is not None:
            query = query.where(columns.agent_id == agent_id)
        if owner_uid is not None:
            query = query.where(columns.owner_uid == owner_uid)
        return self._rows(query, to_event)[0]

    def last_event(self, agent_id: str, events: Collection[str]) -> str | None:
        """The latest of these events that the agent has."""
        columns = lifecycle_event.columns
        query = select(columns.event).where(columns.agent_id == agent_id, columns.event.in_(sorted(events)))
        with self.engines.begin(self.engines.reading) as connection:
            return connection.execute(query.order_by(columns.id.desc()).limit(1)).scalar()

    def add_hold(
        self,
        agent_id: str | None,
        reason: str,
        by_uid: int | None,
        now: datetime,
        until_at: datetime | None = None,
        *,
        host: str,
    ) -> HoldRow:
        """Store an operator's hold: do nothing to this agent (None: to any agent of that host)."""
        stored = {
            "agent_id": agent_id,
            "reason": reason,
            "by_uid": by_uid,
            "created_at": now,
            "until_at": until_at,
            "host": host,
        }
        with self.engines.begin(self.engines.durable) as connection:
            key = connection.execute(insert(operator_hold).values(stored)).inserted_primary_key
        return HoldRow(int(key[0]) if key else 0, agent_id, reason, by_uid, now, until_at)

    def renew_hold(
        self, hold_id: int, reason: str, by_uid: int | None, now: datetime, until_at: datetime | None
    ) -> HoldRow | None:
        """Renew a hold, ended or not, with a new reason and end. None: the row has been deleted."""
        columns = operator_hold.columns
        stored = {"reason": reason, "by_uid": by_uid, "created_at": now, "until_at": until_at, "ended_at": None}
        with self.engines.begin(self.engines.durable) as connection:
            row = connection.execute(
                update(operator_hold).where(columns.id == hold_id).values(stored).returning(columns.agent_id)
            ).one_or_none()
        return None if row is None else HoldRow(hold_id, row.agent_id, reason, by_uid, now, until_at)

    def move_hold(self, hold_id: int, until_at: datetime | None) -> bool:
        """Save another time for the end of a hold, because the clock was set. False if the hold has already ended."""
        columns = operator_hold.columns
        with self.engines.begin(self.engines.durable) as connection:
            done = connection.execute(
                update(operator_hold).where(columns.id == hold_id, columns.ended_at.is_(None)).values(until_at=until_at)
            )
        return done.rowcount == 1

    def end_hold(self, hold_id: int, now: datetime) -> bool:
        """End a hold. False if it had already ended."""
        columns = operator_hold.columns
        with self.engines.begin(self.engines.durable) as connection:
            changed = connection.execute(
                update(operator_hold).where(columns.id == hold_id, columns.ended_at.is_(None)).values(ended_at=now)
            )
            return changed.rowcount == 1

    def active_holds(self, host: str) -> list[HoldRow]:
        """That host's holds that have not been ended; the caller checks `until_at` by its own clock."""
        return self._rows(_HOLDS, to_hold, host=host)[0]


_holds = operator_hold.columns
_HOLDS = (
    select(operator_hold)
    .where(_holds.ended_at.is_(None), or_(_holds.host == bindparam("host"), _holds.host.is_(None)))
    .order_by(_holds.id)
)
