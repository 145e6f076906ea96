"""Since when an agent is in its state, and whether it has said that its work is done."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Of the living their states begin anew, once; nobody has finished: that is not told from a process' end."""
    op.add_column("agent_lifecycle", sa.Column("state_seconds", sa.Float(53), nullable=False, server_default="0"))
    op.add_column(
        "agent_lifecycle", sa.Column("finished", sa.Boolean(), nullable=False, server_default=sa.text("false"))
    )


def downgrade() -> None:
    """As before: a state begins anew with each daemon."""
    op.drop_column("agent_lifecycle", "finished")
    op.drop_column("agent_lifecycle", "state_seconds")
