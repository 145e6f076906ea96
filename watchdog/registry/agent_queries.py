"""Queries on `agent_lifecycle`: registration, changes of status, the batch of a sweep, look-ups.

A change of status is one compare-and-set UPDATE and one `lifecycle_event` in the same durable transaction.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, func, insert, select, update

from watchdog.core.agent import LIVE, Registration, Status
from watchdog.core.kill import Step
from watchdog.core.process import Identity, Listed
from watchdog.errors import Conflict
from watchdog.registry.engines import Duplicate
from watchdog.registry.query_base import Queries, values, write_event
from watchdog.registry.registration_codec import from_registration, identity_values
from watchdog.registry.row_codec import dump, entries_json, sites_json, to_agent
from watchdog.registry.rows import AgentRow, Problem, SweepRow
from watchdog.registry.schema import agent_lifecycle
from watchdog.registry.shared_writes import KEY, LIVING, STANDING, change_status, write_watched

_table = agent_lifecycle
_columns = _table.columns


class AgentQueries(Queries):
    """The part of `Store` that is about agents."""

    def add_agent(
        self, registration: Registration, status: Status, now: datetime, who: str, notify_socket: str | None = None
    ) -> AgentRow:
        """Store a new agent and say `agent.registered`. Raises Conflict for an agent_id that was ever used."""
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
        row = self.agent(registration.agent_id)
        if row is None:
            raise Conflict(f"agent {registration.agent_id} was removed while it was registered")
        return row

    def live_agents(self, host: str) -> tuple[list[AgentRow], list[Problem]]:
        """Every agent of this host that has not ended, of any boot; rows that cannot be read, apart.

        Among these is one whose status is no word of ours: nobody knows whether it has ended.
        """
        unknown = _columns.status.not_in(values(Status))
        query = select(_table).where(_columns.host == host, _columns.status.in_(values(LIVE)) | unknown)
        return self._rows(query.order_by(_columns.created_at, _columns.agent_id), to_agent)

    def without_row(self, agent_ids: Iterable[str], host: str) -> set[str]:
        """Which of these have no row at all, ended or not."""
        query = select(_columns.agent_id).where(_columns.host == host, LIVING)  # others are asked for one by one
        with self.engines.begin(self.engines.reading) as connection:
            gone = set(agent_ids).difference(connection.scalars(query).all())
            return {one for one in gone if connection.execute(STANDING, {"key": one}).first() is None}

    def hosts(self) -> list[str]:
        """Every host that has agents here, ended ones too."""
        with self.engines.begin(self.engines.reading) as connection:
            return sorted(connection.scalars(select(_columns.host).distinct()))

    def agent(self, agent_id: str) -> AgentRow | None:
        """One agent, ended or not. Raises Conflict when its row cannot be read."""
        rows, problems = self._rows(_BY_ID, to_agent, key=agent_id)
        if problems:
            raise Conflict(f"the row of agent {agent_id} cannot be read: {problems[0].message}")
        return rows[0] if rows else None

    def agents(
        self, *, ended: bool = False, tag: str | None = None, owner_uid: int | None = None, limit: int = 1000
    ) -> list[AgentRow]:
        """Agents for a list, newest first: the living, with `ended` all. Rows that cannot be read are left out."""
        query = select(_table).order_by(_columns.created_at.desc(), _columns.agent_id).limit(limit)
        if not ended:
            query = query.where(LIVING)
        if tag is not None:
            query = query.where(_columns.tags.contains(dump(tag), autoescape=True))
        if owner_uid is not None:
            query = query.where(_columns.owner_uid == owner_uid)
        return self._rows(query, to_agent)[0]

    def agents_by_name(self, name: str, owner_uid: int | None = None, *, live_only: bool = True) -> list[AgentRow]:
        """Agents of that name, newest first."""
        return self._find(_columns.name == name, owner_uid, live_only)

    def agents_by_pid(self, pid: int) -> list[AgentRow]:
        """Agents whose main process had that number, newest first, ended or not."""
        return self._find(_columns.pid == pid, None, live_only=False)

    def agents_by_task(self, task_id: str, owner_uid: int | None = None, *, live_only: bool = True) -> list[AgentRow]:
        """Agents that work on that task, newest first."""
        return self._find(_columns.task_id == task_id, owner_uid, live_only)

    def find(self, word: str, owner_uid: int | None = None, *, live_only: bool = False) -> list[AgentRow]:
        """What a person may mean: that id, else those of that name, else ids that begin so (4 characters or more)."""
        begins = _columns.agent_id.startswith(word, autoescape=True) if len(word) >= 4 else None
        for condition in (_columns.agent_id == word, _columns.name == word, begins):
            if condition is not None and (rows := self._find(condition, owner_uid, live_only)):
                return rows
        return []

    def set_identity(
        self, agent_id: str, identity: Identity, status: Status, now: datetime, who: str, owner_uid: int | None = None
    ) -> bool:
        """The pid became known. False when the agent is not waiting for one, or already has another process.

        `owner_uid`: the process is that user's, of an agent that root registered; it is the agent's owner from now on.
        """
        with self.engines.begin(self.engines.durable) as connection:
            found = connection.execute(select(_table).where(_columns.agent_id == agent_id)).one_or_none()
            if found is None:
                return False
            if found.pid is not None:
                return _names(found, identity)
            changed = connection.execute(
                update(_table)
                .where(
                    _columns.agent_id == agent_id,
                    _columns.pid.is_(None),
                    _columns.status.in_(values({Status.QUEUED, Status.STARTING, Status.RUNNING})),
                )
                .values(
                    {
                        **identity_values(identity),
                        "owner_uid": owner_uid if owner_uid is not None and found.owner_uid == 0 else found.owner_uid,
                        "status": status.value,
                        "started_at": func.coalesce(_columns.started_at, now),
                        "version": _columns.version + 1,
                    }
                )
            )
            if changed.rowcount != 1:
                return False
            write_event(
                connection,
                "agent.pid_known",
                agent_id,
                who,
                f"its pid is {identity.pid}",
                now,
                from_status=found.status,
                to_status=status,
                owner_uid=found.owner_uid,
                evidence=asdict(identity),
            )
            return True

    def drop_owner(self, agent_id: str, uid: int, now: datetime) -> bool:
        """Its process was root's and is that user's now, who owns the agent for good: by compare-and-set, from root.

        A pane that root's helper found is not the user's.

        Repeating it is no fault. False when the agent has ended, or is another user's.
        """
        with self.engines.begin(self.engines.durable) as connection:
            living = (_columns.agent_id == agent_id, _columns.status.in_(values(LIVE)))
            found = connection.execute(select(_columns.owner_uid).where(*living)).one_or_none()
            if found is None or found.owner_uid not in (0, uid):
                return False
            if found.owner_uid == uid:
                return True
            changed = (
                update(_table).where(*living, _columns.owner_uid == 0).values(owner_uid=uid, dropped=True, pane=None)
            )
            if connection.execute(changed).rowcount != 1:
                return False
            why = f"its process dropped from root to uid {uid}"
            write_event(connection, "agent.owner_changed", agent_id, "daemon", why, now, owner_uid=uid)
            return True

    def set_cgroup(self, agent_id: str, path: str) -> bool:
        """The agent sits in a cgroup of its own from now on."""
        return self._set(agent_id, cgroup_path=path)

    def set_pane(self, agent_id: str, pane: Mapping[str, object]) -> bool:
        """Where it sits in a terminal was found."""
        return self._set(agent_id, pane=dump(pane))

    def set_transcript(self, agent_id: str, path: str) -> bool:
        """The agent writes its transcript there from now on."""
        return self._set(agent_id, transcript_path=path)

    def set_entries(self, agent_id: str, entries: Iterable[Listed]) -> bool:
        """Where foreign registries tell of it from now on."""
        return self._set(agent_id, entries=entries_json(entries))

    def set_sites(self, registration: Registration) -> bool:
        """What lies at its places was seen."""
        return self._set(registration.agent_id, sites=sites_json(registration))

    def set_rung(self, agent_id: str, rung: Step) -> bool:
        """The agent has come to that step of its ladder; committed before the step is taken."""
        return self._set(agent_id, rung=rung)

    def set_hears(self, agent_id: str) -> bool:
        """It reads our answers: whoever goes on with an order that asks it must know, however soon we die."""
        return self._set(agent_id, hears=True)

    def set_type(self, agent_id: str, agent_type: str) -> bool:
        """What the agent is: it was registered without a type."""
        return self._set(agent_id, agent_type=agent_type)

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
        """Change the status by compare-and-set and write its event. False when it was not `from_`, or another version.

        `event` names what happened where it is more than the status says; `say=False` writes none.
        `completed_at` is set when the agent ended.
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
        """Write what a sweep saw, all in one statement; only forward, only of the living, never the status.

        Not flushed to disk (synchronous=NORMAL): after a power cut an agent has a little less silence than it had.
        """
        if batch := list(rows):
            with self.engines.begin(self.engines.quick) as connection:
                write_watched(connection, batch)

    def _set(self, agent_id: str, **columns: object) -> bool:
        """What is neither status nor watched. False when the agent has ended."""
        living = (_columns.agent_id == agent_id, _columns.status.in_(values(LIVE)))
        with self.engines.begin(self.engines.durable) as connection:
            return connection.execute(update(_table).where(*living).values(columns)).rowcount == 1

    def _find(self, condition: ColumnElement[bool], owner_uid: int | None, live_only: bool) -> list[AgentRow]:
        query = select(_table).where(condition).order_by(_columns.created_at.desc(), _columns.agent_id).limit(100)
        if owner_uid is not None:
            query = query.where(_columns.owner_uid == owner_uid)
        if live_only:
            query = query.where(_columns.status.in_(values(LIVE)))
        return self._rows(query, to_agent)[0]


_BY_ID = select(_table).where(KEY)
_ADD = insert(_table)


def _names(found: Row[Any], identity: Identity) -> bool:
    """True when the row already holds this very process; repeating a registration is no fault."""
    stored = (found.host, found.boot_id, found.pid, found.start_ticks)
    return stored == (identity.host, identity.boot_id, identity.pid, identity.start_ticks)
