"""first tables"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "mktune_devices",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("arch", sa.Text(), nullable=False),
        sa.Column("sms", sa.Integer(), nullable=False),
        sa.Column("smem_per_block", sa.Integer(), nullable=False),
        sa.Column("l2_bytes", sa.BigInteger(), nullable=False),
        sa.Column("bandwidth", sa.Float(precision=53), nullable=False),
        sa.Column("uuid", sa.Text(), nullable=False),
        sa.Column("driver", sa.Text(), nullable=False),
        sa.Column("cuda", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_mktune_devices")),
        sa.UniqueConstraint("key", name=op.f("uq_mktune_devices_key")),
    )
    op.create_table(
        "mktune_plans",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("plan_id", sa.String(length=64), nullable=False),
        sa.Column("workload", sa.Text(), nullable=False),
        sa.Column("contract", sa.Integer(), nullable=False),
        sa.Column("scale_format", sa.Text(), nullable=False),
        sa.Column("ops", sa.Text(), nullable=False),
        sa.Column("requests", sa.Integer(), nullable=False),
        sa.Column("tokens_per_request", sa.Integer(), nullable=False),
        sa.Column("kv", sa.Integer(), nullable=False),
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.Column("sms", sa.Integer(), nullable=False),
        sa.Column("compute_capability", sa.Text(), nullable=False),
        sa.Column("simulated", sa.Boolean(), nullable=False),
        sa.Column("span_us", sa.Float(precision=53), nullable=False),
        sa.Column("study", sa.Text(), nullable=False),
        sa.Column("created", sa.Text(), nullable=False),
        sa.Column("replaced", sa.Text(), nullable=True),
        sa.Column("document", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_mktune_plans")),
    )
    op.create_index(op.f("ix_mktune_plans_plan_id"), "mktune_plans", ["plan_id"], unique=False)
    op.create_index(
        "uq_mktune_plans_key",
        "mktune_plans",
        [
            "workload",
            "contract",
            "scale_format",
            "ops",
            "requests",
            "tokens_per_request",
            "kv",
            "gpu",
            "sms",
            "compute_capability",
            "simulated",
        ],
        unique=True,
        sqlite_where=sa.text("replaced IS NULL"),
        postgresql_where=sa.text("replaced IS NULL"),
    )
    op.create_table(
        "mktune_studies",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("workload", sa.Text(), nullable=False),
        sa.Column("contract", sa.Integer(), nullable=False),
        sa.Column("ops", sa.Text(), nullable=False),
        sa.Column("requests", sa.Integer(), nullable=False),
        sa.Column("tokens_per_request", sa.Integer(), nullable=False),
        sa.Column("kv", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.Integer(), nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("build", sa.Text(), nullable=False),
        sa.Column("sampler", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("created", sa.Text(), nullable=False),
        sa.Column("invalid", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("duplicate", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["mktune_devices.id"], name=op.f("fk_mktune_studies_device_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_mktune_studies")),
        sa.UniqueConstraint("name", name=op.f("uq_mktune_studies_name")),
    )
    op.create_table(
        "mktune_trials",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("plan_id", sa.String(length=64), nullable=False),
        sa.Column("plan", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("started", sa.Text(), nullable=False),
        sa.Column("ended", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("seconds", sa.Text(), server_default="[{},{}]", nullable=False),
        sa.ForeignKeyConstraint(["study_id"], ["mktune_studies.id"], name=op.f("fk_mktune_trials_study_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_mktune_trials")),
        sa.UniqueConstraint("study_id", "number", name=op.f("uq_mktune_trials_study_id_number")),
    )
    op.create_index(op.f("ix_mktune_trials_plan_id"), "mktune_trials", ["plan_id"], unique=False)
    op.create_table(
        "mktune_measurements",
        sa.Column("trial_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("span_us", sa.Float(precision=53), nullable=True),
        sa.Column("low_us", sa.Float(precision=53), nullable=True),
        sa.Column("high_us", sa.Float(precision=53), nullable=True),
        sa.Column("samples_us", sa.Text(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("device_state", sa.Text(), nullable=False),
        sa.Column("simulated", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["trial_id"], ["mktune_trials.id"], name=op.f("fk_mktune_measurements_trial_id")),
        sa.PrimaryKeyConstraint("trial_id", name=op.f("pk_mktune_measurements")),
    )


def downgrade() -> None:
    op.drop_table("mktune_measurements")
    op.drop_index(op.f("ix_mktune_trials_plan_id"), table_name="mktune_trials")
    op.drop_table("mktune_trials")
    op.drop_table("mktune_studies")
    op.drop_index(
        "uq_mktune_plans_key",
        table_name="mktune_plans",
        sqlite_where=sa.text("replaced IS NULL"),
        postgresql_where=sa.text("replaced IS NULL"),
    )
    op.drop_index(op.f("ix_mktune_plans_plan_id"), table_name="mktune_plans")
    op.drop_table("mktune_plans")
    op.drop_table("mktune_devices")
