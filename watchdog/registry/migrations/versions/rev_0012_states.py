"""How long an agent has been in its state, and whether it reported that its work is done."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """States of live agents start from zero, once. None counts as finished: the end of a process does not show it."""
    op.add_column("agent_lifecycle", sa.Column("state_seconds", sa.Float(53), nullable=False, server_default="0"))
    op.add_column(
        "agent_lifecycle", sa.Column("finished", sa.Boolean(), nullable=False, server_default=sa.text("false"))
    )


def downgrade() -> None:
    """As before: a state starts from zero with each daemon."""
    op.drop_column("agent_lifecycle", "finished")
    op.drop_column("agent_lifecycle", "state_seconds")
