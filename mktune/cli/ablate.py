"""`mktune ablate`: what branches and programmatic launch save, alone and together, on the same kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    example,
)
from mktune.cli.summary import between, shape_words, signed

if TYPE_CHECKING:
    from mktune.measure.ablation import Ablation, Saving

COLUMNS = [
    render.Column("mode", whole=True),
    *(render.Column(name, right=True, whole=True) for name in ("span µs", "95 %", "saved µs", "95 %", "saved %")),
]


def add(app: typer.Typer) -> None:
    """Register this group's commands."""
    shown = "mktune ablate glm52_attention_prefix --m 16 --kv 8192"
    app.command(**example(shown, f"{shown} --plan 3f9a1c2b7d10", f"{shown} --backend sim"))(ablate)


def ablate(
    workload: Workload,
    m: Rows,
    kv: Contexts,
    ops: Ops = None,
    tokens_per_request: Tokens = None,
    plan: PlanOption = None,
    backend: BackendName = "auto",
    sim_gpu: SimGpu = "h200",
    scale_format: ScaleFormat = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Measure one stream or branches, without PDL or with it, on the same kernels; a table for each M and KV.

    saved: span of serial − this one. All rows are verified and measured in the same rounds; nothing is stored.
    """
    from mktune.measure.ablation import ablate as measure

    asked = study(workload, ops, m, kv, tokens_per_request, plan, store, backend, sim_gpu, scale_format)
    cells = [
        measure(asked.backend, workload, asked.ops, shape, asked.plan, scale_format=asked.known.scale_format)
        for shape in asked.shapes
    ]
    if as_json:
        render.document(asked.document([cell_document(cell) for cell in cells]))
        return
    render.folded(asked.title, "bold")
    for cell in cells:
        render.line()
        _print(cell, asked.plan.short_id if asked.plan else "")


def cell_document(cell: Ablation) -> dict[str, Any]:
    """One shape's spans and savings as JSON data."""
    from dataclasses import asdict

    return {
        "policy": asdict(cell.policy),
        "modes": {
            mode: {"plan_id": cell.plans[mode].plan_id, **interval_document(span)} for mode, span in cell.spans.items()
        },
        "savings": {mode: saving_document(saving) for mode, saving in cell.savings.items()},
        "interaction": saving_document(cell.interaction),
        "seconds": cell.seconds,
    }


def saving_document(saving: Saving) -> dict[str, float]:
    """Microseconds and per cent of serial."""
    return interval_document(saving.us) | interval_document(saving.fraction, "percent", 100.0)


def _print(cell: Ablation, plan: str) -> None:
    from mktune.measure.ablation import PLAN

    render.folded(shape_words(cell.shape))
    rows = []
    for mode, span in cell.spans.items():
        saving = cell.savings.get(mode)
        saved = ("–", "", "–") if saving is None else _saved(saving)
        rows.append((f"plan {plan}" if mode == PLAN else mode, signed(span.median), between(span), *saved))
    render.table(COLUMNS, rows)
    render.folded(interaction_words(cell.interaction))


def _saved(saving: Saving) -> tuple[str, str, str]:
    return signed(saving.us.median), between(saving.us), signed(100 * saving.fraction.median, 1)


def interaction_words(saving: Saving) -> str:
    """How far the joint saving is from the sum of both, in one sentence."""
    us = saving.us
    interval = "" if us.low == us.high else f" ({between(us)})"
    much = f"Interaction of branches and PDL: {signed(us.median)} µs{interval}"
    if us.low <= 0 <= us.high:
        return f"{much}: together they save what each alone saves, added up."
    more = "less" if us.median < 0 else "more"
    return f"{much}: together they save {more} than each alone, added up."
