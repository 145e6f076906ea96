"""A database row -> a value of `rows`, or `BadRow` with the column and what is wrong with it.

Rows can be edited by hand, and SQLite stores any type in any column; nothing here trusts a column's declared type.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeVar

from watchdog.core.model import Identity, Listed, Reason, Registration, State, Status, Step, Verdict
from watchdog.errors import Conflict
from watchdog.registry.rows import AgentRow, EventRow, HoldRow, Json, RequestRow, RunRow, TaskRow
from watchdog.registry.schema import PID_MAX

Raw = Mapping[str, object]
E = TypeVar("E", bound=StrEnum)
T = TypeVar("T")
_LONGEST_SECONDS = 1e9  # 31 years; timedelta itself overflows at 8.6e13


class BadRow(Conflict):
    """A stored row that cannot be understood: names the column and the value."""


def dump(value: object) -> str:
    """JSON for a TEXT column; what JSON does not know (a datetime, an enum in a set) as text."""
    return json.dumps(value, default=str, separators=(",", ":"))


def entries_json(entries: Iterable[Listed]) -> str:
    """For the column `entries`; `to_agent` reads it."""
    return dump([asdict(entry) for entry in entries])


def to_agent(raw: Raw) -> AgentRow:
    """Decode a row of `agent_lifecycle`."""
    agent_id, host, boot_id = _text(raw, "agent_id"), _text(raw, "host"), _text(raw, "boot_id")
    created_at = _time(raw, "created_at")
    return AgentRow(
        registration=Registration(
            agent_id=agent_id,
            name=_text(raw, "name"),
            owner_uid=_int(raw, "owner_uid", 0, 2**32 - 1),
            host=host,
            boot_id=boot_id,
            agent_type=_text(raw, "agent_type"),
            tags=_list(raw, "tags", str),
            task_id=_optional(raw, "task_id", _text),
            parent_id=_optional(raw, "parent_id", _text),
            identity=_identity(raw, host, boot_id),
            stall_after=_optional(raw, "stall_after_seconds", _duration),
            interval=_optional(raw, "interval_seconds", _duration),
            ttl=_optional(raw, "ttl_seconds", _duration),
            worktree=_optional(raw, "worktree_path", _text),
            temp_dir=_optional(raw, "temp_dir", _text),
            beat_file=_optional(raw, "beat_file", _text),
            log=_optional(raw, "log_path", _text),
            transcript=_optional(raw, "transcript_path", _text),
            cgroup=_optional(raw, "cgroup_path", _text),
            pane=_optional(raw, "pane", _object),
            source=_text(raw, "source"),
            command=_optional(raw, "command", _text),
            created_at=created_at,
            entries=tuple(_entry(one) for one in _list(raw, "entries", dict)),
        ),
        status=_enum(raw, "status", Status),
        version=_int(raw, "version", 0),
        created_at=created_at,
        state=None if raw["state"] is None else _enum(raw, "state", State),
        verdict=None if raw["verdict"] is None else _enum(raw, "verdict", Verdict),
        notify_socket=_optional(raw, "notify_socket", _text),
        promised=bool(raw["promised"]),
        beats=_int(raw, "beats", 0),
        silence_seconds=_seconds(raw, "silence_seconds"),
        watched_seconds=_seconds(raw, "watched_seconds"),
        last_heartbeat=_optional(raw, "last_heartbeat", _time),
        last_progress=_optional(raw, "last_progress", _float),
        progress_silence_seconds=_seconds(raw, "progress_silence_seconds"),
        lease_left_seconds=_optional(raw, "lease_left_seconds", _seconds),
        tool=_optional(raw, "tool", _text),
        tool_left_seconds=_optional(raw, "tool_left_seconds", _seconds),
        note=_optional(raw, "note", _text),
        speaker_pid=_optional(raw, "speaker_pid", _int),
        hears=bool(raw["hears"]),
        rung=None if raw["rung"] is None else _enum(raw, "rung", Step),
        home_cgroup=_optional(raw, "home_cgroup", _text),
        members=_identities(raw, host, boot_id),
        started_at=_optional(raw, "started_at", _time),
        completed_at=_optional(raw, "completed_at", _time),
        exit_code=_optional(raw, "exit_code", _int),
        exit_signal=_optional(raw, "exit_signal", _int),
        error_message=_optional(raw, "error_message", _text),
        retry_count=_int(raw, "retry_count", 0),
    )


def to_request(raw: Raw) -> RequestRow:
    """Decode a row of `kill_request` with the agent's `host` joined to it."""
    identity = None
    if raw["pid"] is not None:
        identity = _identity({**raw, "pidfd_inode": None}, _text(raw, "host"), _text(raw, "boot_id"))
    return RequestRow(
        request_id=_text(raw, "request_id"),
        agent_id=_text(raw, "agent_id"),
        reason=_enum(raw, "reason", Reason),
        by=_text(raw, "by_text"),
        status=_text(raw, "status"),
        created_at=_time(raw, "created_at"),
        by_uid=_optional(raw, "by_uid", _int),
        options=_object(raw, "options"),
        identity=identity,
        step=_optional(raw, "step", _text),
        members=_list(raw, "members", dict),
        evidence=_object(raw, "evidence"),
        outcome=_object(raw, "outcome"),
        claimed_by=_optional(raw, "claimed_by", _text),
        claimed_at=_optional(raw, "claimed_at", _time),
        finished_at=_optional(raw, "finished_at", _time),
    )


