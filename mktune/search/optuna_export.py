"""A study of the store as a study of Optuna, in Optuna's own storage: for its dashboard and its analyses.

A parameter is one field of a plan ("B0.split_k", "B0p.gdc", "A0->B0p"), and every one that is not the same in all
trials is written. What only Optuna can hold is not needed here, and nothing is read back.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution

from mktune.errors import InputError, StoreError
from mktune.location import StoreLocation
from mktune.plan import Plan
from mktune.search.result import span_of
from mktune.store import Study
from mktune.store.problems import mapped
from mktune.trial import Status, Trial

MARK = "mktune study"
"""The attribute that says of a study in Optuna's storage that mktune wrote it."""

Value = str | int


def write_studies(url: str, studies: Iterable[tuple[Study, Sequence[Trial]]]) -> list[str]:
    """Write each study with its trials to the database at `url`, and return their names.

    One that mktune has written there before is replaced. Raises InputError where a study of that name is somebody
    else's or the URL names no database, StoreError where it cannot be used.
    """
    location = StoreLocation.parse(url)
    names = []
    with _quiet(), mapped(location):
        try:
            storage = optuna.storages.RDBStorage(_url(location))
            for study, trials in studies:
                _write(storage, study, trials)
                names.append(study.name)
        except optuna.exceptions.StorageInternalError as error:
            raise StoreError(f"{location}: {' '.join(str(error).split())}") from None
    return names


def fields(plan: Plan) -> dict[str, Value]:
    """Every choice of the plan by name."""
    found: dict[str, Value] = {"executor": plan.executor, "order": " ".join(plan.order)}
    for name, op in plan.ops:
        found |= {f"{name}.impl": op.impl, **{f"{name}.{key}": value for key, value in op.config}}
    for name, kernel in plan.kernels:
        found |= {f"{name}.{key}": value for key, value in vars(kernel).items()}
    return found | {f"{source}->{target}": kind for (source, target), kind in plan.edges}


def _write(storage: Any, study: Study, trials: Sequence[Trial]) -> None:
    _make_room(storage, study.name)
    made = optuna.create_study(storage=storage, study_name=study.name, direction="minimize")
    problem = study.problem
    about = {MARK: study.id, "workload": problem.workload, "ops": ",".join(problem.ops), "sampler": study.sampler}
    about |= {"M": problem.shape.m, "KV": problem.shape.kv, "GPU": problem.device.name, "backend": problem.backend}
    about["scale_format"] = problem.scale_format
    for name, value in about.items():
        made.set_user_attr(name, value)
    made.set_metric_names(["span in µs"])
    plans = [fields(trial.plan) for trial in trials]
    kinds = _distributions(plans)
    made.add_trials([_frozen(trial, values, kinds) for trial, values in zip(trials, plans, strict=True)])


def _make_room(storage: Any, name: str) -> None:
    for found in storage.get_all_studies():
        if found.study_name == name:
            if MARK not in storage.get_study_user_attrs(found._study_id):
                raise InputError(f"a study {name!r} is there already, and mktune did not write it: give another URL")
            storage.delete_study(found._study_id)


def _distributions(plans: Sequence[Mapping[str, Value]]) -> dict[str, CategoricalDistribution]:
    """The values of each field that are met, in order; only of fields that differ between plans, or that some lack."""
    met: dict[str, set[Value]] = {}
    for plan in plans:
        for name, value in plan.items():
            met.setdefault(name, set()).add(value)
    told = {name: values for name, values in met.items() if len(values) > 1 or any(name not in plan for plan in plans)}
    return {name: CategoricalDistribution(sorted(values, key=_by_kind)) for name, values in sorted(told.items())}


def _by_kind(value: Value) -> tuple[bool, Value]:
    return isinstance(value, str), value


def _frozen(trial: Trial, values: Mapping[str, Value], kinds: Mapping[str, CategoricalDistribution]) -> Any:
    states = optuna.trial.TrialState
    span, status = span_of(trial), trial.outcome.status
    state = states.COMPLETE if span is not None else states.PRUNED if status is Status.PRUNED else states.FAIL
    params = {name: value for name, value in values.items() if name in kinds}
    about = {"mktune trial": trial.number, "plan": trial.plan.plan_id, "status": status.value, "source": trial.source}
    about |= {"gpu": trial.gpu} if trial.gpu else {}
    about |= {"reason": trial.outcome.reason} if trial.outcome.reason else {}
    made = optuna.trial.create_trial(
        state=state, value=span, params=params, distributions={name: kinds[name] for name in params}, user_attrs=about
    )
    if trial.started:
        began = datetime.fromisoformat(trial.started).astimezone().replace(tzinfo=None)  # Optuna keeps local times
        made.datetime_start, made.datetime_complete = (
            began,
            began + timedelta(seconds=sum(dict(trial.seconds).values())),
        )
    return made


def _url(location: StoreLocation) -> str:
    if location.path is None:
        return location.url
    if "?" in str(location.path):
        raise InputError(f"Optuna cannot open a file with a question mark in its path: {location.path}")
    return f"sqlite:///{location.path}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna says on stderr what it does, and warns of what it calls experimental."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)
