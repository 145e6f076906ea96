"""The identity of an agent's worktree and temp dir while it lived."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Live agents get it with the next sweep; for the others only a place that is older than their row is theirs."""
    op.add_column("agent_lifecycle", sa.Column("sites", sa.Text(), nullable=False, server_default="{}"))


def downgrade() -> None:
    """A place is only a path again."""
    op.drop_column("agent_lifecycle", "sites")
