"""a running trial is leased, every trial names its GPU, and a study its number of trials"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("mktune_studies", sa.Column("max_trials", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.add_column("mktune_trials", sa.Column("lease", sa.Float(53), nullable=True))
    op.add_column("mktune_trials", sa.Column("attempt", sa.Integer(), server_default=sa.text("1"), nullable=False))
    op.add_column("mktune_trials", sa.Column("gpu", sa.Text(), server_default="", nullable=False))


def downgrade() -> None:
    with op.batch_alter_table("mktune_trials") as batch:
        for name in ("gpu", "attempt", "lease"):
            batch.drop_column(name)
    with op.batch_alter_table("mktune_studies") as batch:
        batch.drop_column("max_trials")
