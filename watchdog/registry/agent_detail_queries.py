"""Queries that save what becomes known about an agent after its registration: its process, its owner, its places.

None of them touches what a sweep saves, and only `set_identity` changes the status.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Row, func, select, update

from watchdog.core.agent import LIVE, Registration, Status
from watchdog.core.kill import Step
from watchdog.core.process import Identity, Listed
from watchdog.registry.query_base import Queries, values, write_event
from watchdog.registry.registration_codec import identity_values
from watchdog.registry.row_codec import dump, entries_json, sites_json
from watchdog.registry.schema import agent_lifecycle

_table = agent_lifecycle
_columns = _table.columns


class AgentDetailQueries(Queries):
    """`registry.agent_details`. Each method is one durable transaction and returns False if it changed nothing."""

    def set_identity(
        self, agent_id: str, identity: Identity, status: Status, now: datetime, who: str, owner_uid: int | None = None
    ) -> bool:
        """Save the pid. False if the agent is not waiting for one, or already has another process.

        `owner_uid`: the uid of that process; it becomes the owner of an agent that root registered.
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
        """Its process dropped from root to that uid, which owns the agent for good. By compare-and-set, from root only.

        The pane is cleared: root's helper found it, and it may not be the user's.

        Repeating the call is harmless. False if the agent has ended, or another user owns it.
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
        """Save the path of the agent's own cgroup."""
        return self._set(agent_id, cgroup_path=path)

    def set_pane(self, agent_id: str, pane: Mapping[str, object]) -> bool:
        """Save the terminal pane that the agent runs in."""
        return self._set(agent_id, pane=dump(pane))

    def set_transcript(self, agent_id: str, path: str) -> bool:
        """Save the path of the transcript that the agent writes."""
        return self._set(agent_id, transcript_path=path)

    def set_entries(self, agent_id: str, entries: Iterable[Listed]) -> bool:
        """Save the agent's entries in foreign registries."""
        return self._set(agent_id, entries=entries_json(entries))

    def set_sites(self, registration: Registration) -> bool:
        """Save the identity of its worktree and temp dir, as observed."""
        return self._set(registration.agent_id, sites=sites_json(registration))

    def set_rung(self, agent_id: str, rung: Step) -> bool:
        """Save the step that the agent has reached on its ladder; committed before the step is taken."""
        return self._set(agent_id, rung=rung)

    def set_hears(self, agent_id: str) -> bool:
        """Save that the agent reads the answers to its beats: a daemon that resumes a kill may ask it to stop."""
        return self._set(agent_id, hears=True)

    def set_type(self, agent_id: str, agent_type: str) -> bool:
        """Save the type of an agent that was registered without one."""
        return self._set(agent_id, agent_type=agent_type)

    def _set(self, agent_id: str, **columns: object) -> bool:
        """Set columns that are neither the status nor saved by a sweep. False if the agent has ended."""
        living = (_columns.agent_id == agent_id, _columns.status.in_(values(LIVE)))
        with self.engines.begin(self.engines.durable) as connection:
            return connection.execute(update(_table).where(*living).values(columns)).rowcount == 1


def _names(found: Row[Any], identity: Identity) -> bool:
    """True if the row already names this very process: repeating a registration is harmless."""
    stored = (found.host, found.boot_id, found.pid, found.start_ticks)
    return stored == (identity.host, identity.boot_id, identity.pid, identity.start_ticks)
