"""The tables. The first two have the column names of the kill-stalled-agent command; keep them.

Rules:
1. Every change here has a migration beside it, and `REVISION` names the newest (tests/registry/test_migrations.py).
2. Times are UTC and for display; the one exception is an operator's `until_at`. Durations carry `_seconds`.
3. A partial index is declared for SQLite only: PostgreSQL's keyword here would import its dialect into every daemon
   (2.4 MB, 60 ms). The migration has both.
4. JSON is stored as TEXT: a value that was broken by hand then makes only its own row unreadable, not the whole result.

Tests: tests/registry/test_migrations.py, tests/registry/test_faults.py.
"""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    text,
)
from sqlalchemy.types import TypeDecorator, TypeEngine

from watchdog.core.agent import LIVE, Status

REVISION = "0013"
PID_MAX = 4_194_304  # 2^22, the kernel's own limit on 64 bit (proc(5), pid_max)


class UtcTime(TypeDecorator[datetime]):
    """Aware UTC in Python; `timestamptz` on PostgreSQL, ISO text on SQLite, which has no type for times.

    Text that is not a time is returned unchanged; decoding then rejects that row alone.
    """

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """TEXT on SQLite: the driver's own DATETIME raises in the middle of a result set on a value it cannot read."""
        if dialect.name == "sqlite":
            return dialect.type_descriptor(Text())
        return dialect.type_descriptor(DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> object:
        """Refuse a naive time; it would be stored as if it were UTC."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"a time without a zone cannot be stored: {value!r}")
        value = value.astimezone(UTC)
        # The format of SQLite's own datetime(), so that people can compare in SQL; always 26 characters, so it sorts.
        return value.strftime("%Y-%m-%d %H:%M:%S.%f") if dialect.name == "sqlite" else value

    def process_result_value(self, value: object, dialect: Dialect) -> datetime | None:
        """Add the zone."""
        if isinstance(value, str):
            with suppress(ValueError):
                value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return value  # type: ignore[return-value]  # None, or hostile: `column_decoders.moment` refuses it


class CleanText(TypeDecorator[str]):
    """Text that every database takes: no NUL (PostgreSQL refuses it), no lone surrogate (no UTF-8 for it).

    Both arrive through JSON's \\u escapes; one agent's note must not fail the batch that saves all agents' silence.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Replace what cannot be stored."""
        if value is None:
            return None
        return value.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")


def _one_of(column: str, *values: str) -> str:
    """SQL for a CHECK: the column holds one of the values."""
    return f"{column} IN ('" + "', '".join(values) + "')"


LIVE_SQL = _one_of("status", *sorted(LIVE))
OPEN_STATUSES = ("open", "claimed", "unkillable")
OPEN_SQL = _one_of("status", *OPEN_STATUSES)
REQUEST_STATUSES = ("open", "claimed", "done", "withdrawn", "unkillable")
TASK_ENDED = frozenset({"failed", "cancelled", "completed"})
RUN_STATUSES = ("running", "done", "nothing", "kept", "failed", "timeout")

metadata = MetaData()

agent_lifecycle = Table(
    "agent_lifecycle",
    metadata,
    Column("agent_id", CleanText, primary_key=True),
    Column("name", CleanText, nullable=False),
    Column("owner_uid", BigInteger, nullable=False),
    Column(
        "dropped", Boolean, nullable=False, server_default=text("false")
    ),  # its process dropped from root to the owner
    Column("host", CleanText, nullable=False),
    Column("boot_id", CleanText, nullable=False),
    Column("pid", Integer),
    Column("start_ticks", BigInteger),
    Column("pidfd_inode", BigInteger),
    Column("agent_type", CleanText, nullable=False, server_default=""),
    Column("tags", CleanText, nullable=False, server_default="[]"),
    Column("task_id", CleanText),
    Column("parent_id", CleanText),
    Column("status", CleanText, nullable=False),
    Column("state", CleanText),
    Column(
        "state_seconds", Float(53), nullable=False, server_default="0"
    ),  # how long it has been watched in this state
    Column(
        "finished", Boolean, nullable=False, server_default=text("false")
    ),  # the agent reported that its work is done
    Column("rests_on", CleanText, nullable=False, server_default="[]"),  # its subagents at work; "": its main thread's
    Column("verdict", CleanText),
    Column("source", CleanText, nullable=False, server_default="register"),
    Column("command", CleanText),
    Column("stall_after_seconds", Float(53)),
    Column("interval_seconds", Float(53)),
    Column("ttl_seconds", Float(53)),
    Column("worktree_path", CleanText),
    Column("temp_dir", CleanText),
    Column("sites", CleanText, nullable=False, server_default="{}"),  # identities of these two while it lived
    Column("beat_file", CleanText),
    Column("log_path", CleanText),
    Column("transcript_path", CleanText),
    Column("cgroup_path", CleanText),
    Column("home_cgroup", CleanText),  # where its main process was last seen
    Column("members", CleanText, nullable=False, server_default="[]"),  # of its tree: [pid, start ticks, pidfd inode]
    Column("pane", CleanText),
    Column("notify_socket", CleanText),
    Column("entries", CleanText, nullable=False, server_default="[]"),  # its places in foreign registries
    Column("promised", Boolean, nullable=False, server_default=text("false")),
    Column("beats", BigInteger, nullable=False, server_default="0"),
    Column("silence_seconds", Float(53), nullable=False, server_default="0"),
    Column("last_heartbeat", UtcTime),
    Column("last_progress", Float(53)),
    Column("progress_silence_seconds", Float(53), nullable=False, server_default="0"),
    Column("lease_left_seconds", Float(53)),
    Column("tool", CleanText),
    Column("tool_left_seconds", Float(53)),
    Column("note", CleanText),
    # What sent the last beat; shows after a restart whether that process still writes to our old socket.
    Column("speaker_pid", Integer),
    Column("hears", Boolean, nullable=False, server_default=text("false")),  # it reads our answers to its beats
    Column("rung", CleanText),  # the last step taken on its ladder
    Column("watched_seconds", Float(53), nullable=False, server_default="0"),
    Column("created_at", UtcTime, nullable=False),
    Column("started_at", UtcTime),
    Column("completed_at", UtcTime),
    Column("exit_code", Integer),
    Column("exit_signal", Integer),
    Column("error_message", CleanText),
    Column("retry_count", Integer, nullable=False, server_default="0"),
    Column("version", BigInteger, nullable=False, server_default="0"),
    CheckConstraint(_one_of("status", *Status), name="agent_lifecycle_status"),
    CheckConstraint(f"pid IS NULL OR pid BETWEEN 2 AND {PID_MAX}", name="agent_lifecycle_pid"),
    Index("agent_lifecycle_live", "host", "status", sqlite_where=text(LIVE_SQL)),
    Index("agent_lifecycle_name", "name"),
    Index("agent_lifecycle_task", "task_id"),
)

orchestrator_task = Table(
    "orchestrator_task",
    metadata,
    Column("task_id", CleanText, primary_key=True),
    Column("status", CleanText, nullable=False),
    Column("assigned_agent", CleanText),
    Column("error_message", CleanText),
    Column("created_at", UtcTime, nullable=False),
    Column("started_at", UtcTime),
    Column("completed_at", UtcTime),
    Column("updated_at", UtcTime),
    Column("retry_count", Integer, nullable=False, server_default="0"),
    Column("priority", Integer),
    Column("spec_id", CleanText),
)

kill_request = Table(
    "kill_request",
    metadata,
    Column("request_id", CleanText, primary_key=True),
    Column("agent_id", CleanText, ForeignKey("agent_lifecycle.agent_id"), nullable=False),
    Column("reason", CleanText, nullable=False),
    Column("by_uid", BigInteger),
    Column("by_text", CleanText, nullable=False),  # `by` itself is a reserved word in SQL
    Column("options", CleanText, nullable=False, server_default="{}"),
    Column("pid", Integer),
    Column("start_ticks", BigInteger),
    Column("boot_id", CleanText),
    Column("status", CleanText, nullable=False),
    Column("step", CleanText),
    Column("members", CleanText, nullable=False, server_default="[]"),
    Column("evidence", CleanText, nullable=False, server_default="{}"),
    Column("outcome", CleanText, nullable=False, server_default="{}"),
    Column("claimed_by", CleanText),
    Column("created_at", UtcTime, nullable=False),
    Column("claimed_at", UtcTime),
    Column("finished_at", UtcTime),
    CheckConstraint(_one_of("status", *REQUEST_STATUSES), name="kill_request_status"),
    Index("kill_request_one_open", "agent_id", unique=True, sqlite_where=text(OPEN_SQL)),
    Index("kill_request_agent", "agent_id"),
)

cleanup_run = Table(
    "cleanup_run",
    metadata,
    Column("run_id", CleanText, primary_key=True),
    Column("agent_id", CleanText, nullable=False),
    Column("request_id", CleanText),
    Column("hook", CleanText, nullable=False),
    Column("status", CleanText, nullable=False),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("message", CleanText, nullable=False, server_default=""),
    Column("details", CleanText, nullable=False, server_default="{}"),
    Column("started_at", UtcTime, nullable=False),
    Column("finished_at", UtcTime),
    CheckConstraint(_one_of("status", *RUN_STATUSES), name="cleanup_run_status"),
    Index("cleanup_run_agent", "agent_id"),
)

lifecycle_event = Table(
    "lifecycle_event",
    metadata,
    # AUTOINCREMENT: an id that retention deleted must never be used again; clients continue from the last they saw.
    Column("id", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=True),
    Column("at", UtcTime, nullable=False),
    Column("agent_id", CleanText),
    Column("event", CleanText, nullable=False),
    Column("from_status", CleanText),
    Column("to_status", CleanText),
    Column("who", CleanText, nullable=False),
    Column("why", CleanText, nullable=False),
    Column("evidence", CleanText, nullable=False, server_default="{}"),
    Column("owner_uid", BigInteger),
    Index("lifecycle_event_agent", "agent_id", "id"),
    Index("lifecycle_event_at", "at"),
    sqlite_autoincrement=True,
)

operator_hold = Table(
    "operator_hold",
    metadata,
    Column("id", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=True),
    Column("agent_id", CleanText),  # null: all agents
    Column("reason", CleanText, nullable=False),
    Column("by_uid", BigInteger),
    Column("until_at", UtcTime),  # null: until `unhold`
    Column("created_at", UtcTime, nullable=False),
    Column("ended_at", UtcTime),
    Column("host", CleanText),  # whose daemon obeys it; null: every host's
    sqlite_autoincrement=True,
)
