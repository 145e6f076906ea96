"""Where other programs' registries tell of an agent: what closes its entry there when it has ended."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Of those that are there none is known to stand elsewhere."""
    op.add_column("agent_lifecycle", sa.Column("entries", sa.Text(), nullable=False, server_default="[]"))


def downgrade() -> None:
    """Their entries stay as they are."""
    op.drop_column("agent_lifecycle", "entries")
