"""`mktune tune`: search the plans of a workload at each shape of a grid, and store a winner for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mktune.cli import render
from mktune.cli.backend import choose, require_kernels
from mktune.cli.options import (
    BackendName,
    Contexts,
    Json,
    Ops,
    Rows,
    SimGpu,
    StoreUrl,
    Tokens,
    Workload,
    example,
    names,
    shapes,
)
from mktune.cli.summary import count, does, shape_words, short_id
from mktune.errors import NothingFoundError

if TYPE_CHECKING:
    from mktune.backends.base import Backend
    from mktune.search import Budget, Stop, TuneResult
    from mktune.shape import Shape
    from mktune.space import SearchSpace
    from mktune.store import Store, Study
    from mktune.trial import Winner


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


@dataclass(frozen=True)
class Cell:
    """One shape's search and how it ended; `failed` says why there is no winner."""

    shape: Shape
    study: str
    result: TuneResult | None
    failed: str = ""


def tune(
    workload: Workload,
    m: Rows,
    kv: Contexts,
    ops: Ops = None,
    tokens_per_request: Tokens = None,
    backend: BackendName = "auto",
    sim_gpu: SimGpu = "h200",
    trials: Annotated[
        int | None, typer.Option("--trials", metavar="N", min=1, help="Trials of each study. [100]")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", metavar="S", min=0.001, help="Seconds of searching for each study.")
    ] = None,
    sampler: Annotated[
        str | None, typer.Option("--sampler", metavar="NAME", help="local, tpe or random. [local]")
    ] = None,
    space: Annotated[
        str | None,
        typer.Option("--space", metavar="FILE", help="A search space instead of the shipped one."),
    ] = None,
    store: StoreUrl = None,
    study: Annotated[
        str | None, typer.Option("--study", metavar="NAME", help="Name of the study. [from the problem]")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the study; start it if there is none.")] = False,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the inputs and of the sampler.")] = 0,
    as_json: Json = False,
) -> None:
    """Search for the fastest correct plan at every M and KV, one study each, and store the winners."""
    from mktune.graph.workload import workload as find
    from mktune.search import DEFAULT_SAMPLER, Budget, Stop, check_sampler
    from mktune.space import SearchSpace
    from mktune.store import Store

    known, chosen = find(workload), names("--ops", ops) or None
    known.subgraph(chosen)
    grid = shapes(m, kv, tokens_per_request)
    sampler = DEFAULT_SAMPLER if sampler is None else sampler
    check_sampler(sampler)
    budget = Budget(trials, seconds) if trials is not None or seconds is not None else Budget()
    settings = Settings(choose(backend, sim_gpu), budget, sampler, seed, study, resume)
    require_kernels(settings.backend, known, chosen)
    file = None if space is None else Path(space)
    spaces = [SearchSpace.load(known, chosen, shape, settings.backend.device, file) for shape in grid]
    with Store.open(store) as opened, Stop(before_exit=render.restore_cursor) as stop:
        cells = list(_search(spaces, opened, settings, stop))
        location = str(opened.location)
    if as_json:
        render.document(_document(workload, settings, cells))
    else:
        _print(cells, settings.backend, location)
    if stop.asked:
        raise typer.Exit(stop.exit_code)
    if failed := [cell for cell in cells if cell.failed]:
        raise NothingFoundError("; ".join(f"{shape_words(cell.shape)}: {cell.failed}" for cell in failed))


def _search(spaces: Sequence[SearchSpace], store: Store, settings: Settings, stop: Stop) -> Iterator[Cell]:
    """One cell after the other, until a signal stops it. A cell without a winner does not end the others."""
    from mktune.cli.progress import watching
    from mktune.search import tune as search

    for space in spaces:
        if stop.asked:
            return
        name = _study_name(space, store, settings, len(spaces))
        study = _open_study(name, space, store, settings)
        backend, budget = settings.backend, settings.budget
        try:
            with watching(shape_words(space.shape), budget.trials, backend.simulated) as observer:
                result = search(space, backend, store, study, budget, observer=observer, stop=stop)
            yield Cell(space.shape, name, result)
        except NothingFoundError as error:
            yield Cell(space.shape, name, None, str(error))


