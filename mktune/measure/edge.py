"""What one edge is worth: where the consumer waits, with PDL off and on, and what that costs the producer.

The two ops alone, their configs fixed at each M. Of all edges only the one between them changes, and of all waits only
that of the kernel at its end: at entry, after the prologue, after weights are being fetched. With PDL off the edge is
full; with PDL on it is programmatic, and each place where the producer can trigger before its end is tried: the fastest
is the row. All graphs are measured in the same rounds, so that their differences are paired. The producer's own time is
from its first CTA's begin to its last CTA's end, noted by itself in a diagnostic build (`stamps`).

Then the fastest graph with PDL on meets the fastest with PDL off in rounds of their own, which decide what the edge
should be.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from mktune.backends.base import Backend, Bench, Problem
from mktune.backends.models import gpu_of
from mktune.errors import InputError
from mktune.graph.builtin import make_plan
from mktune.graph.workload import Workload, workload
from mktune.measure.admission import verify_all
from mktune.measure.stats import Interval, median, paired_difference
from mktune.ops.base import Op
from mktune.plan import GDC, EdgeName, KernelPlan, OpPlan, Plan
from mktune.shape import Shape

MS = (16, 32, 64, 128, 256)
OFF = "off"
_ROUNDS = 16

EdgePlans = dict[tuple[str, str], Plan]
"""(wait position of the consumer, trigger of the producer or OFF) → plan."""


@dataclass(frozen=True)
class EdgeRow:
    """One wait position at one M. Times in µs; `saved` and `step` are positive where time is saved.

    trigger            where the producer triggers with PDL on: the fastest of those tried
    off_us, on_us      span of both ops with PDL off and on
    saved_us           off - on, median of the pairs
    step_us            the wait position before this one - this one, both with PDL on; 0 for the first
    producer_off_us    how long the producer runs, likewise `producer_on_us`
    slowdown_us        producer_on_us - producer_off_us
    stamp_cost_us      span of the stamped graph - span, PDL on: what looking costs
    """

    m: int
    kv: int
    wait: str
    trigger: str
    off_us: float
    on_us: float
    saved_us: float
    step_us: float
    producer_off_us: float
    producer_on_us: float
    slowdown_us: float
    stamp_cost_us: float


@dataclass(frozen=True)
class EdgeChoice:
    """The fastest graph of each kind at one M, measured side by side.

    kind           the kind that is faster: full, programmatic, or either where neither is beyond doubt
    full           where the consumer waits in the fastest graph with PDL off
    programmatic   the same with PDL on, and where the producer triggers
    saved          span with PDL off - span with PDL on in µs, with its 95 % interval: below zero PDL costs time
    """

    m: int
    kind: str
    full: str
    programmatic: tuple[str, str]
    saved: Interval


@dataclass(frozen=True)
class EdgeTable:
    """`rows` by M, then by wait position; `choices` by M."""

    rows: tuple[EdgeRow, ...]
    choices: tuple[EdgeChoice, ...]


def edge_table(
    backend: Backend,
    workload_name: str,
    producer: str,
    consumer: str,
    ms: Sequence[int] = MS,
    kv: int = 8192,
    op_plans: dict[str, OpPlan] | None = None,
    scale_format: str | None = None,
) -> EdgeTable:
    """What the edge from `producer` to `consumer` is worth, under a scale format of the workload (None: its own).
    `op_plans` are configs other than the default ones.

    Raises InputError where the two ops have no edge; CandidateError where one of the graphs gives wrong results.
    """
    known = workload(workload_name, scale_format)
    with ExitStack() as opened:
        benches: list[tuple[Shape, Bench, EdgePlans]] = []
        for m in ms:
            shape = Shape.from_m(m, kv)
            plans = edge_plans(known, producer, consumer, shape, backend.device.arch, op_plans)
            bench = opened.enter_context(backend.open(Problem.of(known, (producer, consumer), shape)))
            bench.prepare(list(plans.values()))
            benches.append((shape, bench, plans))
        # Processes start and kernels compile side by side, and all of it ends before anything is timed.
        for shape, bench, plans in benches:
            verify_all(bench, {f"M {shape.m}, wait {wait}, trigger {at}": plan for (wait, at), plan in plans.items()})
        rows = [_rows(bench, plans, shape) for shape, bench, plans in benches]
        choices = [_choice(bench, plans, found) for (_, bench, plans), found in zip(benches, rows, strict=True)]
    return EdgeTable(tuple(row for found in rows for row in found), tuple(choices))


def edge_plans(
    known: Workload,
    producer: str,
    consumer: str,
    shape: Shape,
    arch: str,
    op_plans: dict[str, OpPlan] | None = None,
) -> EdgePlans:
    """(wait position, trigger) → plan, for each position that the consumer's kernel knows; trigger OFF: PDL off.

    Ops without a config in `op_plans` have their default one, with the row block that fits M.
    """
    ops = {name: _fitted(known.graph.calls[name].op, shape, arch) for name in (producer, consumer)}
    base = make_plan(known, (producer, consumer), shape, arch, "serial", {**ops, **(op_plans or {})})
    edge = _edge_between(known, base, producer, consumer)
    calls, (source, target) = known.graph.calls, edge
    suffix = target.removeprefix(consumer)
    waits = [wait for wait in GDC if wait in calls[consumer].op.gdc_values(base.op[consumer], suffix)]
    known_triggers = calls[producer].op.trigger_values(base.op[producer], source.removeprefix(producer))
    triggers = [OFF, *(trigger for trigger in known_triggers if trigger != "exit")]
    return {(wait, trigger): _placed(base, edge, wait, trigger) for wait in waits for trigger in triggers}


def _fitted(op: Op, shape: Shape, arch: str) -> OpPlan:
    """The default config, where it has a `block_m` with the smallest one that holds all rows, else the largest."""
    plan = op.default(arch)
    config = dict(plan.config)
    device = gpu_of(arch)
    sizes = sorted(int(size) for size in op.choices(arch)[plan.impl].get("block_m", ()))
    for size in [size for size in sizes if size >= shape.m][:1] + sizes[::-1]:
        fitted = OpPlan.of(plan.impl, {**config, "block_m": size})
        kernels = tuple(KernelPlan() for _ in op.kernels(fitted))
        if not op.violations(fitted, kernels, shape, device):
            return fitted
    return plan


def _edge_between(known: Workload, plan: Plan, producer: str, consumer: str) -> EdgeName:
    calls = known.graph.calls
    sources = calls[producer].kernel_names(plan.op[producer])
    targets = calls[consumer].kernel_names(plan.op[consumer])
    found = [edge for edge, _ in plan.edges if edge[0] in sources and edge[1] in targets]
    if not found:
        raise InputError(f"no edge leads from {producer} to {consumer}")
    return found[0]


def _placed(base: Plan, edge: EdgeName, wait: str, trigger: str) -> Plan:
    source, target = edge
    kernels = dict(base.kernels)
    kernels[source] = replace(kernels[source], trigger="exit" if trigger == OFF else trigger)
    kernels[target] = replace(kernels[target], gdc=wait)
    edges = {**base.edge, edge: "full" if trigger == OFF else "programmatic"}
    return replace(base, kernels=tuple(kernels.items()), edges=tuple(edges.items())).canonical()


def _rows(bench: Bench, plans: EdgePlans, shape: Shape) -> list[EdgeRow]:
    samples, _ = bench.rounds({f"{wait} {trigger}": plan for (wait, trigger), plan in plans.items()}, _ROUNDS)
    rows: list[EdgeRow] = []
    before: Sequence[float] = ()
    for wait in dict.fromkeys(wait for wait, _ in plans):
        spans = {trigger: samples[f"{wait} {trigger}"] for at, trigger in plans if at == wait}
        off = spans.pop(OFF)
        best = min(spans, key=lambda trigger: median(spans[trigger]))
        on = spans[best]
        alone, _ = _producer_time(bench, plans[wait, OFF])
        beside, stamped_span = _producer_time(bench, plans[wait, best])
        rows.append(
            EdgeRow(
                m=shape.m,
                kv=shape.kv,
                wait=wait,
                trigger=best,
                off_us=median(off),
                on_us=median(on),
                saved_us=_gain(off, on),
                step_us=_gain(before, on) if before else 0.0,
                producer_off_us=alone,
                producer_on_us=beside,
                slowdown_us=beside - alone,
                stamp_cost_us=stamped_span - median(on),
            )
        )
        before = on
    return rows


def _producer_time(bench: Bench, plan: Plan) -> tuple[float, float]:
    """How long the first kernel of `plan` runs, and the span with its stamps, in µs."""
    root = plan.order[0]
    found = bench.stamps(plan, [root])
    begin, end = found.kernels[root]
    return end - begin, found.span_us


def _choice(bench: Bench, plans: EdgePlans, rows: Sequence[EdgeRow]) -> EdgeChoice:
    """`rows` are those of one M. They were chosen for being the fastest, so their samples must not decide."""
    full, on = min(rows, key=lambda row: row.off_us), min(rows, key=lambda row: row.on_us)
    pair = {"full": plans[full.wait, OFF], "programmatic": plans[on.wait, on.trigger]}
    samples, _ = bench.rounds(pair, _ROUNDS)
    saved = paired_difference(samples["full"], samples["programmatic"])
    kind = "programmatic" if saved.low > 0 else "full" if saved.high < 0 else "either"
    return EdgeChoice(on.m, kind, full.wait, (on.wait, on.trigger), saved)


def _gain(before: Sequence[float], after: Sequence[float]) -> float:
    return median([a - b for a, b in zip(before, after, strict=True)])
