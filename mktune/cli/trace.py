"""`mktune trace`: when the kernels of a plan run, which of them the layer's time hung on, and what looking costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mktune.cli import render
from mktune.cli.backend import choose
from mktune.cli.documents import interval_document, shape_document
from mktune.cli.options import (
    DEFAULT_WORKLOAD,
    BackendName,
    InputSeed,
    Json,
    OneKv,
    OneM,
    Ops,
    PlanName,
    ScaleFormat,
    SimGpu,
    StoreUrl,
    Tokens,
    WorkloadOption,
    example,
    names,
)
from mktune.cli.picture import check_target, require_matplotlib, writing
from mktune.cli.plans import BuiltinAt, find, refuse_what_makes_a_builtin
from mktune.cli.summary import between, count, full_name, shape_words, signed, structure
from mktune.shape import Shape

if TYPE_CHECKING:
    from mktune.backends.base import Backend
    from mktune.measure.stats import Interval
    from mktune.plan import Plan
    from mktune.trace import PathStep, Trace

WIDE = 100  # cells of a timeline that goes to a file


def add(app: typer.Typer) -> None:
    """Register this group's commands."""
    app.command(
        **example(
            "mktune trace branches+pdl --m 16 --kv 8192",
            "mktune trace 3f9a1c2b7d10 --out layer.json --png layer.png",
        )
    )(trace)


