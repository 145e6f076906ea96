"""The files that grow while an agent works: signs of activity, which its owner's helper checks."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Null: no such file was reported."""
    op.add_column("agent_lifecycle", sa.Column("log_path", sa.Text()))
    op.add_column("agent_lifecycle", sa.Column("transcript_path", sa.Text()))


def downgrade() -> None:
    """Their growth no longer counts as activity."""
    op.drop_column("agent_lifecycle", "transcript_path")
    op.drop_column("agent_lifecycle", "log_path")
