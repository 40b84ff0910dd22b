"""`mktune tune`: search the plans of a workload at each shape of a grid, and store a winner for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mktune.cli import render
from mktune.cli.backend import choose, note_left_out, require_kernels, several
from mktune.cli.options import (
    MAX_SEED,
    BackendName,
    Contexts,
    Json,
    Ops,
    Rows,
    ScaleFormat,
    SimGpu,
    SpaceName,
    StoreUrl,
    Tokens,
    Workers,
    Workload,
    example,
    names,
    number_of_workers,
    shapes,
)
from mktune.cli.summary import count, shape_words
from mktune.cli.tune_report import Cell, report
from mktune.errors import InputError, NothingFoundError
from mktune.trial import Status

if TYPE_CHECKING:
    from mktune.backends.base import Backend
    from mktune.search import Budget, Stop
    from mktune.space import SearchSpace
    from mktune.store import Store, Study


Trials = Annotated[
    int | None,
    typer.Option("--trials", metavar="N", min=1, help="Trials of each study in all, earlier runs included. [100]"),
]
Seconds = Annotated[
    float | None, typer.Option("--seconds", metavar="S", min=0.001, help="Seconds of searching for each study.")
]
Sampler = Annotated[
    str | None,
    typer.Option("--sampler", metavar="NAME", help="staged, trace_guided, local, tpe, gp or random. [staged]"),
]
StudyName = Annotated[str | None, typer.Option("--study", metavar="NAME", help="Name of the study. [from the problem]")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the study; start it if there is none.")]
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="Run again what failed: of the study, and what hung in others.")
]
Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic",
        help="Store only a plan whose bits repeat in every run and beside any requests, in place of any whose do not.",
    ),
]
FromScratch = Annotated[
    bool, typer.Option("--from-scratch", help="Try neither plans that ship nor winners of neighbouring shapes first.")
]
Seed = Annotated[
    int, typer.Option("--seed", metavar="N", min=0, max=MAX_SEED, help="Seed of the inputs and of the sampler.")
]


def add(app: typer.Typer) -> None:
    """Register this group's commands."""
    shown = "mktune tune glm52_attention_prefix --ops A0,B0 --m 1,16 --kv 8192 --trials 100"
    app.command(**example(shown, "mktune tune glm52_attention_prefix --m 16 --kv 8192 --backend sim"))(tune)


@dataclass(frozen=True)
class Settings:
    """What is the same for every cell of the grid."""

    backend: Backend
    budget: Budget
    sampler: str
    seed: int
    study: str | None
    resume: bool
    retry_failed: bool = False
    deterministic: bool = False
    from_scratch: bool = False
    others: Sequence[Backend] = ()


def tune(
    workload: Workload,
    m: Rows,
    kv: Contexts,
    ops: Ops = None,
    tokens_per_request: Tokens = None,
    backend: BackendName = "auto",
    sim_gpu: SimGpu = "h200",
    trials: Trials = None,
    seconds: Seconds = None,
    sampler: Sampler = None,
    space: SpaceName = None,
    store: StoreUrl = None,
    study: StudyName = None,
    resume: Resume = False,
    retry_failed: RetryFailed = False,
    deterministic: Deterministic = False,
    from_scratch: FromScratch = False,
    seed: Seed = 0,
    workers: Workers = "1",
    scale_format: ScaleFormat = None,
    as_json: Json = False,
) -> None:
    """Search for the fastest correct plan at every M and KV, one study each, and store the winners."""
    from mktune.graph.workload import workload as find
    from mktune.search import DEFAULT_SAMPLER, Budget, Stop, check_sampler, require_a_plan
    from mktune.space import SearchSpace
    from mktune.store import Store

    known, chosen = find(workload, scale_format), names("--ops", ops) or None
    known.subgraph(chosen)
    grid = shapes(m, kv, tokens_per_request)
    sampler = DEFAULT_SAMPLER if sampler is None else sampler
    check_sampler(sampler)
    budget = Budget(trials, seconds) if trials is not None or seconds is not None else Budget()
    first, *others = several(choose(backend, sim_gpu), number_of_workers(workers))
    if deterministic and first.simulated:
        raise InputError("--deterministic compares bits of runs on a GPU, and a model has none: leave it out")
    settings = Settings(first, budget, sampler, seed, study, resume, retry_failed, deterministic, from_scratch, others)
    require_kernels(settings.backend, known, chosen)
    file = None if space is None else Path(space)
    spaces = [SearchSpace.load(known, chosen, shape, settings.backend.device, file) for shape in grid]
    for searched in spaces:
        require_a_plan(searched)
    with Store.open(store) as opened, Stop(before_exit=render.restore_cursor) as stop:
        with ExitStack() as kept:
            for used in (settings.backend, *settings.others):
                kept.enter_context(used.kept())
            cells = list(_search(spaces, opened, settings, stop))
        location = str(opened.location)
    report(workload, settings.backend, cells, location, as_json)
    _end(cells, stop)


