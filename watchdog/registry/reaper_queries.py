"""Queries of the reaper: ended agents of this host, what is known of their process trees, and hooks that failed.

All are bounded: a host may have a hundred thousand agents that ended within `retention_days`, and each round queries
again.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Select, and_, exists, or_, select

from watchdog.core.agent import ENDED
from watchdog.registry.column_decoders import Raw
from watchdog.registry.query_base import Queries, padded, values
from watchdog.registry.row_codec import to_agent, to_members, to_run
from watchdog.registry.rows import AgentRow, Json, RunRow
from watchdog.registry.schema import OPEN_STATUSES, agent_lifecycle, cleanup_run, kill_request

_agents = agent_lifecycle.columns
_requests = kill_request.columns
_runs = cleanup_run.columns
_GAVE_UP = ("failed", "timeout", "running")  # `running`: the daemon died in it, and its agent's row was closed by hand
_FAILED = ("failed", "timeout")
_IN_USE = '"in_use":true'  # in the details of a run that kept something only because it was in use
_TRASH = "/agent-watchdog/trash/"  # a hook's details name a worktree in the trash as COMMON + this + AGENT/tree


def _ended(query: Select[Any], host: str, limit: int) -> Select[Any]:
    ended = query.where(_agents.host == host, _agents.status.in_(values(ENDED)))
    return ended.order_by(_agents.completed_at.desc(), _agents.agent_id).limit(limit)


class LeftoverQueries(Queries):
    """`registry.leftovers`: what dead agents may have left."""

    def ended_agents(self, host: str, owner_uid: int, limit: int = 500) -> list[AgentRow]:
        """The agents of an owner on this host that ended last, newest first. Unreadable rows are left out."""
        query = _ended(select(agent_lifecycle), host, limit).where(_agents.owner_uid == owner_uid)
        return self._rows(query, to_agent)[0]

    def ended_ids(self, host: str, boot_id: str, limit: int) -> list[str]:
        """Ids of the agents of this host and boot that ended last, newest first."""
        query = _ended(select(_agents.agent_id), host, limit).where(_agents.boot_id == boot_id)
        with self.engines.begin(self.engines.reading) as connection:
            return [str(one) for one in connection.scalars(query)]

    def living_ids(self, host: str) -> set[str]:
        """Ids of the agents of this host that have not ended, including those of unreadable rows."""
        query = select(_agents.agent_id).where(_agents.host == host, _agents.status.not_in(values(ENDED)))
        with self.engines.begin(self.engines.reading) as connection:
            return {str(one) for one in connection.scalars(query)}

    def remembered(self, agent_ids: Sequence[str]) -> dict[str, tuple[Json, ...]]:
        """The members of these agents' process trees, as their kill requests recorded them."""
        query = select(_requests.agent_id, _requests.members).where(_requests.agent_id.in_(padded(agent_ids)))

        def pair(raw: Raw) -> tuple[str, tuple[Json, ...]]:
            return str(raw["agent_id"]), to_members(raw)

        found: dict[str, tuple[Json, ...]] = {}
        for agent_id, members in self._rows(query, pair)[0]:
            found[agent_id] = found.get(agent_id, ()) + members
        return found

    def gave_up(self, host: str, before: datetime, limit: int = 50) -> list[RunRow]:
        """Failed or interrupted hook runs of this host's ended agents, tried before that time, oldest first.

        Without those of agents that have an open kill request: their hooks are about to run.
        """
        busy = select(_requests.agent_id).where(_requests.status.in_(OPEN_STATUSES))
        query = (
            select(cleanup_run)
            .join(agent_lifecycle, _agents.agent_id == _runs.agent_id)
            .where(_agents.host == host, _agents.status.in_(values(ENDED)), _runs.status.in_(_GAVE_UP))
            .where(_runs.started_at < before, _runs.agent_id.not_in(busy))
        )
        return self._rows(query.order_by(_runs.finished_at, _runs.run_id).limit(limit), to_run)[0]

    def failed_runs(self, agent_ids: Collection[str]) -> list[RunRow]:
        """Hook runs of these agents whose last attempt failed, or that are being retried, by time of start."""
        again = and_(_runs.status == "running", _runs.attempts > 1)
        query = select(cleanup_run).where(_runs.agent_id.in_(padded(agent_ids)), or_(_runs.status.in_(_FAILED), again))
        return self._rows(query.order_by(_runs.started_at, _runs.run_id), to_run)[0]

    def kept_in_use(self, host: str, before: datetime, since: datetime, limit: int = 50) -> list[RunRow]:
        """Hook runs that kept something only because it was in use, first tried after `since` and last tried before
        `before`, oldest first.

        Without worktrees that another agent has been given since: the end of that agent decides about them.
        """
        later = agent_lifecycle.alias()
        given = exists().where(
            later.columns.host == host,
            later.columns.worktree_path == _agents.worktree_path,
            later.columns.agent_id != _agents.agent_id,
            later.columns.created_at >= _runs.started_at,
        )
        query = (
            select(cleanup_run)
            .join(agent_lifecycle, _agents.agent_id == _runs.agent_id)
            .where(_agents.host == host, _agents.status.in_(values(ENDED)), _runs.status == "kept")
            .where(_runs.details.contains(_IN_USE, autoescape=True), ~given)
            .where(_runs.finished_at < before, _runs.started_at >= since)
        )
        return self._rows(query.order_by(_runs.finished_at, _runs.run_id).limit(limit), to_run)[0]

    def trashes(self, host: str, owner_uid: int, limit: int = 500) -> list[str]:
        """The git common dirs of that owner's repositories where a hook has moved a worktree to the trash."""
        query = (
            select(cleanup_run)
            .join(agent_lifecycle, _agents.agent_id == _runs.agent_id)
            .where(_agents.host == host, _agents.owner_uid == owner_uid)
            .where(_runs.details.contains(_TRASH, autoescape=True))
        )
        runs = self._rows(query.order_by(_runs.started_at.desc()).limit(limit), to_run)[0]
        places = (str(run.details.get("trash", "")).rpartition(_TRASH)[0] for run in runs)
        return sorted({place for place in places if place.startswith("/")})
