"""Queries on `kill_request`: one open per agent, claimed by compare-and-set, each step stored before it is done.

Every write is durable (synchronous=FULL) when its method returns; no signal may be sent before.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection, and_, bindparam, insert, or_, select, text, update

from watchdog.core.agent import LIVE, Status
from watchdog.core.kill import KillStep, Reason
from watchdog.core.process import Identity
from watchdog.errors import Conflict, RowRemoved
from watchdog.registry.engines import Duplicate
from watchdog.registry.query_base import Queries, write_event
from watchdog.registry.row_codec import dump, to_request
from watchdog.registry.rows import AgentEnd, Problem, Proof, RequestRow
from watchdog.registry.schema import OPEN_SQL, OPEN_STATUSES, agent_lifecycle, kill_request
from watchdog.registry.shared_writes import change_status, write_task, write_watched

_columns = kill_request.columns
_EVENTS = {"done": "kill.finished", "withdrawn": "kill.withdrawn", "unkillable": "kill.unkillable"}


class KillRequestQueries(Queries):
    """`registry.kills`: the kill requests."""

    def open_request(
        self,
        request_id: str,
        agent_id: str,
        reason: Reason,
        *,
        by: str,
        now: datetime,
        by_uid: int | None = None,
        identity: Identity | None = None,
        options: Mapping[str, object] | None = None,
        evidence: Mapping[str, object] | None = None,
        why: str = "",
        owner_uid: int | None = None,
        event: str = "kill.requested",
    ) -> bool:
        """Store a kill request and its event. False if one is open. Raises RowRemoved if the agent has no row."""
        try:
            with self.engines.begin(self.engines.durable) as connection:
                connection.execute(
                    _OPEN,
                    {
                        "request_id": request_id,
                        "agent_id": agent_id,
                        "reason": reason.value,
                        "by_uid": by_uid,
                        "by_text": by,
                        "options": dump(options or {}),
                        "pid": identity.pid if identity else None,
                        "start_ticks": identity.start_ticks if identity else None,
                        "boot_id": identity.boot_id if identity else None,
                        "status": "open",
                        "evidence": dump(evidence or {}),
                        "created_at": now,
                    },
                )
                write_event(
                    connection,
                    event,
                    agent_id,
                    by,
                    why or reason.value,
                    now,
                    owner_uid=owner_uid,
                    evidence={"request_id": request_id, "reason": reason.value, **(evidence or {})},
                )
        except Duplicate:
            return False
        except Conflict as error:  # the foreign key: no other constraint can fail
            raise RowRemoved(f"the row of agent {agent_id} has been removed from the registry") from error
        return True

    def request(self, request_id: str) -> RequestRow | None:
        """One request. Raises Conflict when its row cannot be read."""
        rows, problems = self._rows(_BY_ID, to_request, key=request_id)
        if problems:
            raise Conflict(f"kill request {request_id} cannot be read: {problems[0].message}")
        return rows[0] if rows else None

    def open_requests(self, host: str) -> tuple[list[RequestRow], list[Problem]]:
        """Open requests for agents of this host, oldest first, and separately the rows that cannot be read."""
        return self._rows(_OPEN_ONES, to_request, host=host)

    def requests_of(self, agent_id: str) -> list[RequestRow]:
        """Every request for one agent, oldest first."""
        query = _SELECT.where(_columns.agent_id == agent_id)
        return self._rows(query.order_by(_columns.created_at, _columns.request_id), to_request)[0]

    def claim_request(
        self, request_id: str, claimed_by: str, now: datetime, *, takeover_from: str | None = None
    ) -> bool:
        """Claim a request that is open or unkillable, or (`takeover_from`) one of a daemon that is proved gone.

        `claimed_by` is a daemon's identity as text. A daemon may claim its own again (the answer to the first claim may
        have been lost). False if another daemon was first; then touch nothing.
        """
        claim = {"key": request_id, "me": claimed_by, "former": takeover_from, "now": now}
        with self.engines.begin(self.engines.durable) as connection:
            return connection.execute(_CLAIM, claim).rowcount == 1

    def claim_agent(
        self,
        request_id: str,
        claimed_by: str,
        agent_id: str,
        to: Status,
        *,
        now: datetime,
        who: str,
        why: str,
        takeover_from: str | None = None,
        say: bool = True,
    ) -> bool:
        """Claim a request and change its agent's status, in one transaction. False if either is closed or not ours."""
        claim = {"key": request_id, "me": claimed_by, "former": takeover_from, "now": now}
        with self.engines.begin(self.engines.durable) as connection:
            claimed = connection.execute(_CLAIM, claim).rowcount == 1
            return claimed and change_status(connection, agent_id, LIVE, to, now=now, who=who, why=why, say=say)

    def save_step(
        self,
        request_id: str,
        step: str,
        *,
        by: tuple[str, str | None] | None = None,
        members: Sequence[Mapping[str, object]] | None = None,
        evidence: Mapping[str, object] | None = None,
        outcome: Mapping[str, object] | None = None,
        proof: Proof | None = None,
    ) -> bool:
        """Save the intent before the act. False if the request is no longer claimed, or not by one of `by`: do not act.

        `proof`: with this step the agent is proved dead; its history gets that event before those of the cleanup.
        """
        stored = {"key": request_id, "step": step, **_stored(members=members, evidence=evidence, outcome=outcome)}
        with self.engines.begin(self.engines.durable) as connection:
            changed = connection.execute(_STEP if by is None else _HELD_STEP, {**stored, **_holders(by)}).rowcount == 1
            if changed and proof is not None:
                facts = proof.agent_id, proof.who, proof.why, proof.at, outcome or {}, proof.owner_uid
                _finished(connection, "kill.finished", request_id, *facts)
            return changed

    def change_request(self, request_id: str, reason: Reason, by: str, options: Mapping[str, object]) -> bool:
        """Save a new reason, requester and options. False if the request is not open."""
        changed = {"key": request_id, "new_reason": reason.value, "new_by": by, "new_options": dump(options)}
        with self.engines.begin(self.engines.durable) as connection:
            return connection.execute(_CHANGE, changed).rowcount == 1

    def finish_request(
        self,
        request_id: str,
        status: str,
        outcome: Mapping[str, object],
        *,
        now: datetime,
        who: str,
        why: str,
        owner_uid: int | None = None,
        say: bool = True,
        by: tuple[str, str | None] | None = None,
    ) -> bool:
        """End a request (`done`, `withdrawn`) or put it aside (`unkillable`). False if it is not open.

        With `by` also False if another daemon has claimed it.

        `say=False` writes no event: an unkillable request is reported once and not at every retry.
        """
        event, finished = _EVENTS[status], None if status == "unkillable" else now
        ended = {"key": request_id, "status": status, "outcome": dump(outcome), "finished_at": finished}
        with self.engines.begin(self.engines.durable) as connection:
            changed = connection.execute(
                _FINISH if by is None else _HELD_FINISH, {**ended, **_holders(by)}
            ).one_or_none()
            if changed is None:
                return False
            if say:
                _finished(connection, event, request_id, changed.agent_id, who, why, now, outcome, owner_uid)
            return True

    def close_agent(self, agent_id: str, end: AgentEnd, *, now: datetime, who: str, owner_uid: int) -> bool:
        """Save all that follows the proof of death, in one transaction: task, last observations, row and request.

        The events are in the order in which things happened: kill finished, task cancelled, agent ended.
        False if the request is closed or claimed by another daemon: then nothing is written.
        """
        why = str(end.outcome["message"])
        ended = {"key": end.request_id, "status": "done", "outcome": dump(end.outcome), "finished_at": now}
        unsaved = {**_stored(**end.unsaved), "step": KillStep.CLEANUP.value}
        with self.engines.begin(self.engines.durable) as connection:
            done = connection.execute(_HELD_FINISH, {**ended, **unsaved, **_holders(end.holders)}).one_or_none()
            if done is None:
                return False
            if end.task is not None:
                task_id, status, message = end.task
                write_task(connection, task_id, status, message, agent_id, now)
            write_watched(connection, [end.watched])
            if end.say:
                _finished(connection, "kill.finished", end.request_id, agent_id, who, why, now, end.outcome, owner_uid)
            if end.task is not None and end.cancelled:
                facts = {"task_id": end.task[0]}
                words = agent_id, end.by, str(end.task[2]), now
                write_event(connection, "task.cancelled", *words, evidence=facts, owner_uid=owner_uid)
            change_status(
                connection,
                agent_id,
                {Status.ENDING},
                end.status,
                now=now,
                who=end.by,
                why=why,
                evidence={key: end.outcome.get(key) for key in ("processes", "cleanup")},
                exit_code=end.outcome.get("exit_code"),
                exit_signal=end.outcome.get("exit_signal"),
                error_message=end.error,
            )
            return True


