"""The leaderboard: the best span of each plan, ranked within its problem."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Executable, Row, select

from mktune.plan import Plan
from mktune.shape import Shape
from mktune.store.models import DeviceRow, MeasurementRow, StudyRow, TrialRow
from mktune.store.stored_plan import stored_plan
from mktune.store.winners import Filter, served_ids
from mktune.trial import BUILTIN, Status

BASELINE = f"{BUILTIN}serial"


@dataclass(frozen=True)
class LeaderboardRow:
    """One plan in its best trial.

    rank             from 1, among the plans of the same workload, contract, ops, shape, GPU and `simulated`
    span_us          median span in µs per layer; low_us, high_us its 95 % interval
    speedup          span of the built-in `serial` / this span; of the same study where that ran it; None: never ran
    source           who proposed it; `builtin` is the built-in plan's name, else empty
    simulated        a model's number, not a GPU's
    winner           it is what a look-up of its key gets
    """

    rank: int
    plan: Plan
    span_us: float
    low_us: float
    high_us: float
    speedup: float | None
    source: str
    simulated: bool
    winner: bool
    study: str
    number: int
    gpu: str
    workload: str
    contract: int
    ops: tuple[str, ...]
    shape: Shape

    @property
    def builtin(self) -> str:
        return self.source.removeprefix(BUILTIN) if self.source.startswith(BUILTIN) else ""


def rank(connection: Connection, wanted: Filter, study: str | None, limit: int | None) -> list[LeaderboardRow]:
    """The rows that match: measured before simulated, problem by problem, fastest first, `limit` of each problem."""
    spans = [row for row in connection.execute(_spans(study)) if _matches(wanted, row)]
    winners = served_ids(connection)
    rows: list[LeaderboardRow] = []
    for _, group in groupby(sorted(spans, key=_problem), key=_problem):
        rows += _rank_problem(connection, list(group), winners, limit)
    return rows


def _spans(study: str | None) -> Executable:
    columns = (TrialRow.id, TrialRow.number, TrialRow.plan_id, TrialRow.source)
    spans = (MeasurementRow.span_us, MeasurementRow.low_us, MeasurementRow.high_us, MeasurementRow.simulated)
    problem = (StudyRow.workload, StudyRow.contract, StudyRow.ops, StudyRow.requests, StudyRow.tokens_per_request)
    query = (
        select(*columns, *spans, *problem, StudyRow.kv, StudyRow.name.label("study"), DeviceRow.name.label("gpu"))
        .join(MeasurementRow, MeasurementRow.trial_id == TrialRow.id)
        .join(StudyRow, StudyRow.id == TrialRow.study_id)
        .join(DeviceRow, DeviceRow.id == StudyRow.device_id)
        .where(TrialRow.status == Status.OK.value)
        .order_by(TrialRow.id)
    )
    return query if study is None else query.where(StudyRow.name == study)


def _matches(wanted: Filter, row: Row[Any]) -> bool:
    shape = (row.requests, row.tokens_per_request, row.kv)
    return wanted.matches(row.workload, row.ops, shape, row.gpu, row.simulated)


def _problem(row: Row[Any]) -> tuple[Any, ...]:
    shape = (row.requests * row.tokens_per_request, row.kv, row.tokens_per_request)
    return (row.simulated, row.workload, row.contract, row.ops, row.gpu, *shape)


def _rank_problem(
    connection: Connection, spans: list[Row[Any]], winners: set[tuple[str, str, bool]], limit: int | None
) -> list[LeaderboardRow]:
    spans.sort(key=lambda row: (row.span_us, row.plan_id))
    best: dict[str, Row[Any]] = {}
    builtin: dict[str, str] = {}  # a built-in plan is one whoever proposed it in its best trial
    for row in spans:
        best.setdefault(row.plan_id, row)
        if row.source.startswith(BUILTIN):
            builtin.setdefault(row.plan_id, row.source)
    serial = _serial_spans(spans)
    anywhere = min(serial.values(), default=None)
    return [
        LeaderboardRow(
            rank=place,
            plan=_plan(connection, row.id),
            span_us=row.span_us,
            low_us=row.low_us,
            high_us=row.high_us,
            speedup=None if anywhere is None else serial.get(row.study, anywhere) / row.span_us,
            source=builtin.get(row.plan_id, row.source),
            simulated=row.simulated,
            winner=(row.plan_id, row.gpu, row.simulated) in winners,
            study=row.study,
            number=row.number,
            gpu=row.gpu,
            workload=row.workload,
            contract=row.contract,
            ops=tuple(row.ops.split(",")),
            shape=Shape(row.requests, row.tokens_per_request, row.kv),
        )
        for place, row in enumerate(list(best.values())[:limit], start=1)
    ]


def _serial_spans(spans: Iterable[Row[Any]]) -> dict[str, float]:
    """Study → its best span of the built-in serial plan; `spans` come fastest first."""
    found: dict[str, float] = {}
    for row in spans:
        if row.source == BASELINE:
            found.setdefault(row.study, row.span_us)
    return found


def _plan(connection: Connection, trial_id: int) -> Plan:
    return stored_plan(connection.execute(select(TrialRow.plan).where(TrialRow.id == trial_id)).scalar_one())
