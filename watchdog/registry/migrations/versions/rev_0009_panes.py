"""The pane of a terminal that an agent sits in, as its owner's helper has found it."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Null: it sits in none, or was never looked for."""
    op.add_column("agent_lifecycle", sa.Column("pane", sa.Text()))


def downgrade() -> None:
    """Panes are found anew."""
    op.drop_column("agent_lifecycle", "pane")
