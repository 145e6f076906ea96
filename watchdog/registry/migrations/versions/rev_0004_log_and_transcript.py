"""The files that grow while an agent works: signs of activity, looked at by its owner's helper."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Null: nobody told of one."""
    op.add_column("agent_lifecycle", sa.Column("log_path", sa.Text()))
    op.add_column("agent_lifecycle", sa.Column("transcript_path", sa.Text()))


def downgrade() -> None:
    """Their growth is no sign any more."""
    op.drop_column("agent_lifecycle", "transcript_path")
    op.drop_column("agent_lifecycle", "log_path")