def _end(cells: Sequence[Cell], stop: Stop) -> None:
    """The exit code of a signal; an error where a cell has no winner."""
    if stop.asked:
        raise typer.Exit(stop.exit_code)
    if failed := [cell for cell in cells if cell.failed]:
        raise NothingFoundError("; ".join(f"{shape_words(cell.shape)}: {cell.failed}" for cell in failed))


def _search(spaces: Sequence[SearchSpace], store: Store, settings: Settings, stop: Stop) -> Iterator[Cell]:
    """One cell after the other, until a signal stops it. A cell without a winner does not end the others."""
    from mktune.cli.progress import watching
    from mktune.runtime.sources import bundled_winners
    from mktune.search import tune as search
    from mktune.search.neighbours import NEIGHBOURS

    shipped = [] if settings.from_scratch else bundled_winners()
    for space in spaces:
        if stop.asked:
            return
        study = _study(space, store, settings, len(spaces))
        if space is spaces[0]:
            note_left_out(space)
        backend, budget = settings.backend, settings.budget
        if settings.resume and not settings.retry_failed:
            _note_full(store, study, budget)
        try:
            with watching(shape_words(space.shape), budget.trials, backend.simulated) as observer:
                result = search(
                    space,
                    backend,
                    store,
                    study,
                    budget,
                    observer=observer,
                    stop=stop,
                    others=settings.others,
                    retry_failed=settings.retry_failed,
                    deterministic=settings.deterministic,
                    neighbours=0 if settings.from_scratch else NEIGHBOURS,
                    shipped=shipped,
                )
            yield Cell(space.shape, study.name, result)
        except NothingFoundError as error:
            yield Cell(space.shape, study.name, None, str(error))


def _note_full(store: Store, study: Study, budget: Budget) -> None:
    """Say where a study that goes on has all its trials already; only the finalists are measured again then."""
    counts = store.trial_counts(study)
    have = sum(number for status, number in counts.items() if status not in ("running", Status.LOST))
    if budget.trials is not None and have >= budget.trials:
        whole = "--trials counts the whole study: raise it to go on"
        render.note(f"mktune: study {study.name} already has {count(have, 'trial')}; {whole}")


def _study(space: SearchSpace, store: Store, settings: Settings, cells: int) -> Study:
    """A study under the name given, or under the first free one; another process may take that first."""
    from mktune.store import StudyExists

    while True:
        name, before = _study_name(space, store, settings, cells)
        try:
            study = _open_study(name, space, store, settings)
        except StudyExists:
            if settings.study is not None:
                raise
            continue
        if (study.sampler, study.seed) != (settings.sampler, settings.seed):
            own = f"its own sampler, {study.sampler}, and seed, {study.seed}"
            render.note(f"mktune: study {study.name} goes on with {own}")
        if before:
            render.note(f"mktune: this search is a new study, {name}; --resume goes on with {before}")
        return study


def _study_name(space: SearchSpace, store: Store, settings: Settings, cells: int) -> tuple[str, str]:
    """The name given, with the shape behind it where there are several cells; else one made from the problem, and the
    latest name of those that are taken, which it might be taken for.

    A made name that is taken gets a number; with --resume the latest of them goes on.
    """
    size, backend = space.shape.name, settings.backend
    if settings.study is not None:
        return (settings.study if cells == 1 else f"{settings.study} {size}"), ""
    gpu = f"{backend.device.name}{' (simulated)' if backend.simulated else ''}"
    ops = tuple(space.graph.calls)
    part = "" if ops == space.workload.ops else f" {','.join(ops)}"
    base = f"{space.workload.full_name}{part} {size} {gpu}"
    taken = {study.name for study in store.studies()}
    numbered = [base, *(f"{base} #{number}" for number in range(2, len(taken) + 3))]
    free = next(place for place, name in enumerate(numbered) if name not in taken)
    if settings.resume:
        return numbered[max(free - 1, 0)], ""
    return numbered[free], numbered[free - 1] if free else ""


def _open_study(name: str, space: SearchSpace, store: Store, settings: Settings) -> Study:
    from mktune.backends.base import Problem

    problem = Problem.of(space.workload, tuple(space.graph.calls), space.shape, settings.seed)
    with settings.backend.open(problem) as bench:
        build = bench.build
    return store.study(
        name,
        workload=space.workload.name,
        ops=problem.ops,
        shape=space.shape,
        device=settings.backend.device,
        backend=settings.backend.name,
        sampler=settings.sampler,
        seed=settings.seed,
        contract=space.workload.contract,
        scale_format=space.workload.scale_format,
        resume=settings.resume,
        start=True,
        build=build,
    )
