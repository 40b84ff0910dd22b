"""The tables. Every name carries the prefix `mktune_`, so that a database may be shared with other programs.

A change here needs a migration (db/README.md), whose number `mktune.location.SCHEMA` then is.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Float, ForeignKey, Index, Integer, MetaData, String, Text, UniqueConstraint, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """Names every constraint, so that a migration can address it on both databases."""

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
    name: Mapped[str] = mapped_column(Text)
    arch: Mapped[str] = mapped_column(Text)
    sms: Mapped[int]
    smem_per_block: Mapped[int]
    l2_bytes: Mapped[int] = mapped_column(BigInteger)
    bandwidth: Mapped[float] = mapped_column(Float(53))
    uuid: Mapped[str] = mapped_column(Text)
    driver: Mapped[str] = mapped_column(Text)
    cuda: Mapped[str] = mapped_column(Text)


class StudyRow(Base):
    """One search: a problem (workload to backend), how it is searched, and what it counted."""

    __tablename__ = "mktune_studies"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(Text, unique=True)
    workload: Mapped[str] = mapped_column(Text)
    contract: Mapped[int]
    ops: Mapped[str] = mapped_column(Text)
    requests: Mapped[int]
    tokens_per_request: Mapped[int]
    kv: Mapped[int]
    device_id: Mapped[int] = mapped_column(ForeignKey("mktune_devices.id"))
    backend: Mapped[str] = mapped_column(Text)
    build: Mapped[str] = mapped_column(Text)
    sampler: Mapped[str] = mapped_column(Text)
    seed: Mapped[int] = mapped_column(BigInteger)
    created: Mapped[str] = mapped_column(Text)
    invalid: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    duplicate: Mapped[int] = mapped_column(Integer, server_default=text("0"))


class TrialRow(Base):
    """One candidate. While it runs `status` is NULL and `owner` says which process runs it.

    `seconds` is JSON: time by phase around the bench, and inside it.
    """

    __tablename__ = "mktune_trials"
    __table_args__ = (UniqueConstraint("study_id", "number"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("mktune_studies.id"))
    number: Mapped[int]
    plan_id: Mapped[str] = mapped_column(String(64), index=True)
    plan: Mapped[str] = mapped_column(Text)
    source: Mapped[str] = mapped_column(Text)
    owner: Mapped[str] = mapped_column(Text)
    started: Mapped[str] = mapped_column(Text)
    ended: Mapped[str | None] = mapped_column(Text)
    status: Mapped[str | None] = mapped_column(Text)
    reason: Mapped[str] = mapped_column(Text, server_default="")
    seconds: Mapped[str] = mapped_column(Text, server_default="[{},{}]")


class MeasurementRow(Base):
    """The span of one trial; NULL where it is not a finite number. `samples_us` to `device_state` are JSON."""

    __tablename__ = "mktune_measurements"

    trial_id: Mapped[int] = mapped_column(ForeignKey("mktune_trials.id"), primary_key=True, autoincrement=False)
    span_us: Mapped[float | None] = mapped_column(Float(53))
    low_us: Mapped[float | None] = mapped_column(Float(53))
    high_us: Mapped[float | None] = mapped_column(Float(53))
    samples_us: Mapped[str] = mapped_column(Text)
    policy: Mapped[str] = mapped_column(Text)
    device_state: Mapped[str] = mapped_column(Text)
    simulated: Mapped[bool]


class PlanRow(Base):
    """A winner. The row of a key that has no `replaced` time is the one that is served; the others are history."""

    __tablename__ = "mktune_plans"

    id: Mapped[int] = mapped_column(primary_key=True)
    plan_id: Mapped[str] = mapped_column(String(64), index=True)
    workload: Mapped[str] = mapped_column(Text)
    contract: Mapped[int]
    scale_format: Mapped[str] = mapped_column(Text)
    ops: Mapped[str] = mapped_column(Text)
    requests: Mapped[int]
    tokens_per_request: Mapped[int]
    kv: Mapped[int]
    gpu: Mapped[str] = mapped_column(Text)
    sms: Mapped[int]
    compute_capability: Mapped[str] = mapped_column(Text)
    simulated: Mapped[bool]
    span_us: Mapped[float] = mapped_column(Float(53))
    study: Mapped[str] = mapped_column(Text)
    created: Mapped[str] = mapped_column(Text)
    replaced: Mapped[str | None] = mapped_column(Text)
    document: Mapped[str] = mapped_column(Text)


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
