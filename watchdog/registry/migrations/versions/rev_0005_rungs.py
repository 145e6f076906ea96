"""How far an agent has come on its ladder before a kill, and whether it hears what its beats are answered."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nobody has come to a step, and who hears tells so with his next beat."""
    op.add_column("agent_lifecycle", sa.Column("hears", sa.Boolean(), nullable=False, server_default=sa.text("false")))
    op.add_column("agent_lifecycle", sa.Column("rung", sa.Text()))


def downgrade() -> None:
    """Ladders begin anew."""
    op.drop_column("agent_lifecycle", "rung")
    op.drop_column("agent_lifecycle", "hears")
