"""a trial reserves its plan"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("mktune_trials", sa.Column("reserved", sa.String(length=64), nullable=True))
    op.create_index("uq_mktune_trials_study_id_reserved", "mktune_trials", ["study_id", "reserved"], unique=True)


def downgrade() -> None:
    op.drop_index("uq_mktune_trials_study_id_reserved", table_name="mktune_trials")
    with op.batch_alter_table("mktune_trials") as batch:
        batch.drop_column("reserved")
