"""`mktune show`: one plan as people read it: ops, streams, edges and where each kernel waits and triggers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from mktune.backends.models import gpu_of
from mktune.cli import render
from mktune.cli.options import (
    DEFAULT_WORKLOAD,
    Arch,
    Json,
    OneKv,
    OneM,
    Ops,
    PlanName,
    ScaleFormat,
    StoreUrl,
    Tokens,
    WorkloadOption,
    example,
    known_arch,
    names,
)
from mktune.cli.plans import BuiltinAt, Found, find, refuse_what_makes_a_builtin
from mktune.cli.summary import between, config, full_name, shape_words, signed, structure
from mktune.cli.verdict import judge
from mktune.errors import MktuneError
from mktune.measure.stats import Interval
from mktune.plan import Plan
from mktune.shape import Shape
from mktune.trial import BATCH_INVARIANT, DETERMINISTIC, Loss, Winner

PUT_BACK = {
    "tiles": "implementations and tiles",
    "branches": "all kernels on one stream",
    "pdl": "every edge and chain full",
    "placement": "waits at entry, triggers at exit",
    "order": "call order, no priorities",
    "fusion": "every kernel a launch of its own",
}
"""Group of choices → its default, in the order of the table."""


def add(app: typer.Typer) -> None:
    """Register this group's commands."""
    app.command(
        **example(
            "mktune show branches+pdl --m 16 --kv 8192", "mktune show 3f9a1c2b7d10", "mktune show plan.json --check"
        )
    )(show)


def show(
    context: typer.Context,
    plan: PlanName,
    workload: WorkloadOption = DEFAULT_WORKLOAD,
    ops: Ops = None,
    m: OneM = 16,
    kv: OneKv = 8192,
    tokens_per_request: Tokens = None,
    arch: Arch = "sm_90a",
    scale_format: ScaleFormat = None,
    store: StoreUrl = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only say whether it may be built for --arch, or every reason why not.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Draw a plan: ops and configs, streams, edges, waits and triggers; of a winner also where its gain comes from."""
    refuse_what_makes_a_builtin(context, plan, set() if check else {"arch"})
    size = Shape.from_m(m, kv, tokens_per_request)
    at = BuiltinAt(workload, names("--ops", ops), size, known_arch(arch), scale_format)
    found = find(plan, at, store)
    if check:
        if not judge(found.plan, gpu_of(arch), as_json):
            raise typer.Exit(MktuneError.exit_code)
    elif as_json:
        render.document(document(found))
    else:
        _print(found)


def document(found: Found) -> dict[str, object]:
    """What is known of a plan, as JSON data."""
    measurement = found.winner.measurement.to_dict() if found.winner else None
    return {
        "plan_id": found.plan.plan_id,
        "origin": found.origin,
        "simulated": found.simulated,
        "measurement": measurement,
        "evidence": dict(found.winner.extra) if found.winner else None,
        "attribution": {name: asdict(loss) for name, loss in found.winner.attribution} if found.winner else None,
        "plan": found.plan.to_dict(),
    }


def _print(found: Found) -> None:
    from mktune.cli.drawing import LEGEND, draw

    plan = found.plan
    mark = "  simulated" if found.simulated else ""
    render.folded(f"plan {plan.plan_id}{mark}", "bold")
    name = full_name(plan.workload, plan.scale_format)
    render.folded(f"{name} {','.join(plan.op_names)}, {shape_words(plan.shape)}, {structure(plan)}")
    render.folded(found.origin)
    if found.winner:
        measured = found.winner.measurement
        interval = f"{measured.low_us:.2f} to {measured.high_us:.2f}"
        render.folded(f"span {measured.span_us:.2f} µs ({interval}){mark}, ×{1 / found.winner.ratio:.2f} of serial")
        for name in (DETERMINISTIC, BATCH_INVARIANT):
            if said := dict(found.winner.extra).get(name):
                render.folded(f"{name}: {said}")
    render.line()
    _ops(plan)
    render.line()
    for text in draw(plan):
        render.line(text)
    render.line()
    render.folded(LEGEND)
    render.line()
    _kernels(plan)
    if found.winner and found.winner.attribution:
        render.line()
        print_attribution(found.winner)


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


def print_attribution(winner: Winner) -> None:
    """What the winner loses where a group of its choices is put back to the default, one group at a time."""
    losses = dict(winner.attribution)
    serial = dict(winner.builtins).get("serial")
    gain = serial - winner.measurement.span_us if serial else 0.0
    render.folded("where the gain comes from: one group put back to its default, all else kept", "bold")
    columns = [render.Column("group", whole=True), render.Column("put back to", whole=True)]
    columns += [render.Column(name, right=True, whole=True) for name in ("span µs", "loss µs", "95 %", "of the gain")]
    known = [name for name in PUT_BACK if name in losses]
    rows = [
        (name, PUT_BACK.get(name, ""), *_loss(losses[name], gain)) for name in (*known, *(set(losses) - set(known)))
    ]
    render.table([*columns, render.Column("note")], rows)
    if serial and not winner.kept_baseline:
        paired = "a loss is the median of differences to this plan in the same rounds, measured after its span above"
        render.folded(f"gain over serial {signed(gain)} µs; losses overlap and need not add up to it; {paired}")


def _loss(loss: Loss, gain: float) -> tuple[str, ...]:
    share = f"{signed(100 * loss.loss_us / gain, 0)} %" if gain > 0 else "–"
    interval = between(Interval(loss.loss_us, loss.low_us, loss.high_us))
    return signed(loss.span_us), signed(loss.loss_us), interval, share, loss.note
