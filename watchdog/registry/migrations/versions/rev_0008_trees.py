"""Whom the last look saw in an agent's tree, and the cgroup that its main process sat in."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The next look sees both."""
    op.add_column("agent_lifecycle", sa.Column("home_cgroup", sa.Text()))
    op.add_column("agent_lifecycle", sa.Column("members", sa.Text(), nullable=False, server_default="[]"))


def downgrade() -> None:
    """They are known again as soon as an older daemon has looked."""
    op.drop_column("agent_lifecycle", "members")
    op.drop_column("agent_lifecycle", "home_cgroup")
