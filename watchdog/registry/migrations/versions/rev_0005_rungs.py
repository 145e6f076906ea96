"""The step that an agent has reached on its ladder before a kill, and whether it reads the answers to its beats."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """No agent has reached a step; one that reads answers shows it with its next beat."""
    op.add_column("agent_lifecycle", sa.Column("hears", sa.Boolean(), nullable=False, server_default=sa.text("false")))
    op.add_column("agent_lifecycle", sa.Column("rung", sa.Text()))


def downgrade() -> None:
    """Every ladder starts from the beginning."""
    op.drop_column("agent_lifecycle", "rung")
    op.drop_column("agent_lifecycle", "hears")
