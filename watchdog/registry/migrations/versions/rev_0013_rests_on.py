"""What an agent waits for: its subagents that still work, and whether its main thread left work in the background."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Unknown for live agents: one that waits so is `blocked` to the next daemon, as before."""
    op.add_column("agent_lifecycle", sa.Column("rests_on", sa.Text(), nullable=False, server_default="[]"))


def downgrade() -> None:
    """As before."""
    op.drop_column("agent_lifecycle", "rests_on")
