"""A hold belongs to one host: a daemon on a shared registry must not apply another host's."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Null for existing holds: they stay every host's."""
    op.add_column("operator_hold", sa.Column("host", sa.Text()))


def downgrade() -> None:
    """Every hold applies to every host again."""
    op.drop_column("operator_hold", "host")
