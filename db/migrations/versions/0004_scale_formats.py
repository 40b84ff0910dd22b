"""a study has a scale format: that of its first trial's plan, or else fp32"""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("mktune_studies", sa.Column("scale_format", sa.Text(), server_default="fp32", nullable=False))
    studies = sa.table("mktune_studies", sa.column("id"), sa.column("scale_format"))
    for study, plan in _first_plans():
        if (found := _scale_format(plan)) not in (None, "fp32"):
            op.execute(studies.update().where(studies.c.id == study).values(scale_format=found))


def downgrade() -> None:
    with op.batch_alter_table("mktune_studies") as batch:
        batch.drop_column("scale_format")


def _first_plans() -> list[Any]:
    trials = sa.table("mktune_trials", sa.column("id"), sa.column("study_id"), sa.column("plan"))
    first = sa.select(sa.func.min(trials.c.id)).group_by(trials.c.study_id)
    query = sa.select(trials.c.study_id, trials.c.plan).where(trials.c.id.in_(first))
    return list(op.get_bind().execute(query).all())


def _scale_format(plan: Any) -> str | None:
    try:
        found = json.loads(plan)["scale_format"]
    except (ValueError, TypeError, KeyError):  # a damaged row: whoever reads it says so
        return None
    return found if isinstance(found, str) else None
