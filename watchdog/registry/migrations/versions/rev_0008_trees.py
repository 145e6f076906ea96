"""The processes that the last scan found in an agent's tree, and the cgroup of its main process."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The next scan fills in both."""
    op.add_column("agent_lifecycle", sa.Column("home_cgroup", sa.Text()))
    op.add_column("agent_lifecycle", sa.Column("members", sa.Text(), nullable=False, server_default="[]"))


def downgrade() -> None:
    """An older daemon finds them again with its first scan."""
    op.drop_column("agent_lifecycle", "members")
    op.drop_column("agent_lifecycle", "home_cgroup")
