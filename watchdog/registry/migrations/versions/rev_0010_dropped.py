"""Whether the process of an agent was root's when it was registered, and has dropped to the owner since."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Of the agents that live now nobody knows: what they left of root's is ended when root orders it."""
    op.add_column(
        "agent_lifecycle", sa.Column("dropped", sa.Boolean(), nullable=False, server_default=sa.text("false"))
    )


def downgrade() -> None:
    """The owner stays."""
    op.drop_column("agent_lifecycle", "dropped")
