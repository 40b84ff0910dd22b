"""What `mktune tune` says in the end: how each search went, and the winners in one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mktune.cli import render
from mktune.cli.documents import device_document, shape_document
from mktune.cli.replaced import note_lost_bits, replacement_document
from mktune.cli.summary import count, does, shape_words

if TYPE_CHECKING:
    from mktune.backends.base import Backend
    from mktune.search import TuneResult
    from mktune.shape import Shape
    from mktune.trial import Winner


@dataclass(frozen=True)
class Cell:
    """One shape's search and how it ended; `failed` says why there is no winner."""

    shape: Shape
    study: str
    result: TuneResult | None
    failed: str = ""


def report(workload: str, backend: Backend, cells: Sequence[Cell], location: str, as_json: bool) -> None:
    """Print how every cell ended: one JSON document, or lines and a table. `location` says where winners are stored."""
    for cell in cells:
        if cell.result is not None and cell.result.winner is not None:
            note_lost_bits(cell.result.winner, cell.result.replaced)
    if as_json:
        render.document(_document(workload, backend, cells))
    else:
        _print(cells, backend, location)


def _document(workload: str, backend: Backend, cells: Sequence[Cell]) -> dict[str, Any]:
    """How every cell ended, as JSON data."""
    return {
        "workload": workload,
        **device_document(backend),
        "cells": [
            {
                **shape_document(cell.shape),
                "study": cell.study,
                **({"error": cell.failed} if cell.result is None else _ended(cell.result)),
            }
            for cell in cells
        ],
    }


def _ended(result: TuneResult) -> dict[str, Any]:
    winner = result.winner
    return result.to_dict() | ({} if winner is None else replacement_document(winner, result.replaced))


def _print(cells: Sequence[Cell], backend: Backend, location: str) -> None:
    """What each search did, then one table of the winners."""
    for cell in cells:
        if cell.result is not None:
            render.folded(f"{shape_words(cell.shape)}: {_ran(cell.result)}")
            render.folded(f"  {_spent(cell.result)}")
            render.folded(f"  study {cell.study}")
    rows = [_row(cell, cell.result.winner, backend) for cell in cells if cell.result and cell.result.winner]
    if rows:
        mark = " (simulated)" if backend.simulated else ""
        render.line()
        render.folded(f"winners on {backend.device.name}{mark}, stored in {location}", "bold")
        columns = [render.Column(name, right=True, whole=True) for name in ("M", "KV", "span µs", "× serial", "noise")]
        columns += [render.Column(name, whole=True) for name in ("number is", "plan")]
        render.table([*columns, render.Column("what the plan does")], rows)


def _ran(result: TuneResult) -> str:
    failed = sum(trial.outcome.status != "ok" for trial in result.trials)
    parts = [f"{count(len(result.trials), 'trial')} in {result.seconds['total']:.1f} s"]
    parts += [f"{result.resumed} of them from earlier runs"] if result.resumed else []
    parts.append(f"{failed} failed or pruned, {result.invalid} invalid and {result.duplicate} duplicate proposals")
    if result.avoided:
        parts.append(f"{count(result.avoided, 'proposal')} left alone that hung or faulted before (--retry-failed)")
    parts += [f"space exhausted: {result.exhausted}"] if result.exhausted else []
    parts += [_stopped(result)] if result.stopped else []
    return "; ".join(parts)


def _stopped(result: TuneResult) -> str:
    if result.winner is not None:
        return f"stopped by {result.stopped}; go on with --resume"
    when = "by this run" if result.resumed else "yet"
    return f"stopped by {result.stopped}, no winner stored {when}: go on with --resume"


def _spent(result: TuneResult) -> str:
    """Where the time went: how much of it measuring, and mktune's own share of a trial."""
    seconds = result.seconds
    measuring = result.measuring_seconds / seconds["total"]
    if result.measured == 0:
        return f"{100 * measuring:.0f} % of the time measuring"
    asking = seconds.get("ask", 0.0) / result.measured
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
        winner.plan.short_id,
        "; ".join([*marks, does(winner.plan)]),
    ]
