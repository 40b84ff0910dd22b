"""`mktune worker`: measure for a study that `mktune tune` has started, on this host's GPUs, until it has its trials."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mktune.cli import render
from mktune.cli.backend import note_left_out, several
from mktune.cli.options import Json, SpaceName, StoreUrl, Workers, example, number_of_workers
from mktune.cli.summary import count, shape_words
from mktune.errors import InputError
from mktune.location import OLDEST

if TYPE_CHECKING:
    from mktune.backends.base import Backend
    from mktune.search import Budget, TuneResult
    from mktune.store import Store, Study


def add(app: typer.Typer) -> None:
    """Register this group's commands."""
    shown = "mktune worker --store postgresql://tuner@db/mktune --study nightly"
    app.command(**example(shown, f"{shown} --workers auto --seconds 600"))(worker)


def worker(
    study: Annotated[str, typer.Option("--study", metavar="NAME", help="Name of the study, as `mktune tune` has it.")],
    store: StoreUrl = None,
    workers: Workers = "1",
    trials: Annotated[
        int | None, typer.Option("--trials", metavar="N", min=1, help="Trials of the study in all. [those of its tune]")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", metavar="S", min=0.001, help="Seconds of searching. [no limit]")
    ] = None,
    space: SpaceName = None,
    as_json: Json = False,
) -> None:
    """Search a study beside the process that started it, here or on another host, until it has its trials.

    Each worker has a sampler of its own, which learns from the trials of all. A plan is measured once; what a process
    that died had begun is begun again by another. The winner is promoted by `mktune tune`.
    """
    from mktune.cli.progress import watching
    from mktune.graph.workload import workload
    from mktune.search import Stop, work
    from mktune.space import SearchSpace
    from mktune.store import Store

    number = number_of_workers(workers)
    file = None if space is None else Path(space)
    Store.open(store, write=False, oldest=OLDEST).close()  # a worker makes no store: where there is none is no study
    with Store.open(store) as opened, Stop(before_exit=render.restore_cursor) as stop:
        backend, joined = _join(opened, study)
        budget = _budget(joined, trials, seconds)
        first, *others = several(backend, number)
        problem = joined.problem
        known = workload(problem.workload, problem.scale_format)
        searched = SearchSpace.load(known, problem.ops, problem.shape, first.device, file)
        note_left_out(searched)
        with watching(shape_words(problem.shape), budget.trials, first.simulated) as observer:
            result = work(searched, first, opened, joined, budget, observer=observer, stop=stop, others=others)
    _report(joined, first, result, as_json)
    if stop.asked:
        raise typer.Exit(stop.exit_code)


def _join(store: Store, name: str) -> tuple[Backend, Study]:
    """The back end that the study is measured by, on this host, and the study.

    Raises InputError where this host cannot measure for it, SetupError where it has no GPU.
    """
    from mktune.backends import get
    from mktune.backends.base import Problem
    from mktune.backends.models import name_of
    from mktune.graph.workload import workload

    problem = store.find_study(name).problem
    backend = get(problem.backend, name_of(problem.device) if problem.backend == "sim" else "h200")
    known = workload(problem.workload, problem.scale_format)
    with backend.open(Problem.of(known, problem.ops, problem.shape)) as bench:
        build = bench.build
    return backend, store.join(name, device=backend.device, build=build)


def _budget(study: Study, trials: int | None, seconds: float | None) -> Budget:
    from mktune.search import Budget

    trials = trials if trials is not None else study.max_trials or None
    if trials is None and seconds is None:
        raise InputError(f"the study {study.name!r} has no number of trials: give --seconds or --trials")
    return Budget(trials, seconds)


def _report(study: Study, backend: Backend, result: TuneResult, as_json: bool) -> None:
    if as_json:
        document = {"study": study.name, "backend": backend.name, "simulated": backend.simulated}
        render.document({**document, "gpu": backend.device.name, **result.to_dict()})
        return
    why = f"; stopped by {result.stopped}" if result.stopped else ""
    why = f"; space exhausted: {result.exhausted}" if result.exhausted else why
    mark = " (simulated)" if backend.simulated else ""
    of = f"of {len(result.trials)} of study {study.name}, in {result.seconds['total']:.1f} s"
    render.folded(f"{count(result.measured, 'trial')} measured on {backend.device.name}{mark}, {of}{why}")