def to_members(raw: Raw) -> tuple[Json, ...]:
    """Decode the members that a `kill_request` has committed."""
    return _list(raw, "members", dict)


def to_run(raw: Raw) -> RunRow:
    """Decode a row of `cleanup_run`."""
    return RunRow(
        run_id=_text(raw, "run_id"),
        agent_id=_text(raw, "agent_id"),
        hook=_text(raw, "hook"),
        status=_text(raw, "status"),
        attempts=_int(raw, "attempts", 0),
        started_at=_time(raw, "started_at"),
        request_id=_optional(raw, "request_id", _text),
        message=_text(raw, "message"),
        details=_object(raw, "details"),
        finished_at=_optional(raw, "finished_at", _time),
    )


def to_task(raw: Raw) -> TaskRow:
    """Decode a row of `orchestrator_task`."""
    return TaskRow(
        task_id=_text(raw, "task_id"),
        status=_text(raw, "status"),
        created_at=_time(raw, "created_at"),
        assigned_agent=_optional(raw, "assigned_agent", _text),
        error_message=_optional(raw, "error_message", _text),
        started_at=_optional(raw, "started_at", _time),
        completed_at=_optional(raw, "completed_at", _time),
        updated_at=_optional(raw, "updated_at", _time),
        retry_count=_int(raw, "retry_count", 0),
        priority=_optional(raw, "priority", _int),
        spec_id=_optional(raw, "spec_id", _text),
    )


def to_event(raw: Raw) -> EventRow:
    """Decode a row of `lifecycle_event`."""
    return EventRow(
        id=_int(raw, "id"),
        at=_time(raw, "at"),
        event=_text(raw, "event"),
        who=_text(raw, "who"),
        why=_text(raw, "why"),
        agent_id=_optional(raw, "agent_id", _text),
        from_status=_optional(raw, "from_status", _text),
        to_status=_optional(raw, "to_status", _text),
        evidence=_object(raw, "evidence"),
        owner_uid=_optional(raw, "owner_uid", _int),
        name=name if isinstance(name := raw["name"], str) else None,  # of another row, whose fault hides no event
    )


def to_hold(raw: Raw) -> HoldRow:
    """Decode a row of `operator_hold`."""
    return HoldRow(
        id=_int(raw, "id"),
        agent_id=_optional(raw, "agent_id", _text),
        reason=_text(raw, "reason"),
        by_uid=_optional(raw, "by_uid", _int),
        created_at=_time(raw, "created_at"),
        until_at=_optional(raw, "until_at", _time),
        ended_at=_optional(raw, "ended_at", _time),
    )


