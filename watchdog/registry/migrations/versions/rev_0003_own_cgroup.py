"""The cgroup that `run` got for its agent: a later daemon finds its tree there, even without the main process."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Null: the agent has no cgroup of its own."""
    op.add_column("agent_lifecycle", sa.Column("cgroup_path", sa.Text()))


def downgrade() -> None:
    """Trees are found by marker, session and descent again."""
    op.drop_column("agent_lifecycle", "cgroup_path")
