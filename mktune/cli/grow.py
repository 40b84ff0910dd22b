"""`mktune grow`: a workload built up op by op, and how much of each op's time the graph hides."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mktune.cli import render
from mktune.cli.documents import interval_document
from mktune.cli.fixed_kernels import PlanOption, study
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
    choice,
    example,
)
from mktune.cli.summary import between, shape_words, signed
from mktune.graph.builtin import MODES

if TYPE_CHECKING:
    from mktune.measure.growth import Growth

COLUMNS = [
    render.Column("op", whole=True),
    *(
        render.Column(name, right=True, whole=True)
        for name in ("span µs", "95 %", "increase µs", "95 %", "alone µs", "95 %")
    ),
]

Mode = Annotated[str, typer.Option("--mode", metavar="MODE", help="Structure of every step: " + ", ".join(MODES) + ".")]


def add(app: typer.Typer) -> None:
    """Register this group's commands."""
    shown = "mktune grow glm52_attention_prefix --m 16 --kv 8192"
    app.command(**example(shown, f"{shown} --mode serial --plan 3f9a1c2b7d10", f"{shown} --backend sim"))(grow)


def grow(
    workload: Workload,
    m: Rows,
    kv: Contexts,
    ops: Ops = None,
    tokens_per_request: Tokens = None,
    plan: PlanOption = None,
    mode: Mode = "branches+pdl",
    backend: BackendName = "auto",
    sim_gpu: SimGpu = "h200",
    scale_format: ScaleFormat = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Measure a workload op by op: span of the ops so far, what each adds, and what it takes alone.

    Kernels are the same in every step. increase: span − the span above. Nothing is stored.
    """
    from mktune.measure.growth import grow as measure

    choice("--mode", mode, MODES)
    asked = study(workload, ops, m, kv, tokens_per_request, plan, store, backend, sim_gpu, scale_format)
    cells = [
        measure(asked.backend, workload, asked.ops, shape, mode, asked.plan, scale_format=asked.known.scale_format)
        for shape in asked.shapes
    ]
    if as_json:
        render.document({"mode": mode, **asked.document([cell_document(cell) for cell in cells])})
        return
    render.folded(f"{asked.title}, {mode}", "bold")
    for cell in cells:
        render.line()
        _print(cell)


def cell_document(cell: Growth) -> dict[str, Any]:
    """One shape's steps as JSON data."""
    steps = [
        {
            "op": step.op,
            "ops": list(step.ops),
            "plan_id": step.plan.plan_id,
            "policy": asdict(step.policy),
            "span": interval_document(step.span),
            "increase": interval_document(step.increase),
            "alone": interval_document(step.alone),
        }
        for step in cell.steps
    ]
    return {"steps": steps, "alone_us": cell.alone_us, "seconds": cell.seconds}


def _print(cell: Growth) -> None:
    render.folded(shape_words(cell.shape))
    rows = []
    for step in cell.steps:
        numbers = (step.span, step.increase, step.alone)
        rows.append((step.op, *(text for each in numbers for text in (signed(each.median), between(each)))))
    render.table(COLUMNS, rows)
    whole = cell.steps[-1].span.median
    render.folded(
        f"Alone the ops take {signed(cell.alone_us)} µs added up, together {signed(whole)} µs: "
        f"{signed(cell.alone_us - whole)} µs less."
    )
