"""The leaderboard: the best span of each plan, ranked within its problem.

A winner that ran in no trial here (a built-in structure with a finalist's configs, or an imported plan) has its place
too, by the span of its promotion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Executable, Row, select

from mktune.plan import Plan
from mktune.shape import Shape
from mktune.store.columns import whole_rows
from mktune.store.models import DeviceRow, MeasurementRow, StudyRow, TrialRow
from mktune.store.stored_plan import stored_plan, stored_winner
from mktune.store.texts import storable
from mktune.store.winners import Filter, served_rows
from mktune.trial import BUILTIN, Status, Winner

BASELINE = f"{BUILTIN}serial"
UNTRIED = "promotion"
"""Source of a winner that ran in no trial and is no built-in plan."""


@dataclass(frozen=True)
class LeaderboardRow:
    """One plan in its best trial, or a winner that ran in none.

    rank             from 1, among the plans of the same workload, contract, scale format, ops, shape, GPU and
                     `simulated`
    span_us          median span in µs per layer; low_us, high_us its 95 % interval
    speedup          span of the built-in `serial` / this span; of the same study where that ran it; None: never ran.
                     Without a trial: of the promotion's paired rounds
    source           who proposed it; `builtin` is the built-in plan's name, else empty
    simulated        a model's number, not a GPU's
    winner           it is what a look-up of its key gets; `evidence` is the record of its promotion
    number           of the trial; None: it ran in no trial
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
    number: int | None
    gpu: str
    workload: str
    contract: int
    ops: tuple[str, ...]
    shape: Shape
    evidence: Winner | None = None
    scale_format: str = "fp32"

    @property
    def builtin(self) -> str:
        return self.source.removeprefix(BUILTIN) if self.source.startswith(BUILTIN) else ""


@dataclass(frozen=True)
class _Span:
    """What one plan took: in a trial (`row` is of `_spans`), or in the promotion that it won (`winner`)."""

    row: Row[Any]
    span_us: float
    source: str
    winner: Winner | None = None

    @property
    def plan_id(self) -> str:
        return str(self.row.plan_id)


def rank(connection: Connection, wanted: Filter, study: str | None, limit: int | None) -> list[LeaderboardRow]:
    """The rows that match: measured before simulated, problem by problem, fastest first.

    `limit` of each problem, and the winner behind them where its rank is greater.
    """
    if study is not None and not storable(study):
        return []
    spans = [
        _Span(row, row.span_us, row.source)
        for row in whole_rows(connection.execute(_spans(study)))
        if wanted.matches(row)
    ]
    winners = {_key(row): row for row in served_rows(connection, wanted)}
    tried = {_key(span.row) for span in spans}
    spans += [_won(row) for key, row in winners.items() if key not in tried and study in (None, row.study)]
    spans.sort(key=lambda span: _problem(span.row))
    rows: list[LeaderboardRow] = []
    for _, group in groupby(spans, key=lambda span: _problem(span.row)):
        rows += _rank_problem(connection, list(group), winners, limit)
    return rows


def _won(row: Row[Any]) -> _Span:
    winner = stored_winner(row.document)
    source = f"{BUILTIN}{winner.baseline}" if winner.kept_baseline else UNTRIED
    return _Span(row, winner.measurement.span_us, source, winner)


def _key(row: Row[Any]) -> tuple[str, str, bool]:
    return (row.plan_id, row.gpu, row.simulated)


def _spans(study: str | None) -> Executable:
    columns = (TrialRow.id, TrialRow.number, TrialRow.plan_id, TrialRow.source)
    spans = (MeasurementRow.span_us, MeasurementRow.low_us, MeasurementRow.high_us, MeasurementRow.simulated)
    problem = (StudyRow.workload, StudyRow.contract, StudyRow.scale_format, StudyRow.ops)
    shape = (StudyRow.requests, StudyRow.tokens_per_request, StudyRow.kv)
    query = (
        select(*columns, *spans, *problem, *shape, StudyRow.name.label("study"), DeviceRow.name.label("gpu"))
        .join(MeasurementRow, MeasurementRow.trial_id == TrialRow.id)
        .join(StudyRow, StudyRow.id == TrialRow.study_id)
        .join(DeviceRow, DeviceRow.id == StudyRow.device_id)
        .where(TrialRow.status == Status.OK.value, *(span.is_not(None) for span in spans))
        .order_by(TrialRow.id)
    )
    return query if study is None else query.where(StudyRow.name == study)


def _problem(row: Row[Any]) -> tuple[Any, ...]:
    shape = (row.requests * row.tokens_per_request, row.kv, row.tokens_per_request)
    return (row.simulated, row.workload, row.contract, row.scale_format, row.ops, row.gpu, *shape)


def _rank_problem(
    connection: Connection, spans: list[_Span], winners: Mapping[tuple[str, str, bool], Row[Any]], limit: int | None
) -> list[LeaderboardRow]:
    spans.sort(key=lambda span: (span.span_us, span.plan_id))
    best: dict[str, _Span] = {}
    builtin: dict[str, str] = {}  # a built-in plan is one whoever proposed it in its best trial
    for span in spans:
        best.setdefault(span.plan_id, span)
        if span.source.startswith(BUILTIN):
            builtin.setdefault(span.plan_id, span.source)
    serial = _serial_spans(spans)
    return [
        _row(connection, place, replace(span, source=builtin.get(span.plan_id, span.source)), serial, won)
        for place, span in enumerate(best.values(), start=1)
        for won in [winners.get(_key(span.row))]
        if limit is None or place <= limit or won is not None
    ]


def _row(
    connection: Connection, place: int, span: _Span, serial: Mapping[str, float], won: Row[Any] | None
) -> LeaderboardRow:
    row, evidence = span.row, span.winner
    if evidence is None and won is not None:
        evidence = stored_winner(won.document)
    plan = span.winner.plan if span.winner else _plan(connection, row.id)
    measured = span.winner.measurement if span.winner else row
    return LeaderboardRow(
        rank=place,
        plan=plan,
        span_us=span.span_us,
        low_us=measured.low_us,
        high_us=measured.high_us,
        speedup=_speedup(span, serial),
        source=span.source,
        simulated=row.simulated,
        winner=won is not None,
        study=row.study,
        number=None if span.winner else row.number,
        gpu=row.gpu,
        workload=row.workload,
        contract=row.contract,
        scale_format=row.scale_format,
        ops=tuple(row.ops.split(",")),
        shape=Shape(row.requests, row.tokens_per_request, row.kv),
        evidence=evidence,
    )


def _speedup(span: _Span, serial: Mapping[str, float]) -> float | None:
    if span.winner is not None:
        return 1 / span.winner.ratio
    anywhere = min(serial.values(), default=None)
    return None if anywhere is None else serial.get(span.row.study, anywhere) / span.span_us


def _serial_spans(spans: Iterable[_Span]) -> dict[str, float]:
    """Study → its best span of the built-in serial plan in a trial; `spans` come fastest first."""
    found: dict[str, float] = {}
    for span in spans:
        if span.source == BASELINE and span.winner is None:
            found.setdefault(span.row.study, span.span_us)
    return found


def _plan(connection: Connection, trial_id: int) -> Plan:
    return stored_plan(connection.execute(select(TrialRow.plan).where(TrialRow.id == trial_id)).scalar_one())
