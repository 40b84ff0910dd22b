"""`mktune matrix`: spans of a grid's stored plans, and what each costs in the cells beside its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from mktune.cli import render
from mktune.cli.backend import choose_for
from mktune.cli.documents import device_document, interval_document, shape_document
from mktune.cli.options import (
    BackendName,
    Contexts,
    Json,
    Ops,
    Rows,
    ScaleFormat,
    SimGpu,
    StoreUrl,
    Tokens,
    Workload,
    example,
    shapes,
)
from mktune.cli.summary import shape_words
from mktune.errors import NothingFoundError

if TYPE_CHECKING:
    from mktune.search.matrix import Borrowed, MatrixCell


def add(app: typer.Typer) -> None:
    """Register this group's commands."""
    shown = "mktune matrix glm52_attention_prefix --m 8,16,32 --kv 8192,65536"
    app.command(**example(shown, f"{shown} --backend sim"))(matrix)


def matrix(
    workload: Workload,
    m: Rows,
    kv: Contexts,
    ops: Ops = None,
    tokens_per_request: Tokens = None,
    backend: BackendName = "auto",
    sim_gpu: SimGpu = "h200",
    scale_format: ScaleFormat = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Measure the stored plans of a grid, and the regret of using each cell's plan in its neighbours."""
    from mktune.search.matrix import matrix as measure
    from mktune.store import Store

    grid = shapes(m, kv, tokens_per_request)
    known, chosen, picked = choose_for(workload, ops, backend, sim_gpu, scale_format)
    with Store.open(store, write=False) as opened:
        cells = []
        for cell in measure(known, chosen, grid, picked, opened):
            cells.append(cell)
            render.note(f"mktune: {shape_words(cell.shape)}: {_span(cell)} µs")
        location = str(opened.location)
    kind, how = ("simulated", "mktune tune --backend sim") if picked.simulated else ("measured", "mktune tune")
    if all(cell.plan is None for cell in cells):
        where = f"of these shapes on {picked.device.name}"
        raise NothingFoundError(f"{location} holds no {kind} plan {where}: `{how}` them")
    if as_json:
        found = [_document(cell) for cell in cells]
        render.document(
            {"workload": workload, "scale_format": known.scale_format, **device_document(picked), "cells": found}
        )
        return
    mark = " simulated" if picked.simulated else ""
    render.folded(f"{known.full_name} on {picked.device.name}{mark}: spans in µs", "bold")
    _print_spans(cells)
    render.line()
    if any(cell.borrowed for cell in cells):
        render.folded("regret of a neighbour's plan: its span over that of the cell's own, minus 1", "bold")
        _print_regret(cells)
    for cell in cells:
        if cell.plan is None:
            render.note(f"mktune: {shape_words(cell.shape)} has no {kind} plan in the store: `{how}` it first")


def _document(cell: MatrixCell) -> dict[str, Any]:
    borrowed = [
        {
            "of": shape_document(one.of),
            "ratio": None if one.ratio is None else interval_document(one.ratio, "ratio"),
            "why": one.why,
        }
        for one in cell.borrowed
    ]
    plan = cell.plan.plan_id if cell.plan else None
    return {**shape_document(cell.shape), "plan_id": plan, "span_us": cell.span_us, "neighbours": borrowed}


def _print_spans(cells: Sequence[MatrixCell]) -> None:
    """A row for every M, a column for every KV."""
    contexts = sorted({cell.shape.kv for cell in cells})
    by_size = {(cell.shape.m, cell.shape.kv): cell for cell in cells}
    columns = [render.Column(name, right=True, whole=True) for name in ("M", *(f"KV {kv}" for kv in contexts))]
    rows = [[m, *(_span(by_size[m, kv]) for kv in contexts)] for m in sorted({cell.shape.m for cell in cells})]
    render.table(columns, rows, grid=True)


def _print_regret(cells: Sequence[MatrixCell]) -> None:
    columns = [render.Column("cell", whole=True), render.Column("plan of", whole=True)]
    columns += [render.Column("regret", right=True, whole=True), render.Column("95 %", right=True, whole=True)]
    columns.append(render.Column("why not"))
    render.table(
        columns,
        [
            [shape_words(cell.shape), shape_words(one.of), *_regret(one), render.one_line(one.why)]
            for cell in cells
            for one in cell.borrowed
        ],
    )


def _regret(one: Borrowed) -> tuple[str, str]:
    if one.ratio is None:
        return "–", "–"
    low, high = (f"{100 * (bound - 1):+.1f}" for bound in (one.ratio.low, one.ratio.high))
    return f"{100 * (one.ratio.median - 1):+.1f} %", f"{low} to {high} %"


def _span(cell: MatrixCell) -> str:
    return "–" if cell.span_us is None else f"{cell.span_us:.2f}"
