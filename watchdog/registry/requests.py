"""Queries on `kill_request`: one open per agent, claimed by compare-and-set, each step stored before it is done.

Everything here is durable (synchronous=FULL) when the method returns; nothing may be signalled before.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from sqlalchemy import and_, insert, or_, select, update

from watchdog.core.model import Identity, Reason
from watchdog.errors import Conflict
from watchdog.registry.codec import dump, to_request
from watchdog.registry.engines import Duplicate
from watchdog.registry.querying import Queries, write_event
from watchdog.registry.rows import Problem, RequestRow
from watchdog.registry.schema import OPEN_STATUSES, agent_lifecycle, kill_request

_columns = kill_request.columns
_EVENTS = {"done": "kill.finished", "withdrawn": "kill.withdrawn", "unkillable": "kill.unkillable"}


class RequestQueries(Queries):
    """The part of `Store` that is about kill requests."""

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
    ) -> RequestRow | None:
        """Order a kill and say so. None when one is open already; Conflict for an unknown agent."""
        try:
            with self.engines.begin(self.engines.durable) as connection:
                connection.execute(
                    insert(kill_request).values(
                        request_id=request_id,
                        agent_id=agent_id,
                        reason=reason.value,
                        by_uid=by_uid,
                        by_text=by,
                        options=dump(options or {}),
                        pid=identity.pid if identity else None,
                        start_ticks=identity.start_ticks if identity else None,
                        boot_id=identity.boot_id if identity else None,
                        status="open",
                        evidence=dump(evidence or {}),
                        created_at=now,
                    )
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
            return None
        return self.request(request_id)

    def request(self, request_id: str) -> RequestRow | None:
        """One request. Raises Conflict when its row cannot be read."""
        rows, problems = self._rows(_SELECT.where(_columns.request_id == request_id), to_request)
        if problems:
            raise Conflict(f"kill request {request_id} cannot be read: {problems[0].message}")
        return rows[0] if rows else None

    def requests(self, statuses: Collection[str], host: str) -> tuple[list[RequestRow], list[Problem]]:
        """Requests for agents of this host, oldest first; rows that cannot be read, apart."""
        query = _SELECT.where(_columns.status.in_(sorted(statuses)), agent_lifecycle.columns.host == host)
        return self._rows(query.order_by(_columns.created_at, _columns.request_id), to_request)

    def requests_of(self, agent_id: str) -> list[RequestRow]:
        """Every request for one agent, oldest first."""
        query = _SELECT.where(_columns.agent_id == agent_id)
        return self._rows(query.order_by(_columns.created_at, _columns.request_id), to_request)[0]

    def claim_request(
        self, request_id: str, claimed_by: str, now: datetime, *, takeover_from: str | None = None
    ) -> bool:
        """Claim one that is open or unkillable, or (`takeover_from`) one of a daemon that is proved gone.

        `claimed_by` is a daemon's identity as text; claiming again what is one's own is no fault (the answer to the
        first claim may have been lost). False when somebody else was first; then touch nothing.
        """
        before = [claimed_by] if takeover_from is None else [claimed_by, takeover_from]
        free = or_(
            _columns.status.in_(("open", "unkillable")),
            and_(_columns.status == "claimed", _columns.claimed_by.in_(before)),
        )
        with self.engines.begin(self.engines.durable) as connection:
            changed = connection.execute(
                update(kill_request)
                .where(_columns.request_id == request_id, free)
                .values(status="claimed", claimed_by=claimed_by, claimed_at=now)
            )
            return changed.rowcount == 1

    def save_step(
        self,
        request_id: str,
        step: str,
        *,
        members: Sequence[Mapping[str, object]] | None = None,
        evidence: Mapping[str, object] | None = None,
        outcome: Mapping[str, object] | None = None,
    ) -> bool:
        """The intent, before the act. False when the request is not claimed any more: then do not act."""
        stored: dict[str, object] = {"step": step}
        if members is not None:
            stored["members"] = dump(list(members))
        if evidence is not None:
            stored["evidence"] = dump(evidence)
        if outcome is not None:
            stored["outcome"] = dump(outcome)
        with self.engines.begin(self.engines.durable) as connection:
            changed = connection.execute(
                update(kill_request)
                .where(_columns.request_id == request_id, _columns.status == "claimed")
                .values(stored)
            )
            return changed.rowcount == 1

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
    ) -> bool:
        """End a request (`done`, `withdrawn`) or put it aside (`unkillable`). False when it is not open.

        `say=False` writes no event: for the retry of an unkillable one, which is told once and not at every try.
        """
        event = _EVENTS[status]
        with self.engines.begin(self.engines.durable) as connection:
            changed = connection.execute(
                update(kill_request)
                .where(_columns.request_id == request_id, _columns.status.in_(OPEN_STATUSES))
                .values(status=status, outcome=dump(outcome), finished_at=None if status == "unkillable" else now)
                .returning(_columns.agent_id)
            ).one_or_none()
            if changed is None:
                return False
            if say:
                evidence = {"request_id": request_id, **outcome}
                write_event(connection, event, changed.agent_id, who, why, now, evidence=evidence, owner_uid=owner_uid)
            return True


_SELECT = select(kill_request, agent_lifecycle.columns.host).join(agent_lifecycle)
