"""Trials: written once when they begin and once, whole, when they end."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, func, insert, literal, select, update

from mktune.errors import InputError, MktuneError, StoreError
from mktune.plan import Plan
from mktune.records import policy_from_dict
from mktune.store import leases
from mktune.store.leases import Watch
from mktune.store.models import MeasurementRow, StudyRow, TrialRow
from mktune.store.owner import now, this_process
from mktune.store.stored_plan import stored_plan
from mktune.store.studies import Study
from mktune.store.texts import clip
from mktune.trial import Measurement, Outcome, Status, Trial

# Built once: building and hashing a statement costs as much as running it.
_LOCK_STUDY = select(StudyRow.id).where(StudyRow.id == bindparam("study")).with_for_update()
_LAST_NUMBER = select(func.max(TrialRow.number)).where(TrialRow.study_id == bindparam("study"))
_RESERVED = select(TrialRow.number).where(
    TrialRow.study_id == bindparam("study"), TrialRow.reserved == bindparam("key")
)
_COUNT = (
    select(func.count())
    .where(TrialRow.study_id == bindparam("study"))
    .where(TrialRow.status.is_(None) | (TrialRow.status != Status.LOST.value))
)
_FIND = select(TrialRow.id, TrialRow.status, TrialRow.owner).where(
    TrialRow.study_id == bindparam("study"), TrialRow.number == bindparam("number")
)
_INSERT_TRIAL = insert(TrialRow)
_BEGIN_TRIAL = insert(TrialRow).values(lease=leases.LEASE_END)
_UPDATE_TRIAL = update(TrialRow).where(TrialRow.id == bindparam("row"))
_INSERT_MEASUREMENT = insert(MeasurementRow)
_AT_ONCE = 500
"""Rows that one query asks for by their numbers."""


class PlanTaken(MktuneError):
    """The study has a trial of the same kernels in the same graph, running or ended: of this process or another."""


class StudyFull(MktuneError):
    """The study has as many trials as it may have, those of other processes included."""


@dataclass(frozen=True)
class Running:
    """A trial that has begun and not ended.

    owner      names the process (`mktune.store.owner`); `elsewhere`: it is not this one
    abandoned  that process is gone, or its lease is over (`mktune.store.leases`)
    """

    number: int
    plan_id: str
    source: str
    owner: str
    started: str
    abandoned: bool = False

    @property
    def elsewhere(self) -> bool:
        return self.owner != this_process()


@dataclass(frozen=True)
class TakenUp:
    """A trial that this process has begun because the one that had begun its plan is gone."""

    number: int
    plan: Plan
    source: str
    key: str | None


def begin(
    connection: Connection,
    study: Study,
    plan: Plan,
    source: str,
    key: str | None = None,
    limit: int | None = None,
    replaces: int | None = None,
) -> int:
    """Record that this process runs `plan` now; the trial's number, which no other trial of the study has.

    See `Store.begin_trial`. Raises PlanTaken and StudyFull.
    """
    _lock(connection, study)
    if replaces is not None:
        _give_up(connection, study, replaces)
    if key is not None:
        _check_free(connection, study, key)
    number = _next_number(connection, study)
    if limit is not None and number >= limit and connection.execute(_COUNT, {"study": study.id}).scalar_one() >= limit:
        raise StudyFull(f"the study has {limit} trials")
    _insert_running(connection, study, number, plan, source, key)
    return number


def take_up(connection: Connection, study: Study, held: Collection[int], watch: Watch) -> TakenUp | None:
    """Begin again, for this process, the first trial whose process is gone, but for those held here.

    None where there is none.
    That one ends as lost, and so does every one before it whose plan was taken up before (`leases.ATTEMPTS`).
    """
    _lock(connection, study)
    gone = leases.abandoned_rows(connection, study, watch)
    for row in [row for row, number in gone.items() if number not in held]:
        found = leases.claim(connection, row)
        if found is None:
            continue
        if found.attempt >= leases.ATTEMPTS:
            lose(connection, study.id, [found.number], "its process ended before it did, for the second time")
            continue
        number = _next_number(connection, study)
        lose(connection, study.id, [found.number], f"its process ended before it did: begun again as trial {number}")
        _insert_running(connection, study, number, found.plan, found.source, found.key, found.attempt + 1)
        return TakenUp(number, found.plan, found.source, found.key)
    return None


def _lock(connection: Connection, study: Study) -> None:
    """Nobody else begins a trial of the study until the transaction ends."""
    if connection.dialect.name != "sqlite":  # where every write is alone anyway
        connection.execute(_LOCK_STUDY, {"study": study.id})


def _check_free(connection: Connection, study: Study, key: str) -> None:
    taken = connection.execute(_RESERVED, {"study": study.id, "key": key}).scalar()
    if taken is not None:
        raise PlanTaken(f"trial {taken} of the study runs, or has run, the same")


def _next_number(connection: Connection, study: Study) -> int:
    last = connection.execute(_LAST_NUMBER, {"study": study.id}).scalar()
    return 0 if last is None else last + 1


def _insert_running(
    connection: Connection, study: Study, number: int, plan: Plan, source: str, key: str | None, attempt: int = 1
) -> None:
    values = {"study_id": study.id, "number": number, "owner": this_process(), "started": now(), "reserved": key}
    values |= {"plan_id": plan.plan_id, "plan": plan.json, "source": clip(source), "attempt": attempt}
    connection.execute(_BEGIN_TRIAL, values | {"lease_s": leases.LEASE_SECONDS})


def _give_up(connection: Connection, study: Study, number: int) -> None:
    """An ended trial is run again: it counts as lost from now on, and says how it had ended."""
    row = TrialRow.__table__
    connection.execute(
        update(TrialRow)
        .where(TrialRow.study_id == study.id, TrialRow.number == number, TrialRow.status.is_not(None))
        .values(
            status=Status.LOST.value,
            reserved=None,
            reason=literal("run again; it had ended as ") + row.c.status + literal(": ") + row.c.reason,
        )
    )


def add(connection: Connection, study: Study, trial: Trial, key: str | None = None) -> None:
    """Record an ended trial with its measurement. A number that runs here, or was lost, may end; no other twice.

    key  what it had reserved when it began here

    Raises InputError where status ok comes with a span that is no finite, positive number, PlanTaken where it was lost
    meanwhile and another trial is of its plan now.
    """
    measurement = trial.outcome.measurement
    if trial.outcome.status is Status.OK and not (measurement and _is_span(measurement.span_us)):
        raise InputError(f"trial {trial.number}: status ok needs a finite, positive span")
    trial_id = _write_trial(connection, study, trial, key)
    if measurement is not None:
        connection.execute(_INSERT_MEASUREMENT, {"trial_id": trial_id, **_measurement_columns(measurement)})


def ended(connection: Connection, study: Study, *, lost: bool, but: Collection[int] = ()) -> list[Trial]:
    """The trials that ended, by number; those that a killed process left behind only where `lost` is asked for.

    but  numbers that are known already
    """
    query = (
        select(TrialRow.__table__, MeasurementRow.__table__)
        .outerjoin(MeasurementRow, MeasurementRow.trial_id == TrialRow.id)
        .where(TrialRow.study_id == study.id, TrialRow.status.is_not(None))
        .order_by(TrialRow.number)
    )
    if not lost:
        query = query.where(TrialRow.status != Status.LOST.value)
    if but:
        numbers = connection.execute(query.with_only_columns(TrialRow.number)).scalars().all()
        missing = [number for number in numbers if number not in but]
        parts = [missing[begin : begin + _AT_ONCE] for begin in range(0, len(missing), _AT_ONCE)]
        return [_trial(row) for part in parts for row in _of(connection, query, part)]
    return [_trial(row) for row in connection.execute(query).all()]


def _of(connection: Connection, query: Select[Any], numbers: Sequence[int]) -> Sequence[Row[Any]]:
    return connection.execute(query.where(TrialRow.number.in_(numbers))).all()


def running(connection: Connection, study: Study, watch: Watch) -> list[Running]:
    """The trials that have begun and not ended, by number."""
    gone = set(leases.abandoned_rows(connection, study, watch).values())
    columns = (TrialRow.number, TrialRow.plan_id, TrialRow.source, TrialRow.owner, TrialRow.started)
    query = select(*columns).where(TrialRow.study_id == study.id, TrialRow.status.is_(None)).order_by(TrialRow.number)
    return [Running(*row, abandoned=row.number in gone) for row in connection.execute(query).all()]


def lose_abandoned(connection: Connection, study: Study, watch: Watch) -> int:
    """End as `lost` every running trial whose process is gone; how many they were."""
    gone = list(leases.abandoned_rows(connection, study, watch).values())
    lose(connection, study.id, gone, "its process ended before it did")
    return len(gone)


def lose(connection: Connection, study_id: int, numbers: list[int], reason: str) -> None:
    """End running trials as `lost`."""
    for number in numbers:
        connection.execute(
            update(TrialRow)
            .where(TrialRow.study_id == study_id, TrialRow.number == number, TrialRow.status.is_(None))
            .values(status=Status.LOST.value, reason=reason, ended=now(), reserved=None)
        )


def failures(connection: Connection, studies: Sequence[Study], statuses: Sequence[Status]) -> list[Plan]:
    """The plans that ended as one of `statuses` in any of `studies`."""
    query = (
        select(TrialRow.plan)
        .where(TrialRow.study_id.in_([study.id for study in studies]))
        .where(TrialRow.status.in_([status.value for status in statuses]))
        .distinct()
    )
    return [stored_plan(text) for text in connection.execute(query).scalars()]


def counts(connection: Connection, study: Study) -> dict[str, int]:
    """Status → how many trials; those that run count as "running"."""
    query = select(TrialRow.status).where(TrialRow.study_id == study.id)
    return dict(Counter(status or "running" for status in connection.execute(query).scalars().all()))


def _write_trial(connection: Connection, study: Study, trial: Trial, key: str | None) -> int:
    values: dict[str, Any] = {
        "plan_id": trial.plan.plan_id,
        "plan": trial.plan.json,
        "source": clip(trial.source),
        "owner": this_process(),
        "ended": now(),
        "status": trial.outcome.status.value,
        "reason": clip(trial.outcome.reason),
        "seconds": json.dumps([dict(trial.seconds), dict(trial.outcome.seconds)]),
        "gpu": clip(trial.gpu),
    }
    found = connection.execute(_FIND, {"study": study.id, "number": trial.number}).first()
    if found is None:
        values |= {"study_id": study.id, "number": trial.number, "started": trial.started or values["ended"]}
        created: Any = connection.execute(_INSERT_TRIAL, values)
        return int(created.inserted_primary_key[0])
    if found.status not in (None, Status.LOST.value) or (found.status is None and found.owner != values["owner"]):
        raise StoreError(f"trial {trial.number} of study {study.name!r} is another process's, or has ended already")
    if found.status == Status.LOST.value and key is not None:
        _lock(connection, study)
        _check_free(connection, study, key)
        values["reserved"] = key
    if trial.started:
        values["started"] = trial.started
    connection.execute(_UPDATE_TRIAL, values | {"row": found.id})
    return int(found.id)


def _measurement_columns(measurement: Measurement) -> dict[str, Any]:
    data = measurement.to_dict()
    spans = {name: _finite(data[name]) for name in ("span_us", "low_us", "high_us")}
    return {
        **spans,
        "samples_us": json.dumps([_finite(sample) for sample in data["samples_us"]], separators=(",", ":")),
        "policy": json.dumps(data["policy"], sort_keys=True),
        "device_state": json.dumps({name: _finite(value) for name, value in data["device_state"].items()}),
        "simulated": measurement.policy.simulated,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _is_span(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _trial(row: Row[Any]) -> Trial:
    """Raises StoreError where a field does not read back."""
    try:
        own, bench = json.loads(row.seconds)
        outcome = Outcome(Status(row.status), row.reason, _measurement(row), tuple(bench.items()))
        plan = Plan.from_json(row.plan)
        return Trial(row.number, plan, outcome, row.source, row.started, tuple(own.items()), row.gpu)
    except (InputError, ValueError, TypeError, AttributeError) as error:
        raise StoreError(f"the store holds a damaged trial ({row.number}): {error}") from None


def _measurement(row: Row[Any]) -> Measurement | None:
    if row.span_us is None or row.low_us is None or row.high_us is None:
        return None
    return Measurement(
        span_us=row.span_us,
        low_us=row.low_us,
        high_us=row.high_us,
        samples_us=tuple(_number(sample) for sample in json.loads(row.samples_us)),
        policy=policy_from_dict(json.loads(row.policy)),
        device_state=tuple((name, _number(value)) for name, value in json.loads(row.device_state).items()),
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else value
