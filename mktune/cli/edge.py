"""`mktune edge`: what programmatic launch is worth between two ops, by where the consumer waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from mktune.cli import render
from mktune.cli.backend import choose, require_kernels
from mktune.cli.documents import device_document
from mktune.cli.options import (
    DEFAULT_WORKLOAD,
    BackendName,
    Json,
    OneKv,
    Rows,
    ScaleFormat,
    SimGpu,
    WorkloadOption,
    example,
    numbers,
)
from mktune.errors import InputError
from mktune.graph.workload import workload as known_workload
from mktune.shape import Shape

if TYPE_CHECKING:
    from mktune.measure.edge import EdgeChoice, EdgeRow

HEADINGS = {
    "off_us": "off µs",
    "on_us": "on µs",
    "saved_us": "saved",
    "step_us": "step",
    "producer_off_us": "prod. off",
    "producer_on_us": "prod. on",
    "slowdown_us": "slow-down",
    "stamp_cost_us": "stamps",
}


def add(app: typer.Typer) -> None:
    """Register this group's commands."""
    app.command(**example("mktune edge A0 B0 --m 16,32,64,128,256"))(edge)


def edge(
    producer: Annotated[str, typer.Argument(metavar="PRODUCER", help="The op that the edge leaves.")],
    consumer: Annotated[str, typer.Argument(metavar="CONSUMER", help="The op that the edge enters.")],
    m: Rows = "16,32,64,128,256",
    kv: OneKv = 8192,
    workload: WorkloadOption = DEFAULT_WORKLOAD,
    backend: BackendName = "auto",
    sim_gpu: SimGpu = "h200",
    scale_format: ScaleFormat = None,
    as_json: Json = False,
) -> None:
    """Measure one edge: the consumer waits at entry, after the prologue, with prefetch; PDL off and on.

    saved: off − on. step: the wait above − this one, PDL on. slow-down: the producer's own time, on − off.
    trigger: where the producer triggers with PDL on, the fastest of those tried.
    Last, what the edge should be at each M: the fastest graph of each kind, measured side by side.
    """
    from mktune.measure.edge import edge_plans, edge_table

    known = known_workload(workload, scale_format)
    for op in (producer, consumer):
        if op not in known.ops:
            raise InputError(f"unknown op {op!r}; ops of {workload}: {', '.join(known.ops)}")
    ms = numbers("--m", m)
    for rows in ms:
        edge_plans(known, producer, consumer, Shape.from_m(rows, kv), "sm_90a")
    chosen = choose(backend, sim_gpu)
    require_kernels(chosen, known, (producer, consumer))
    table = edge_table(chosen, workload, producer, consumer, ms, kv, scale_format=known.scale_format)
    if as_json:
        found = {name: [asdict(entry) for entry in getattr(table, name)] for name in ("rows", "choices")}
        between = {"producer": producer, "consumer": consumer, "scale_format": known.scale_format}
        render.document({**between, **device_document(chosen), **found})
    else:
        where = f"{chosen.device.name}{' simulated' if chosen.simulated else ''}"
        render.folded(f"{known.full_name} {producer} → {consumer}, KV {kv}, {where}, times in µs", "bold")
        print_rows(table.rows)
        print_choices(table.choices)


def print_rows(table: Sequence[EdgeRow]) -> None:
    """The table, one line for each M and wait."""
    columns = [render.Column("M", right=True, whole=True)]
    columns += [render.Column(name, whole=True) for name in ("wait", "trigger")]
    columns += [render.Column(name, right=True, whole=True) for name in HEADINGS.values()]
    render.table(
        columns, [(row.m, row.wait, row.trigger, *(f"{getattr(row, name):.2f}" for name in HEADINGS)) for row in table]
    )


def print_choices(choices: Sequence[EdgeChoice]) -> None:
    """What the edge should be, one line for each M."""
    render.line("")
    columns = [render.Column("M", right=True, whole=True), render.Column("edge", whole=True)]
    columns += [render.Column(name, right=True, whole=True) for name in ("PDL saves", "95 %")]
    columns += [render.Column(name, whole=True) for name in ("full: wait", "programmatic: wait/trigger")]
    render.table(columns, [_choice_cells(choice) for choice in choices])


def _choice_cells(choice: EdgeChoice) -> list[object]:
    saved = choice.saved
    interval = f"{saved.low:.2f} to {saved.high:.2f}"
    return [choice.m, choice.kind, f"{saved.median:.2f}", interval, choice.full, "/".join(choice.programmatic)]
