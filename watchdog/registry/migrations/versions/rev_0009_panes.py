"""The terminal pane that an agent runs in, as its owner's helper found it."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Null: it runs in none, or the helper has not looked yet."""
    op.add_column("agent_lifecycle", sa.Column("pane", sa.Text()))


def downgrade() -> None:
    """Panes are looked for again."""
    op.drop_column("agent_lifecycle", "pane")
