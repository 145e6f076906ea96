"""A hold is one host's: a daemon that shares the registry must not take up another host's."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Null, for holds of before: every host's, as they were."""
    op.add_column("operator_hold", sa.Column("host", sa.Text()))


def downgrade() -> None:
    """Every hold is every host's again."""
    op.drop_column("operator_hold", "host")
