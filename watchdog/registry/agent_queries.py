"""Queries on `agent_lifecycle`: registration, changes of status, the batch of a sweep, look-ups.

A change of status is one compare-and-set UPDATE and one `lifecycle_event` in the same durable transaction.
"""

from collections.abc import Collection, Iterable, Set
from datetime import datetime

from sqlalchemy import ColumnElement, bindparam, insert, select, update

from watchdog.core.agent import LIVE, Registration, Status
from watchdog.errors import Conflict
from watchdog.registry.engines import Duplicate
from watchdog.registry.query_base import Queries, padded, values, write_event
from watchdog.registry.registration_codec import from_registration
from watchdog.registry.row_codec import dump, from_members, to_agent
from watchdog.registry.rows import AgentRow, Problem, SweepRow, TreeRow
from watchdog.registry.schema import agent_lifecycle
from watchdog.registry.shared_writes import KEY, LIVING, STANDING, change_status, write_watched

_table = agent_lifecycle
_columns = _table.columns


class AgentQueries(Queries):
    """`registry.agents`: finds and lists agents, changes their status, and saves what each sweep observed."""

    def add(
        self, registration: Registration, status: Status, now: datetime, who: str, notify_socket: str | None = None
    ) -> AgentRow:
        """Store a new agent and its `agent.registered` event. Raises Conflict for an agent_id that was ever used."""
        identity = registration.identity
        stored = from_registration(registration, status, now, notify_socket)
        try:
            with self.engines.begin(self.engines.durable) as connection:
                connection.execute(_ADD, stored)
                write_event(
                    connection,
                    "agent.registered",
                    registration.agent_id,
                    who,
                    f"registered by {registration.source}",
                    now,
                    to_status=status,
                    owner_uid=registration.owner_uid,
                    evidence={"name": registration.name, "pid": identity.pid if identity else None},
                )
        except Duplicate:
            raise Conflict(f"agent id {registration.agent_id} is known already; ids are never used again") from None
        row = self.get(registration.agent_id)
        if row is None:
            raise Conflict(f"agent {registration.agent_id} was removed while it was registered")
        return row

    def live(self, host: str) -> tuple[list[AgentRow], list[Problem]]:
        """Every agent of this host that has not ended, of any boot, and separately the rows that cannot be read.

        A row with an unknown status is one of the latter: its agent may or may not have ended.
        """
        unknown = _columns.status.not_in(values(Status))
        query = select(_table).where(_columns.host == host, _columns.status.in_(values(LIVE)) | unknown)
        return self._rows(query.order_by(_columns.created_at, _columns.agent_id), to_agent)

    def without_row(self, agent_ids: Iterable[str], host: str) -> set[str]:
        """Which of these ids have no row at all, neither live nor ended."""
        query = select(_columns.agent_id).where(_columns.host == host, LIVING)  # the others are looked up one by one
        with self.engines.begin(self.engines.reading) as connection:
            gone = set(agent_ids).difference(connection.scalars(query).all())
            return {one for one in gone if connection.execute(STANDING, {"key": one}).first() is None}

    def hosts(self) -> list[str]:
        """Every host that has agents here, ended ones too."""
        with self.engines.begin(self.engines.reading) as connection:
            return sorted(connection.scalars(select(_columns.host).distinct()))

    def owners(self, host: str) -> set[int]:
        """The uids that had an agent here, as far as the registry remembers."""
        query = select(_columns.owner_uid).where(_columns.host == host).distinct()
        with self.engines.begin(self.engines.reading) as connection:
            return {uid for uid in connection.scalars(query) if isinstance(uid, int) and 0 <= uid < 2**32}

    def get(self, agent_id: str) -> AgentRow | None:
        """One agent, ended or not. Raises Conflict when its row cannot be read."""
        rows, problems = self._rows(_BY_ID, to_agent, key=agent_id)
        if problems:
            raise Conflict(f"the row of agent {agent_id} cannot be read: {problems[0].message}")
        return rows[0] if rows else None

    def newest(
        self, *, ended: bool = False, tag: str | None = None, owner_uid: int | None = None, limit: int = 1000
    ) -> list[AgentRow]:
        """Agents to list, newest first: the live ones, or all with `ended`. Rows that cannot be read are left out."""
        query = select(_table).order_by(_columns.created_at.desc(), _columns.agent_id).limit(limit)
        if not ended:
            query = query.where(LIVING)
        if tag is not None:
            query = query.where(_columns.tags.contains(dump(tag), autoescape=True))
        if owner_uid is not None:
            query = query.where(_columns.owner_uid == owner_uid)
        return self._rows(query, to_agent)[0]

    def by_name(self, name: str, owner_uid: int | None = None, *, live_only: bool = True) -> list[AgentRow]:
        """Agents of that name, newest first."""
        return self._find(_columns.name == name, owner_uid, live_only)

    def by_pid(self, pid: int) -> list[AgentRow]:
        """Agents whose main process has or had that pid, newest first, live or ended."""
        return self._find(_columns.pid == pid, None, live_only=False)

    def by_task(self, task_id: str, owner_uid: int | None = None, *, live_only: bool = True) -> list[AgentRow]:
        """Agents that work on that task, newest first."""
        return self._find(_columns.task_id == task_id, owner_uid, live_only)

    def by_ids(self, agent_ids: Collection[str]) -> list[AgentRow]:
        """The agents with these ids, live or ended; ids without a readable row are left out."""
        return self._rows(select(_table).where(_columns.agent_id.in_(padded(agent_ids))), to_agent)[0]

    def find(self, word: str, owner_uid: int | None = None, *, live_only: bool = False) -> list[AgentRow]:
        """Agents that `word` may name: by id, else by name, else by the beginning of the id (4 characters or more)."""
        begins = _columns.agent_id.startswith(word, autoescape=True) if len(word) >= 4 else None
        for condition in (_columns.agent_id == word, _columns.name == word, begins):
            if condition is not None and (rows := self._find(condition, owner_uid, live_only)):
                return rows
        return []

    def transition(
        self,
        agent_id: str,
        from_: Set[Status],
        to: Status,
        *,
        expected_version: int | None = None,
        now: datetime,
        who: str,
        why: str,
        evidence: object = None,
        event: str | None = None,
        say: bool = True,
        **columns: object,
    ) -> bool:
        """Change the status by compare-and-set and write an event. False if the status or the version is another one.

        `event` is the event's name where the default for the new status is too general; `say=False` writes no event.
        `completed_at` is set when the new status is an ended one.
        """
        with self.engines.begin(self.engines.durable) as connection:
            return change_status(
                connection,
                agent_id,
                from_,
                to,
                expected_version=expected_version,
                now=now,
                who=who,
                why=why,
                evidence=evidence,
                event=event,
                say=say,
                **columns,
            )

    def save_sweep(self, rows: Iterable[SweepRow]) -> None:
        """Save what a sweep observed, in one statement: live agents only, never the status, and never older values.

        Not flushed to disk (synchronous=NORMAL): a power cut may lose a little of an agent's measured silence.
        """
        if batch := list(rows):
            with self.engines.begin(self.engines.quick) as connection:
                write_watched(connection, batch)

    def save_trees(self, rows: Iterable[TreeRow]) -> None:
        """Save the processes that a scan found in the trees of live agents; like a sweep, not flushed to disk."""
        batch = [{"key": row.agent_id, "home": row.home_cgroup, "found": from_members(row.members)} for row in rows]
        if batch:
            with self.engines.begin(self.engines.quick) as connection:
                connection.execute(_SAVE_TREES, batch)

    def _find(self, condition: ColumnElement[bool], owner_uid: int | None, live_only: bool) -> list[AgentRow]:
        query = select(_table).where(condition).order_by(_columns.created_at.desc(), _columns.agent_id).limit(100)
        if owner_uid is not None:
            query = query.where(_columns.owner_uid == owner_uid)
        if live_only:
            query = query.where(_columns.status.in_(values(LIVE)))
        return self._rows(query, to_agent)[0]


_BY_ID = select(_table).where(KEY)
_ADD = insert(_table)
_SAVE_TREES = update(_table).where(KEY, LIVING).values(home_cgroup=bindparam("home"), members=bindparam("found"))
