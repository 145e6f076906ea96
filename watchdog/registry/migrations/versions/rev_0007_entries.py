"""An agent's entries in other programs' registries, which are closed when it has ended."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Existing agents have none."""
    op.add_column("agent_lifecycle", sa.Column("entries", sa.Text(), nullable=False, server_default="[]"))


def downgrade() -> None:
    """Entries in those registries stay as they are."""
    op.drop_column("agent_lifecycle", "entries")
