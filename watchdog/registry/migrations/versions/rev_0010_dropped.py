"""Whether an agent's process was root's when it was registered, and has since dropped to the owner."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Unknown for existing agents: root's processes in their trees are killed only when root requests it."""
    op.add_column(
        "agent_lifecycle", sa.Column("dropped", sa.Boolean(), nullable=False, server_default=sa.text("false"))
    )


def downgrade() -> None:
    """The owner stays the same."""
    op.drop_column("agent_lifecycle", "dropped")
