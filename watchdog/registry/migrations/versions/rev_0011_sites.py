"""What lay at an agent's worktree and temp dir while it lived."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Of the living it is seen at the next look; of the others only that is theirs which is older than their row."""
    op.add_column("agent_lifecycle", sa.Column("sites", sa.Text(), nullable=False, server_default="{}"))


def downgrade() -> None:
    """A place is a path again."""
    op.drop_column("agent_lifecycle", "sites")