def _study_name(space: SearchSpace, store: Store, settings: Settings, cells: int) -> str:
    """The name given, with the shape behind it where there are several cells; else one made from the problem.

    A made name that is taken gets a number; with --resume the latest of them goes on.
    """
    shape, backend = space.shape, settings.backend
    size = f"{shape.requests}x{shape.tokens_per_request} kv{shape.kv}"
    if settings.study is not None:
        return settings.study if cells == 1 else f"{settings.study} {size}"
    gpu = f"{backend.device.name}{' (simulated)' if backend.simulated else ''}"
    ops = tuple(space.graph.calls)
    part = "" if ops == space.workload.ops else f" {','.join(ops)}"
    base = f"{space.workload.name}{part} {size} {gpu}"
    taken = {study.name for study in store.studies()}
    numbered = [base, *(f"{base} #{number}" for number in range(2, len(taken) + 3))]
    free = next(place for place, name in enumerate(numbered) if name not in taken)
    return numbered[max(free - 1, 0)] if settings.resume else numbered[free]


def _open_study(name: str, space: SearchSpace, store: Store, settings: Settings) -> Study:
    from mktune.backends.base import Problem

    problem = Problem(space.workload.name, tuple(space.graph.calls), space.shape, settings.seed)
    with settings.backend.open(problem) as bench:
        build = bench.fingerprint.kernels
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
        resume=settings.resume and any(study.name == name for study in store.studies()),
        build=build,
    )


def _document(workload: str, settings: Settings, cells: Sequence[Cell]) -> dict[str, Any]:
    return {
        "workload": workload,
        "backend": settings.backend.name,
        "simulated": settings.backend.simulated,
        "gpu": settings.backend.device.name,
        "cells": [
            {
                "m": cell.shape.m,
                "requests": cell.shape.requests,
                "tokens_per_request": cell.shape.tokens_per_request,
                "kv": cell.shape.kv,
                "study": cell.study,
                **({"error": cell.failed} if cell.result is None else cell.result.to_dict()),
            }
            for cell in cells
        ],
    }


def _print(cells: Sequence[Cell], backend: Backend, location: str) -> None:
    for cell in cells:
        if cell.result is not None:
            render.line(f"{shape_words(cell.shape)}: {_ran(cell.result)}")
            render.line(f"  {_spent(cell.result)}")
            render.line(f"  study {cell.study}")
    rows = [_row(cell, cell.result.winner, backend) for cell in cells if cell.result and cell.result.winner]
    if rows:
        mark = " (simulated)" if backend.simulated else ""
        render.line()
        render.line(f"winners on {backend.device.name}{mark}, stored in {location}", "bold")
        columns = [render.Column(name, right=True, whole=True) for name in ("M", "KV", "span µs", "× serial", "noise")]
        columns += [render.Column(name, whole=True) for name in ("number is", "plan")]
        render.table([*columns, render.Column("what the plan does")], rows)


def _ran(result: TuneResult) -> str:
    failed = sum(trial.outcome.status != "ok" for trial in result.trials)
    parts = [f"{count(len(result.trials), 'trial')} in {result.seconds['total']:.1f} s"]
    parts += [f"{result.resumed} of them from earlier runs"] if result.resumed else []
    parts.append(f"{failed} failed or pruned, {result.invalid} invalid and {result.duplicate} duplicate proposals")
    parts += [f"space exhausted: {result.exhausted}"] if result.exhausted else []
    parts += [f"stopped by {result.stopped}; go on with --resume"] if result.stopped else []
    return "; ".join(parts)


def _spent(result: TuneResult) -> str:
    """Where the time went: how much of it measuring, and mktune's own share of a trial."""
    seconds = result.seconds
    measuring = (seconds.get("measure", 0.0) + seconds.get("promote", 0.0)) / seconds["total"]
    asking = seconds.get("ask", 0.0) / max(len(result.trials) - result.resumed, 1)
    own = f"{1e3 * result.overhead_seconds:.1f} ms of our own and {1e3 * asking:.1f} ms of the sampler's per trial"
    return f"{100 * measuring:.0f} % of the time measuring; {own}"


def _row(cell: Cell, winner: Winner, backend: Backend) -> list[object]:
    assert cell.result is not None
    marks = [f"keeps built-in {winner.baseline}: nothing beat it beyond noise"] if winner.kept_baseline else []
    marks += [] if cell.result.stored else ["not served: the stored plan is faster"]
    return [
        cell.shape.m,
        cell.shape.kv,
        f"{winner.measurement.span_us:.2f}",
        f"{1 / winner.ratio:.2f}",
        f"{100 * winner.noise_floor:.2f} %",
        "simulated" if backend.simulated else "measured",
        short_id(winner.plan),
        "; ".join([*marks, does(winner.plan)]),
    ]