_SELECT = select(kill_request, agent_lifecycle.columns.host).join(agent_lifecycle)
_KEY = _columns.request_id == bindparam("key")
_BY_ID = _SELECT.where(_KEY)
# Worded like the index of the open ones (see `shared_writes.LIVING`). No join: SQLite would begin with the agents.
_HOST = select(agent_lifecycle.columns.host).where(agent_lifecycle.columns.agent_id == _columns.agent_id)
_OPEN_ONES = (
    select(kill_request, _HOST.scalar_subquery().label("host"))
    .where(text(OPEN_SQL), _HOST.scalar_subquery() == bindparam("host"))
    .order_by(_columns.created_at, _columns.request_id)
)
_OPEN = insert(kill_request)
_CLAIM = (
    update(kill_request)
    .where(
        _KEY,
        or_(
            _columns.status.in_(("open", "unkillable")),
            and_(_columns.status == "claimed", _columns.claimed_by.in_((bindparam("me"), bindparam("former")))),
        ),
    )
    .values(status="claimed", claimed_by=bindparam("me"), claimed_at=bindparam("now"))
)
_STEP = update(kill_request).where(_KEY, _columns.status == "claimed")
_CHANGE = (
    update(kill_request)
    .where(_KEY, _columns.status.in_(OPEN_STATUSES))
    .values(reason=bindparam("new_reason"), by_text=bindparam("new_by"), options=bindparam("new_options"))
)
_FINISH = update(kill_request).where(_KEY, _columns.status.in_(OPEN_STATUSES)).returning(_columns.agent_id)

# No other daemon has claimed it. Built once: building it for each write took a seventh of the writer's time.
_HELD = or_(_columns.status != "claimed", _columns.claimed_by.in_((bindparam("me"), bindparam("former"))))
_HELD_STEP, _HELD_FINISH = _STEP.where(_HELD), _FINISH.where(_HELD)


def _holders(by: tuple[str, str | None] | None) -> dict[str, str | None]:
    return {} if by is None else {"me": by[0], "former": by[1]}


def _stored(**values: object) -> dict[str, str]:
    """The given values as columns of JSON."""
    return {name: dump(value) for name, value in values.items() if value is not None}


def _finished(
    connection: Connection,
    event: str,
    request_id: str,
    agent_id: str,
    who: str,
    why: str,
    now: datetime,
    outcome: Mapping[str, object],
    owner_uid: int | None,
) -> None:
    evidence = {"request_id": request_id, **outcome}
    write_event(connection, event, agent_id, who, why, now, evidence=evidence, owner_uid=owner_uid)
