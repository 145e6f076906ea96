"""A registration as the values of its columns, and as a line of JSON with the same content.

A line is checked like a row when it is read: what cannot be decoded raises `BadRow`.
"""

import json
from collections.abc import Mapping
from datetime import datetime

from watchdog.core.agent import Registration, Status
from watchdog.core.process import Identity
from watchdog.registry.column_decoders import BadRow
from watchdog.registry.query_base import seconds
from watchdog.registry.row_codec import dump, entries_json, sites_json, to_agent
from watchdog.registry.rows import AgentRow
from watchdog.registry.schema import agent_lifecycle

# What a new row has in columns without a given value: the schema's own defaults (`0`, `false`, `[]`, a string).
_DEFAULTS = {column.name: str(getattr(column.server_default, "arg", "null")) for column in agent_lifecycle.columns}


def from_registration(
    registration: Registration, status: Status, now: datetime, notify_socket: str | None
) -> dict[str, object]:
    """The values of a new agent's row."""
    identity = registration.identity
    return {
        "agent_id": registration.agent_id,
        "name": registration.name,
        "owner_uid": registration.owner_uid,
        "dropped": registration.dropped,
        "host": registration.host,
        "boot_id": registration.boot_id,
        "agent_type": registration.agent_type,
        "tags": dump(registration.tags),
        "task_id": registration.task_id,
        "parent_id": registration.parent_id,
        "status": status.value,
        "source": registration.source,
        "command": registration.command,
        "stall_after_seconds": seconds(registration.stall_after),
        "interval_seconds": seconds(registration.interval),
        "ttl_seconds": seconds(registration.ttl),
        "worktree_path": registration.worktree,
        "temp_dir": registration.temp_dir,
        "sites": sites_json(registration),
        "beat_file": registration.beat_file,
        "log_path": registration.log,
        "transcript_path": registration.transcript,
        "cgroup_path": registration.cgroup,
        "pane": None if registration.pane is None else dump(registration.pane),
        "notify_socket": notify_socket,
        "entries": entries_json(registration.entries),
        "promised": registration.stall_after is not None,
        "created_at": registration.created_at or now,
        "started_at": now if status is Status.RUNNING else None,
        **(identity_values(identity) if identity else {}),
    }


def identity_values(identity: Identity) -> dict[str, object]:
    """The columns that name a process; its host is the row's."""
    return {
        "boot_id": identity.boot_id,
        "pid": identity.pid,
        "start_ticks": identity.start_ticks,
        "pidfd_inode": identity.pidfd_inode,
    }


def to_line(values: Mapping[str, object]) -> str:
    """As one line of JSON, with times as in RFC 3339."""
    times = {key: value.isoformat() for key, value in values.items() if isinstance(value, datetime)}
    return dump({**values, **times})


def from_line(line: str) -> AgentRow:
    """Decode it to the row that it would be in the database. Raises BadRow."""
    try:
        values = json.loads(line)
        if not isinstance(values, dict):
            raise BadRow("no JSON object")
        times = {key: datetime.fromisoformat(values[key]) for key in ("created_at", "started_at") if values.get(key)}
        return to_agent({**_fresh(), **values, **times})
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRow(f"no registration ({error})") from None


def _fresh() -> dict[str, object]:
    """A row with only the defaults."""
    fresh: dict[str, object] = {}
    for name, default in _DEFAULTS.items():
        whole = default in ("null", "false", "true") or default.isdigit()
        fresh[name] = json.loads(default) if whole else default
    return fresh