def _entry(stored: Json) -> Listed:
    """Where a foreign registry tells of the agent."""
    try:
        also = tuple(Identity(**one) for one in stored["also"])  # type: ignore[attr-defined]
        made = Listed(**{**stored, "also": also})  # type: ignore[arg-type]
    except (KeyError, TypeError) as error:
        raise BadRow(f"entries: {error}") from None
    for word in (made.kind, made.path, made.key, made.token):
        if not isinstance(word, str):
            raise BadRow(f"entries: {word!r} is not text")
    return replace(made, temp=tuple(made.temp), stop=None if made.stop is None else tuple(made.stop))


def _identity(raw: Raw, host: str, boot_id: str) -> Identity | None:
    """The process that a row names; a pid without start ticks identifies nothing and is refused."""
    if raw["pid"] is None:
        return None
    return Identity(
        host=host,
        boot_id=boot_id,
        pid=_int(raw, "pid", 2, PID_MAX),
        start_ticks=_int(raw, "start_ticks", 0),
        pidfd_inode=_optional(raw, "pidfd_inode", _int),
    )


def from_members(members: Iterable[Identity]) -> str:
    """Processes of an agent's tree for its row, which has their host and boot."""
    return dump([[one.pid, one.start_ticks, one.pidfd_inode] for one in members])


def _identities(raw: Raw, host: str, boot_id: str) -> tuple[Identity, ...]:
    """The same read back. Host and boot are the row's, so another boot's mean nobody."""
    found = []
    for stored in _list(raw, "members", list):
        keys = ("pid", "start_ticks", "pidfd_inode")
        one = _identity(dict(zip(keys, stored, strict=True)), host, boot_id) if len(stored) == len(keys) else None
        if one is None:
            raise BadRow(f"members: {stored!r} is no process")
        found.append(one)
    return tuple(found)


def _optional(raw: Raw, key: str, decode: Callable[[Raw, str], T]) -> T | None:
    return None if raw[key] is None else decode(raw, key)


def _text(raw: Raw, key: str) -> str:
    value = raw[key]
    if not isinstance(value, str):
        raise BadRow(f"{key}: {value!r} is not text")
    return value


def _int(raw: Raw, key: str, least: int = -(2**63), most: int = 2**63 - 1) -> int:
    value = raw[key]
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadRow(f"{key}: {value!r} is not a whole number")
    if not least <= value <= most:
        raise BadRow(f"{key}: {value} is not between {least} and {most}")
    return value


def _float(raw: Raw, key: str) -> float:
    value = raw[key]
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise BadRow(f"{key}: {value!r} is not a number")
    return float(value)


def _seconds(raw: Raw, key: str) -> float:
    value = _float(raw, key)
    if not 0 <= value <= _LONGEST_SECONDS:
        raise BadRow(f"{key}: {value} is not between 0 and {_LONGEST_SECONDS:.0f} seconds")
    return value


def _duration(raw: Raw, key: str) -> timedelta:
    return timedelta(seconds=_seconds(raw, key))


def _time(raw: Raw, key: str) -> datetime:
    value = raw[key]
    if not isinstance(value, datetime):
        raise BadRow(f"{key}: {value!r} is not a time")
    return value


def _enum(raw: Raw, key: str, kind: type[E]) -> E:
    try:
        return kind(_text(raw, key))
    except ValueError:
        raise BadRow(f"{key}: {raw[key]!r} is none of {', '.join(kind)}") from None


def _object(raw: Raw, key: str) -> Json:
    value = _json(raw, key)
    if not isinstance(value, dict):
        raise BadRow(f"{key}: a JSON object is expected")
    return value


def _list(raw: Raw, key: str, kind: type[T]) -> tuple[T, ...]:
    value = _json(raw, key)
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
        raise BadRow(f"{key}: a JSON list of {kind.__name__} is expected")
    return tuple(value)


def _json(raw: Raw, key: str) -> object:
    try:
        value: object = json.loads(_text(raw, key))
    except (ValueError, RecursionError) as error:
        raise BadRow(f"{key}: no JSON ({error})") from None
    return value
