"""`mktune coverage`: for which shapes a look-up has a plan, measured there or covered, and where one is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mktune.cli import render
from mktune.cli.book import Accept, Aliases, AllowSimulated, AnyBuild, LookedUpOps, asked_gpu, open_book
from mktune.cli.options import (
    Gpu,
    Json,
    ScaleFormat,
    StoreUrl,
    Tokens,
    Workload,
    check_sizes,
    example,
    names,
    numbers,
)
from mktune.errors import InputError, PlanNotFound
from mktune.graph.workload import workload as known_workload

if TYPE_CHECKING:
    from mktune.runtime.coverage import Cell

GridRows = Annotated[
    str | None, typer.Option("--m", metavar="1,16", help="Rows (tokens) of the step, a list. [powers of 2 to 256]")
]
GridContexts = Annotated[
    str | None,
    typer.Option("--kv", metavar="8192", help="Context capacity, a list. [powers of 2 from 1024 to 131072]"),
]

ROWS = ",".join(str(2**power) for power in range(9))
CONTEXTS = ",".join(str(2**power) for power in range(10, 18))
NOWHERE = {"store", "pin", "workload", "contract", "layout", "ops", "device"}
"""Reasons that no other shape would change."""


def add(app: typer.Typer) -> None:
    """Register this group's commands."""
    shown = "mktune coverage glm52_attention_prefix --m 1,8,16,24 --kv 4096,8192 --gpu 'NVIDIA H200'"
    app.command(**example(shown))(coverage)


def coverage(
    workload: Workload,
    m: GridRows = None,
    kv: GridContexts = None,
    tokens_per_request: Tokens = None,
    gpu: Gpu = None,
    ops: LookedUpOps = None,
    allow_simulated: AllowSimulated = False,
    any_build: AnyBuild = False,
    accept: Accept = None,
    alias: Aliases = None,
    scale_format: ScaleFormat = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Show which shapes a look-up answers: measured there, covered by a plan tuned elsewhere, or missing."""
    from mktune.runtime.coverage import coverage as cells_of

    known_workload(workload, scale_format)
    rows, contexts = numbers("--m", m or ROWS), numbers("--kv", kv or CONTEXTS)
    check_sizes(rows, contexts)
    cells = cells_of(
        open_book(store, accept, any_build, alias),
        workload,
        rows,
        contexts,
        gpu=asked_gpu(gpu),
        tokens_per_request=tokens_per_request,
        ops=names("--ops", ops) or None,
        allow_simulated=allow_simulated,
        scale_format=scale_format,
    )
    if not cells:
        raise InputError(f"tokens per request ({tokens_per_request}) divide no M, or exceed every KV")
    first = cells[0].answer
    if not first and first.reason in NOWHERE:
        raise PlanNotFound(first.reason, first.message)
    if as_json:
        render.document(_document(cells))
    else:
        _print(cells, contexts)


def _document(cells: Sequence[Cell]) -> dict[str, Any]:
    return {"cells": [_cell(cell) for cell in cells], "counts": _counts(cells)}


def _cell(cell: Cell) -> dict[str, Any]:
    found: dict[str, Any] = {"m": cell.m, "kv": cell.kv, "state": cell.state}
    if cell.tuned is None or not cell.answer:
        return found | {"reason": cell.answer.reason, "message": cell.answer.message}  # type: ignore[union-attr]
    hit = cell.answer
    return found | {
        "plan_id": hit.plan.plan_id,
        "tuned": {"m": cell.tuned.m, "kv": cell.tuned.kv},
        "tokens_per_request": hit.shape.tokens_per_request,
        "span_us": hit.winner.measurement.span_us,
        "simulated": hit.simulated,
        "source": hit.source,
        "differs": list(hit.differs),
    }


def _counts(cells: Sequence[Cell]) -> dict[str, int]:
    found = Counter(cell.state for cell in cells)
    return {state: found[state] for state in ("measured", "covered", "missing")}


def _print(cells: Sequence[Cell], contexts: Sequence[int]) -> None:
    at = {(cell.m, cell.kv): cell for cell in cells}
    rows = [
        (m, *(_words(at[m, kv]) if (m, kv) in at else "" for kv in contexts)) for m in dict.fromkeys(m for m, _ in at)
    ]
    columns = [render.Column("M", right=True, whole=True)]
    columns += [render.Column(f"KV {kv}", right=True, whole=True) for kv in contexts]
    render.table(columns, rows, grid=True)
    render.line()
    render.folded("9.35: µs of the plan measured there; (16, 8192): covered by the plan of M 16, KV 8192; –: missing")
    if any(cell.answer and cell.answer.simulated for cell in cells):
        render.folded("~9.35: a model's number, not a measurement")
    render.folded(", ".join(f"{number} {state}" for state, number in _counts(cells).items()))
    missed = Counter(cell.answer.reason for cell in cells if not cell.answer)
    if missed:
        render.folded("missing for: " + ", ".join(f"{reason} ({number})" for reason, number in sorted(missed.items())))


def _words(cell: Cell) -> str:
    if cell.tuned is None or not cell.answer:
        return "–"
    if cell.state == "covered":
        return f"({cell.tuned.m}, {cell.tuned.kv})"
    mark = "~" if cell.answer.simulated else ""
    return f"{mark}{cell.answer.winner.measurement.span_us:.2f}"
