"""The tables. Every name carries the prefix `mktune_`, so that a database may be shared with other programs.

A change here needs a migration (db/README.md), whose number `mktune.location.SCHEMA` then is.
"""

from __future__ import annotations

from typing import ClassVar

from sqlalchemy import ForeignKey, Index, MetaData, String, UniqueConstraint, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from mktune.store.columns import Large, Packed, Real, Whole, Words


class Base(DeclarativeBase):
    """Names every constraint, so that a migration can address it on both databases."""

    type_annotation_map: ClassVar = {str: Words, int: Whole, float: Real}

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class DeviceRow(Base):
    """A GPU that was measured or modelled. `key`: sha256 over all other fields."""

    __tablename__ = "mktune_devices"

    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(64), unique=True)
    name: Mapped[str]
    arch: Mapped[str]
    sms: Mapped[int]
    smem_per_block: Mapped[int]
    l2_bytes: Mapped[int] = mapped_column(Large)
    bandwidth: Mapped[float]
    uuid: Mapped[str]
    driver: Mapped[str]
    cuda: Mapped[str]


class StudyRow(Base):
    """One search: a problem (workload to backend), how it is searched, and what it counted.

    `max_trials` is how many trials whoever searches it may make in all; 0: no number is set.
    """

    __tablename__ = "mktune_studies"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    workload: Mapped[str]
    contract: Mapped[int]
    ops: Mapped[str]
    requests: Mapped[int]
    tokens_per_request: Mapped[int]
    kv: Mapped[int]
    device_id: Mapped[int] = mapped_column(ForeignKey("mktune_devices.id"))
    backend: Mapped[str]
    build: Mapped[str]
    sampler: Mapped[str]
    seed: Mapped[int] = mapped_column(Large)
    created: Mapped[str]
    invalid: Mapped[int] = mapped_column(server_default=text("0"))
    duplicate: Mapped[int] = mapped_column(server_default=text("0"))
    max_trials: Mapped[int] = mapped_column(server_default=text("0"))
    scale_format: Mapped[str] = mapped_column(server_default="fp32")


class TrialRow(Base):
    """One candidate. While it runs `status` is NULL and `owner` says which process runs it.

    `seconds` is JSON: time by phase around the bench, and inside it. `reserved` is what the candidate runs
    (`lowered_id`): no other trial of the study may be of the same; NULL where that is not known, and once it is lost.
    `lease`: until when, in seconds since 1970 by the database's clock, its process holds a running trial. `attempt` is
    2 where it takes up one whose process had ended. `gpu`: the UUID of what measured it, or which model did.
    """

    __tablename__ = "mktune_trials"
    __table_args__ = (
        UniqueConstraint("study_id", "number"),
        Index("uq_mktune_trials_study_id_reserved", "study_id", "reserved", unique=True),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("mktune_studies.id"))
    number: Mapped[int]
    plan_id: Mapped[str] = mapped_column(String(64), index=True)
    plan: Mapped[str]
    source: Mapped[str]
    owner: Mapped[str]
    started: Mapped[str]
    ended: Mapped[str | None]
    status: Mapped[str | None]
    reason: Mapped[str] = mapped_column(server_default="")
    seconds: Mapped[str] = mapped_column(server_default="[{},{}]")
    reserved: Mapped[str | None] = mapped_column(String(64))
    lease: Mapped[float | None]
    attempt: Mapped[int] = mapped_column(server_default=text("1"))
    gpu: Mapped[str] = mapped_column(server_default="")


class MeasurementRow(Base):
    """The span of one trial; NULL where it is not a finite number. `samples_us` to `device_state` are JSON."""

    __tablename__ = "mktune_measurements"

    trial_id: Mapped[int] = mapped_column(ForeignKey("mktune_trials.id"), primary_key=True, autoincrement=False)
    span_us: Mapped[float | None]
    low_us: Mapped[float | None]
    high_us: Mapped[float | None]
    samples_us: Mapped[str]
    policy: Mapped[str]
    device_state: Mapped[str]
    simulated: Mapped[bool]


class PlanRow(Base):
    """A winner. The row of a key that has no `replaced` time is the one that is served; the others are history.

    `m_low` to `kv_high`: the shapes that it states to serve. `document`: all of it as JSON.
    """

    __tablename__ = "mktune_plans"

    id: Mapped[int] = mapped_column(primary_key=True)
    plan_id: Mapped[str] = mapped_column(String(64), index=True)
    workload: Mapped[str]
    contract: Mapped[int]
    scale_format: Mapped[str]
    ops: Mapped[str]
    requests: Mapped[int]
    tokens_per_request: Mapped[int]
    kv: Mapped[int]
    gpu: Mapped[str]
    sms: Mapped[int]
    compute_capability: Mapped[str]
    simulated: Mapped[bool]
    span_us: Mapped[float]
    study: Mapped[str]
    created: Mapped[str]
    replaced: Mapped[str | None]
    m_low: Mapped[int]
    m_high: Mapped[int]
    kv_low: Mapped[int]
    kv_high: Mapped[int]
    document: Mapped[str] = mapped_column(Packed)


PLAN_KEY = (
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
)

Index(
    "uq_mktune_plans_key",
    *(getattr(PlanRow, name) for name in PLAN_KEY),
    unique=True,
    sqlite_where=text("replaced IS NULL"),
    postgresql_where=text("replaced IS NULL"),
)
