"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# Spelt out, not taken from schema.py: a migration states the schema of its time.
_TIME = sa.DateTime(timezone=True).with_variant(sa.Text(), "sqlite")
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_LIVE = sa.text("status IN ('ending', 'queued', 'running', 'starting', 'unkillable')")
_OPEN = sa.text("status IN ('open', 'claimed', 'unkillable')")


def upgrade() -> None:
    """Create them."""
    op.create_table(
        "agent_lifecycle",
        sa.Column("agent_id", sa.Text(), primary_key=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("owner_uid", sa.BigInteger(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer()),
        sa.Column("start_ticks", sa.BigInteger()),
        sa.Column("pidfd_inode", sa.BigInteger()),
        sa.Column("agent_type", sa.Text(), nullable=False, server_default=""),
        sa.Column("tags", sa.Text(), nullable=False, server_default="[]"),
        sa.Column("task_id", sa.Text()),
        sa.Column("parent_id", sa.Text()),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("state", sa.Text()),
        sa.Column("verdict", sa.Text()),
        sa.Column("source", sa.Text(), nullable=False, server_default="register"),
        sa.Column("command", sa.Text()),
        sa.Column("stall_after_seconds", sa.Float(53)),
        sa.Column("interval_seconds", sa.Float(53)),
        sa.Column("ttl_seconds", sa.Float(53)),
        sa.Column("worktree_path", sa.Text()),
        sa.Column("temp_dir", sa.Text()),
        sa.Column("beat_file", sa.Text()),
        sa.Column("notify_socket", sa.Text()),
        sa.Column("promised", sa.Boolean(), nullable=False, server_default=sa.text("false")),
        sa.Column("beats", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("silence_seconds", sa.Float(53), nullable=False, server_default="0"),
        sa.Column("last_heartbeat", _TIME),
        sa.Column("last_progress", sa.Float(53)),
        sa.Column("progress_silence_seconds", sa.Float(53), nullable=False, server_default="0"),
        sa.Column("lease_left_seconds", sa.Float(53)),
        sa.Column("tool", sa.Text()),
        sa.Column("tool_left_seconds", sa.Float(53)),
        sa.Column("note", sa.Text()),
        sa.Column("speaker_pid", sa.Integer),
        sa.Column("watched_seconds", sa.Float(53), nullable=False, server_default="0"),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("started_at", _TIME),
        sa.Column("completed_at", _TIME),
        sa.Column("exit_code", sa.Integer()),
        sa.Column("exit_signal", sa.Integer()),
        sa.Column("error_message", sa.Text()),
        sa.Column("retry_count", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("version", sa.BigInteger(), nullable=False, server_default="0"),
        sa.CheckConstraint("pid IS NULL OR pid BETWEEN 2 AND 4194304", name="agent_lifecycle_pid"),
        sa.CheckConstraint(
            "status IN ('queued', 'starting', 'running', 'ending', 'unkillable',"
            " 'stopped', 'killed', 'completed', 'failed', 'lost')",
            name="agent_lifecycle_status",
        ),
    )
    op.create_index(
        "agent_lifecycle_live",
        "agent_lifecycle",
        ["host", "status"],
        unique=False,
        sqlite_where=_LIVE,
        postgresql_where=_LIVE,
    )
    op.create_index("agent_lifecycle_name", "agent_lifecycle", ["name"], unique=False)
    op.create_index("agent_lifecycle_task", "agent_lifecycle", ["task_id"], unique=False)
    op.create_table(
        "cleanup_run",
        sa.Column("run_id", sa.Text(), primary_key=True),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text()),
        sa.Column("hook", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("message", sa.Text(), nullable=False, server_default=""),
        sa.Column("details", sa.Text(), nullable=False, server_default="{}"),
        sa.Column("started_at", _TIME, nullable=False),
        sa.Column("finished_at", _TIME),
        sa.CheckConstraint(
            "status IN ('running', 'done', 'nothing', 'kept', 'failed', 'timeout')", name="cleanup_run_status"
        ),
    )
    op.create_index("cleanup_run_agent", "cleanup_run", ["agent_id"], unique=False)
    op.create_table(
        "lifecycle_event",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("agent_id", sa.Text()),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("from_status", sa.Text()),
        sa.Column("to_status", sa.Text()),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("evidence", sa.Text(), nullable=False, server_default="{}"),
        sa.Column("owner_uid", sa.BigInteger()),
        sqlite_autoincrement=True,
    )
    op.create_index("lifecycle_event_agent", "lifecycle_event", ["agent_id", "id"], unique=False)
    op.create_index("lifecycle_event_at", "lifecycle_event", ["at"], unique=False)
    op.create_table(
        "operator_hold",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("agent_id", sa.Text()),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("by_uid", sa.BigInteger()),
        sa.Column("until_at", _TIME),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("ended_at", _TIME),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "orchestrator_task",
        sa.Column("task_id", sa.Text(), primary_key=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("assigned_agent", sa.Text()),
        sa.Column("error_message", sa.Text()),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("started_at", _TIME),
        sa.Column("completed_at", _TIME),
        sa.Column("updated_at", _TIME),
        sa.Column("retry_count", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("priority", sa.Integer()),
        sa.Column("spec_id", sa.Text()),
    )
    op.create_table(
        "kill_request",
        sa.Column("request_id", sa.Text(), primary_key=True),
        sa.Column("agent_id", sa.Text(), sa.ForeignKey("agent_lifecycle.agent_id"), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("by_uid", sa.BigInteger()),
        sa.Column("by_text", sa.Text(), nullable=False),
        sa.Column("options", sa.Text(), nullable=False, server_default="{}"),
        sa.Column("pid", sa.Integer()),
        sa.Column("start_ticks", sa.BigInteger()),
        sa.Column("boot_id", sa.Text()),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("step", sa.Text()),
        sa.Column("members", sa.Text(), nullable=False, server_default="[]"),
        sa.Column("evidence", sa.Text(), nullable=False, server_default="{}"),
        sa.Column("outcome", sa.Text(), nullable=False, server_default="{}"),
        sa.Column("claimed_by", sa.Text()),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("claimed_at", _TIME),
        sa.Column("finished_at", _TIME),
        sa.CheckConstraint(
            "status IN ('open', 'claimed', 'done', 'withdrawn', 'unkillable')", name="kill_request_status"
        ),
    )
    op.create_index("kill_request_agent", "kill_request", ["agent_id"], unique=False)
    op.create_index(
        "kill_request_one_open", "kill_request", ["agent_id"], unique=True, sqlite_where=_OPEN, postgresql_where=_OPEN
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_table("kill_request")
    op.drop_table("orchestrator_task")
    op.drop_table("operator_hold")
    op.drop_table("lifecycle_event")
    op.drop_table("cleanup_run")
    op.drop_table("agent_lifecycle")