def trace(
    context: typer.Context,
    plan: PlanName,
    workload: WorkloadOption = DEFAULT_WORKLOAD,
    ops: Ops = None,
    m: OneM = 16,
    kv: OneKv = 8192,
    tokens_per_request: Tokens = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="Write the trace for Perfetto or chrome://tracing.")
    ] = None,
    png: Annotated[str | None, typer.Option("--png", metavar="FILE", help="Draw it; needs matplotlib.")] = None,
    backend: BackendName = "auto",
    sim_gpu: SimGpu = "h200",
    seed: InputSeed = 0,
    scale_format: ScaleFormat = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Show when each kernel of a plan begins, waits, triggers and ends, and the critical path; nothing is stored.

    A diagnostic build notes the times of every CTA; what that costs is measured in the same rounds, and said. slack: by
    how much the kernel could have run later without the layer ending later, as far as edges tell.
    """
    refuse_what_makes_a_builtin(context, plan)
    targets = _targets(out, png)
    chosen = choose(backend, sim_gpu)
    size = Shape.from_m(m, kv, tokens_per_request)
    at = BuiltinAt(workload, names("--ops", ops), size, chosen.device.arch, scale_format)
    traced = find(plan, at, store).plan
    found = record(traced, chosen, seed)
    _write(targets, found, traced)
    if as_json:
        render.document(document(found, traced, targets))
    else:
        print_trace(found, traced)
        for target in targets.values():
            render.folded(f"written: {target}")


def record(plan: Plan, backend: Backend, seed: int) -> Trace:
    """The trace of a plan, verified first. Raises PlanError where a check refuses it, CandidateError where it fails."""
    from mktune.backends.base import Problem
    from mktune.graph.workload import workload
    from mktune.measure.admission import refuse_invalid, verify_all

    named = {f"plan {plan.short_id}": plan}
    refuse_invalid(named, backend.device)
    known = workload(plan.workload, plan.scale_format)
    with backend.open(Problem.of(known, plan.op_names, plan.shape, seed)) as bench:
        bench.prepare([plan])
        verify_all(bench, named)
        return bench.trace(plan)


def document(trace: Trace, plan: Plan, targets: dict[str, Path]) -> dict[str, Any]:
    """The trace without its single CTAs, what noting costs, and the files that hold the rest, as JSON data."""
    from mktune.cli.sm_activity import mean, sm_activity

    active, working = mean(sm_activity(trace))
    return {
        **trace.to_dict(),
        "workload": plan.workload,
        "scale_format": plan.scale_format,
        **shape_document(plan.shape),
        "noting_costs": interval_document(cost(trace)),
        "mean_sms": {"active": active, "working": working},
        "files": {kind: str(path) for kind, path in targets.items()},
    }


def cost(trace: Trace) -> Interval:
    """Span of the build that notes times, less that of the plain one, in µs."""
    from mktune.measure.stats import paired_difference

    return paired_difference(trace.stamped_us, trace.plain_us)


def print_trace(trace: Trace, plan: Plan) -> None:
    """Timeline, kernels, critical path and what noting costs."""
    from mktune.cli.timeline_text import LEGEND, timeline

    mark = " simulated" if trace.simulated else ""
    render.folded(f"plan {plan.plan_id}{mark}", "bold")
    name = full_name(plan.workload, plan.scale_format)
    render.folded(f"{name} {','.join(plan.op_names)}, {shape_words(plan.shape)}, {structure(plan)}")
    layers = "one layer as modelled" if trace.simulated else f"medians over {count(trace.replays, 'layer')}"
    render.folded(f"{trace.gpu}{mark}, {layers}, times in µs from the layer's first begin")
    render.line()
    for line in timeline(trace, render.output_width(WIDE)):
        render.line(line)
    render.folded(LEGEND)
    render.line()
    _print_kernels(trace)
    render.line()
    _print_path(trace)
    render.line()
    render.folded(sms_words(trace))
    render.folded(cost_words(trace))


def _print_kernels(trace: Trace) -> None:
    columns = [render.Column("kernel", whole=True)]
    heads = ("stream", "CTAs", "begin", "placed", "ready", "trigger", "end", "slack")
    columns += [render.Column(name, right=True, whole=True) for name in heads]
    rows = []
    for kernel in trace.kernels:
        times = kernel.times
        triggered = "–" if times.triggered is None else _us(times.triggered)
        slack = "path" if kernel.name in trace.path.kernels else _us(trace.path.slack[kernel.name])
        moments = (_us(times.begin), _us(times.placed), _us(times.ready), triggered, _us(times.end))
        rows.append((kernel.name, kernel.stream, kernel.grid, *moments, slack))
    render.table(columns, rows)


def _print_path(trace: Trace) -> None:
    path = trace.path
    render.folded(f"critical path {' → '.join(path.kernels)}", "bold")
    columns = [render.Column(name, whole=True) for name in ("kernel", "was held at its", "by", "edge")]
    columns += [render.Column(name, right=True, whole=True) for name in ("then µs", "held µs", "%")]
    render.table(columns, [_step(step, path.length_us) for step in path.steps])
    between_us = sum(step.after_us for step in path.steps)
    agreement = "" if trace.replays < 2 else f"; {100 * path.agreement:.0f} % of the layers have this path"
    parts = f"{_us(path.length_us - between_us)} in kernels, {_us(between_us)} from one to the next"
    render.folded(f"{_us(path.length_us)} µs: {parts}{agreement}")


def _step(step: PathStep, length: float) -> tuple[str, ...]:
    by = f"{step.source} {step.event}" if step.source else "–"
    at = {"late": "last CTA"}.get(step.at, step.at) if step.source else "–"
    share = f"{100 * (step.after_us + step.held_us) / length:.0f}"
    return step.kernel, at, by, step.edge.replace("_", " ") or "–", _us(step.after_us), _us(step.held_us), share


def sms_words(trace: Trace) -> str:
    """How many SMs are in use, on average over the layer."""
    from mktune.cli.sm_activity import mean, sm_activity

    active, working = mean(sm_activity(trace))
    return (
        f"SMs in use, mean of the layer: {100 * active / trace.sms:.0f} % hold a CTA, "
        f"{100 * working / trace.sms:.0f} % one behind its wait"
    )


def cost_words(trace: Trace) -> str:
    """What noting times costs, in one sentence."""
    from mktune.measure.stats import median

    span = f"span {median(trace.plain_us):.2f} µs"
    if trace.simulated:
        return f"{span} as modelled; a model's times cost nothing"
    found = cost(trace)
    share = 100 * found.median / median(trace.plain_us)
    return (
        f"{span} as it is, {median(trace.stamped_us):.2f} with notes, in the same rounds: "
        f"noting costs {signed(found.median)} µs ({between(found)}), {signed(share, 1)} %"
    )


def _us(value: float) -> str:
    return signed(value)


def _targets(out: str | None, png: str | None) -> dict[str, Path]:
    """Where to write, by kind. Raises before anything is measured: InputError, SetupError without matplotlib."""
    targets = {kind: Path(name) for kind, name in (("trace", out), ("png", png)) if name is not None}
    for path in targets.values():
        check_target(path)
    if "png" in targets:
        require_matplotlib()
    return targets


def _write(targets: dict[str, Path], trace: Trace, plan: Plan) -> None:
    from mktune.cli.timeline_json import chrome_json
    from mktune.cli.timeline_png import draw_png

    mark = ", simulated" if trace.simulated else ""
    name = full_name(plan.workload, plan.scale_format)
    title = f"{plan.short_id}  {name}, {shape_words(plan.shape)}, {trace.gpu}{mark}"
    for kind, path in targets.items():
        with writing(path):
            if kind == "png":
                draw_png(trace, title, path)
            else:
                path.write_text(chrome_json(trace), encoding="utf-8")
