"""Studies: the problem that is searched, and going on with one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from sqlalchemy import Connection, RowMapping, insert, select, update

from mktune.device import Device
from mktune.errors import InputError
from mktune.shape import Shape
from mktune.store.columns import whole_rows
from mktune.store.models import DeviceRow, StudyRow
from mktune.store.owner import now
from mktune.store.texts import check_name, storable
from mktune.trial import built_alike, short_build


@dataclass(frozen=True)
class StudyProblem:
    """What a study searches: everything that makes two spans comparable.

    ops    sorted names
    build  what the kernels are compiled from (`Fingerprint.kernels`, with all that ops may share); empty: not told
    """

    workload: str
    contract: int
    ops: tuple[str, ...]
    shape: Shape
    device: Device
    backend: str
    build: str = ""
    scale_format: str = "fp32"


class StudyExists(InputError):
    """A new study has the name of a stored one."""


@dataclass(frozen=True)
class Study:
    """One stored study; `invalid` and `duplicate` are what it had counted when it was read.

    max_trials  how many trials all who search it may make together; 0: no number is set
    """

    id: int
    name: str
    problem: StudyProblem
    sampler: str
    seed: int
    created: str
    invalid: int = 0
    duplicate: int = 0
    max_trials: int = 0


def create(connection: Connection, name: str, problem: StudyProblem, sampler: str, seed: int) -> Study:
    """A new study.

    Raises StudyExists where the name is taken, InputError where it cannot be one, or the seed does not fit a column.
    """
    if not -(2**63) <= seed < 2**63:
        raise InputError(f"the seed {seed} does not fit 64 bits")
    if find(connection, check_name(name)) is not None:
        raise StudyExists(f"the study {name!r} exists: go on with --resume, or give another --study name")
    values = {
        "name": name,
        "workload": problem.workload,
        "contract": problem.contract,
        "ops": ",".join(problem.ops),
        **asdict(problem.shape),
        "device_id": _device_id(connection, problem.device),
        "backend": problem.backend,
        "build": problem.build,
        "scale_format": problem.scale_format,
        "sampler": sampler,
        "seed": seed,
        "created": now(),
    }
    connection.execute(insert(StudyRow).values(values))
    study = find(connection, name)
    assert study is not None
    return study


def resume(connection: Connection, name: str, problem: StudyProblem) -> Study:
    """The study `name`. Raises InputError where there is none, or where it searches another problem."""
    study = find(connection, name)
    if study is None:
        raise InputError(f"there is no study {name!r} to resume; leave --resume out to start it")
    for what, stored, asked in _differences(study.problem, problem):
        raise InputError(f"the study {name!r} has {what} {stored}, not {asked}: give another --study name")
    return study


def join(connection: Connection, name: str, device: Device, build: str) -> Study:
    """The study `name`, to be searched on `device` with kernels of `build` as well.

    Raises InputError where there is none, or where its spans would not mean the same.
    """
    study = find(connection, name)
    if study is None:
        raise InputError(f"there is no study {name!r}: `mktune tune --study NAME` with the same --store starts it")
    for what, stored, here in _differences(study.problem, replace(study.problem, device=device, build=build)):
        raise InputError(
            f"the study {name!r} has {what} {stored}, and this host {here}: nothing can be measured for it"
        )
    return study


def find(connection: Connection, name: str) -> Study | None:
    """The study of that name."""
    if not storable(name):
        return None
    row = next(whole_rows(connection.execute(_SELECT.where(StudyRow.name == name))), None)
    return None if row is None else _study(row._mapping)


def every(connection: Connection) -> list[Study]:
    """All studies, oldest first."""
    return [_study(row._mapping) for row in whole_rows(connection.execute(_SELECT.order_by(StudyRow.id)))]


def same_problem(one: StudyProblem, other: StudyProblem) -> bool:
    """Plans mean the same in both: the same work on a GPU of the same kind, by the same kernels."""
    return built_alike(one.build, other.build) and not _differences(one, other)


def add_counts(connection: Connection, study: Study, invalid: int, duplicate: int) -> None:
    """Add to what the study counts of proposals that are not trials."""
    connection.execute(
        update(StudyRow)
        .where(StudyRow.id == study.id)
        .values(invalid=StudyRow.invalid + invalid, duplicate=StudyRow.duplicate + duplicate)
    )


def limit_trials(connection: Connection, study: Study, trials: int) -> None:
    """Say how many trials the study may have in all; 0: no number is set."""
    connection.execute(update(StudyRow).where(StudyRow.id == study.id).values(max_trials=trials))


def sorted_ops(ops: Sequence[str]) -> tuple[str, ...]:
    """Ops in the order in which a plan names them."""
    return tuple(sorted(ops))


_DEVICE_FIELDS = tuple(Device.__dataclass_fields__)
_SELECT = select(
    StudyRow.__table__, *(getattr(DeviceRow, name).label(f"device_{name}") for name in _DEVICE_FIELDS)
).join(DeviceRow, StudyRow.device_id == DeviceRow.id)


def _study(row: RowMapping) -> Study:
    problem = StudyProblem(
        workload=row["workload"],
        contract=row["contract"],
        ops=tuple(row["ops"].split(",")),
        shape=Shape(row["requests"], row["tokens_per_request"], row["kv"]),
        device=Device(**{name: row[f"device_{name}"] for name in _DEVICE_FIELDS}),
        backend=row["backend"],
        build=row["build"],
        scale_format=row["scale_format"],
    )
    kept = ("id", "name", "sampler", "seed", "created", "invalid", "duplicate", "max_trials")
    return Study(problem=problem, **{name: row[name] for name in kept})


def _differences(stored: StudyProblem, asked: StudyProblem) -> list[tuple[str, str, str]]:
    """(what, stored, asked) of what differs. The same GPU elsewhere, or under another driver, is no other problem."""
    pairs: list[tuple[str, object, object]] = [
        (name, getattr(stored, name), getattr(asked, name))
        for name in ("workload", "contract", "scale_format", "backend")
    ]
    pairs.append(("ops", ",".join(stored.ops), ",".join(asked.ops)))
    pairs.append(("the shape", _shape_text(stored.shape), _shape_text(asked.shape)))
    pairs.append(("the GPU", _device_text(stored.device), _device_text(asked.device)))
    if stored.build and asked.build and not built_alike(stored.build, asked.build):
        pairs.append(("kernels of the build", short_build(stored.build), short_build(asked.build)))
    return [(what, str(left), str(right)) for what, left, right in pairs if left != right]


def _shape_text(shape: Shape) -> str:
    return f"M={shape.m} ({shape.requests} × {shape.tokens_per_request}), KV={shape.kv}"


def _device_text(device: Device) -> str:
    return f"{device.name} ({device.sms} SMs, {device.arch})"


def _device_id(connection: Connection, device: Device) -> int:
    fields = asdict(device)
    key = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    query = select(DeviceRow.id).where(DeviceRow.key == key)
    found = connection.execute(query).scalar()
    if found is None:
        connection.execute(insert(DeviceRow).values(key=key, **fields))
        found = connection.execute(query).scalar_one()
    return found
