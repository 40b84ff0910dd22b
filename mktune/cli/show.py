"""`mktune show`: one plan as people read it: ops, streams, edges and where each kernel waits and triggers."""

from __future__ import annotations

import typer

from mktune.cli import render
from mktune.cli.options import (
    DEFAULT_WORKLOAD,
    Arch,
    Json,
    OneKv,
    OneM,
    Ops,
    PlanName,
    StoreUrl,
    Tokens,
    WorkloadOption,
    example,
    known_arch,
    names,
)
from mktune.cli.plans import BuiltinAt, Found, find
from mktune.cli.summary import config, shape_words, structure
from mktune.errors import InputError
from mktune.graph.builtin import MODES
from mktune.plan import Plan
from mktune.shape import Shape


def add(app: typer.Typer) -> None:
    """Register this group's commands."""
    app.command(**example("mktune show branches+pdl --m 16 --kv 8192", "mktune show 3f9a1c2b7d10"))(show)


def show(
    context: typer.Context,
    plan: PlanName,
    workload: WorkloadOption = DEFAULT_WORKLOAD,
    ops: Ops = None,
    m: OneM = 16,
    kv: OneKv = 8192,
    tokens_per_request: Tokens = None,
    arch: Arch = "sm_90a",
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Draw a plan: ops and configs, streams, edges, waits and triggers."""
    if plan not in MODES:
        _refuse(context)
    at = BuiltinAt(workload, names("--ops", ops), Shape.from_m(m, kv, tokens_per_request), known_arch(arch))
    found = find(plan, at, store)
    if as_json:
        render.document(document(found))
    else:
        _print(found)


def _refuse(context: typer.Context) -> None:
    """Raises InputError for options that only make a built-in plan: a stored one has its own ops, shape and configs."""
    made = {"workload", "ops", "m", "kv", "tokens_per_request", "arch"}
    given = [
        f"--{name.replace('_', '-')}"
        for name in context.params
        if name in made and str(getattr(context.get_parameter_source(name), "name", "")) == "COMMANDLINE"
    ]
    if given:
        raise InputError(f"{', '.join(given)} only make a built-in plan ({', '.join(MODES)}); leave them out here")


def document(found: Found) -> dict[str, object]:
    """What is known of a plan, as JSON data."""
    measurement = found.winner.measurement.to_dict() if found.winner else None
    return {
        "plan_id": found.plan.plan_id,
        "origin": found.origin,
        "simulated": found.simulated,
        "measurement": measurement,
        "plan": found.plan.to_dict(),
    }


def _print(found: Found) -> None:
    from mktune.cli.drawing import LEGEND, draw

    plan = found.plan
    mark = "  simulated" if found.simulated else ""
    render.folded(f"plan {plan.plan_id}{mark}", "bold")
    render.folded(f"{plan.workload} {','.join(plan.op_names)}, {shape_words(plan.shape)}, {structure(plan)}")
    render.folded(found.origin)
    if found.winner:
        measured = found.winner.measurement
        interval = f"{measured.low_us:.2f} to {measured.high_us:.2f}"
        render.folded(f"span {measured.span_us:.2f} µs ({interval}){mark}, ×{1 / found.winner.ratio:.2f} of serial")
    render.line()
    _ops(plan)
    render.line()
    for text in draw(plan):
        render.line(text)
    render.line()
    render.folded(LEGEND)
    render.line()
    _kernels(plan)


def _ops(plan: Plan) -> None:
    rows = [(name, config(op)) for name, op in plan.ops]
    render.table([render.Column("op", whole=True), render.Column("implementation and config")], rows)


def _kernels(plan: Plan) -> None:
    columns = [render.Column(name, whole=True) for name in ("kernel", "wait", "trigger")]
    columns += [render.Column(name, right=True) for name in ("stream", "priority", "L2 prefetch")]
    rows = []
    for name in plan.order:
        kernel = plan.kernel[name]
        prefetch = f"{kernel.l2_prefetch_bytes} B" if kernel.l2_prefetch_bytes else "–"
        rows.append((name, kernel.gdc, kernel.trigger, kernel.stream, kernel.priority, prefetch))
    render.table(columns, rows)
