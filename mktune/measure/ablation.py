"""What branches and programmatic launch are worth: the four built-in structures on the same kernels.

Kernels, tiles and arithmetic are equal in all cells; what differs is whether independent ops may run side by side and
whether a kernel may begin before the one it depends on has ended. All cells are measured in the same rounds, so that
every saving is a median of paired differences. A cell is a graph with other kernels' waits and triggers too: with PDL
each kernel waits as late as it can (see `mktune.graph.builtin`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mktune.backends.base import Backend, Problem
from mktune.device import Device
from mktune.errors import PlanError
from mktune.graph.builtin import MODES, builtin_plans
from mktune.graph.fused import fused_among, kernel_ops
from mktune.graph.workload import Workload, graph_of, workload
from mktune.measure.admission import refuse_invalid, verify_all
from mktune.measure.stats import Interval, bootstrap_median, median_interval
from mktune.phases import Phases
from mktune.plan import OpPlan, Plan
from mktune.shape import Shape
from mktune.trial import Policy

SERIAL, PDL, BRANCHES, BOTH = MODES
PLAN = "plan"
"""Name of the row of a plan that is measured beside the four cells."""


@dataclass(frozen=True)
class Saving:
    """Time saved against `serial`, positive where there is any: median of the pairs with its 95 % interval.

    us        microseconds per layer
    fraction  of the span of `serial`
    """

    us: Interval
    fraction: Interval


@dataclass(frozen=True)
class Ablation:
    """One shape's cells.

    spans        cell (and PLAN) → span in µs per layer
    savings      every cell but `serial` (and PLAN) → what it saves
    interaction  saving of both factors together - sum of the two alone: below zero where they save the same time
    plans        cell → the plan that was measured
    policy       how; seconds: wall time by phase
    """

    shape: Shape
    spans: dict[str, Interval]
    savings: dict[str, Saving]
    interaction: Saving
    plans: dict[str, Plan]
    policy: Policy
    seconds: dict[str, float]


def ablate(
    backend: Backend,
    name: str,
    ops: Sequence[str] | None,
    shape: Shape,
    plan: Plan | None = None,
    seed: int = 0,
    scale_format: str | None = None,
) -> Ablation:
    """The four cells of the workload `name`, under a scale format of it (None: its own), at `shape`: with default
    configs or those of `plan`, and the kernels that it fuses.

    `plan` itself is a fifth row where it computes the same ops. Raises InputError for ops, a shape or a plan that do
    not go together, CandidateError where a cell fails or gives wrong results.
    """
    known = workload(name, scale_format)
    cells = cell_plans(name, ops, shape, backend.device, plan, scale_format)
    seconds = Phases()
    problem = Problem.of(known, next(iter(cells.values())).op_names, shape, seed)
    with backend.open(problem) as bench:
        bench.prepare(list(cells.values()))
        with seconds("verify"):
            verify_all(bench, cells)
        with seconds("measure"):
            samples, _ = bench.paired(cells)
        policy = bench.policy
    return Ablation(
        shape=shape,
        spans={cell: median_interval(samples[cell]) for cell in cells},
        savings={cell: saving(samples, {cell: 1}) for cell in cells if cell != SERIAL},
        interaction=saving(samples, {BOTH: 1, PDL: -1, BRANCHES: -1}),
        plans=cells,
        policy=policy,
        seconds=seconds.seconds,
    )


def cell_plans(
    name: str,
    ops: Sequence[str] | None,
    shape: Shape,
    device: Device,
    plan: Plan | None = None,
    scale_format: str | None = None,
) -> dict[str, Plan]:
    """Cell → its plan, in the order of MODES, and `plan` at that shape as PLAN. Raises as `ablate` does."""
    known = workload(name, scale_format)
    op_plans = configs_of(plan, known, ops) if plan is not None else None
    chosen = tuple(op_plans) if op_plans else ops
    fused = fused_of(plan, chosen) if plan is not None else ()
    cells = builtin_plans(known, chosen, shape, device.arch, op_plans, fused)
    if plan is not None and plan.op.keys() == cells[SERIAL].op.keys():
        cells[PLAN] = at_shape(plan, shape)
    refuse_invalid(cells, device)
    return cells


def configs_of(plan: Plan, known: Workload, ops: Sequence[str] | None) -> dict[str, OpPlan]:
    """Configs of `ops` (None: all that it has) in `plan`. Raises PlanError where it has none for one of them, or is of
    another workload or scale format."""
    if plan.workload != known.name:
        raise PlanError(f"plan {plan.short_id} is one of {plan.workload}, not of {known.name}")
    if plan.scale_format != known.scale_format:
        raise PlanError(f"plan {plan.short_id} has scale_format {plan.scale_format}, not {known.scale_format}")
    missing = [op for op in ops or () if op not in plan.op]
    if missing:
        raise PlanError(f"plan {plan.short_id} has no {', '.join(missing)}; it computes {', '.join(plan.op_names)}")
    return {op: plan.op[op] for op in ops or plan.op_names}


def fused_of(plan: Plan, ops: Sequence[str] | None = None) -> tuple[str, ...]:
    """The fused kernels of `plan` whose ops are all among `ops` (None: all that it has). Raises PlanError where its
    configs do not make one."""
    fused = fused_among(plan.kernel)
    of = kernel_ops(graph_of(plan), plan.op, fused) if fused else {}
    return tuple(name for name in fused if ops is None or set(of[name]) <= set(ops))


def at_shape(plan: Plan, shape: Shape) -> Plan:
    """The same plan for another shape; the same object where it is its own."""
    if plan.shape == shape:
        return plan
    kv_range = graph_of(plan).served_kv(shape)
    return replace(plan, shape=shape, m_range=shape.served_m, kv_range=kv_range).canonical()


def saving(samples: Mapping[str, Sequence[float]], cells: Mapping[str, int]) -> Saving:
    """Σ factor × (serial - cell) over `cells`, of each pair."""
    serial = samples[SERIAL]
    saved = [sum(factor * (base - samples[cell][i]) for cell, factor in cells.items()) for i, base in enumerate(serial)]
    return Saving(
        bootstrap_median(saved),
        bootstrap_median([us / base for us, base in zip(saved, serial, strict=True)]),
    )
