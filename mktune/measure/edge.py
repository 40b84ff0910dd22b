"""What one edge is worth: where the consumer waits, with PDL off and on, and what that costs the producer.

The two ops alone, their configs fixed. Of all edges only the one between them changes, and of all waits only that of
the kernel at its end: at entry, after the prologue, after weights are being fetched. With PDL off the edge is full;
with PDL on it is programmatic and the producer triggers at its start. All six graphs are measured in the same rounds,
so that their differences are paired. The producer's own time comes from stamps around it (`stamps`): they hold two
boundaries as well, hence only differences of such times are shown as slow-down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mktune.backends.base import Problem
from mktune.backends.cuda import CudaBackend
from mktune.errors import CandidateError, InputError
from mktune.graph.builtin import make_plan
from mktune.graph.workload import Workload, workload
from mktune.measure.cuda_bench import CudaBench
from mktune.measure.stats import median
from mktune.plan import EdgeName, OpPlan, Plan
from mktune.shape import Shape

WAITS = ("entry", "prologue", "prefetch")
MS = (16, 32, 64, 128, 256)
_ROUNDS = 31


@dataclass(frozen=True)
class EdgeRow:
    """One wait position at one M. Times in µs; `saved` and `step` are positive where time is saved.

    off_us, on_us      span of both ops with PDL off and on
    saved_us           off - on, median of the pairs
    step_us            the wait position before this one - this one, both with PDL on; 0 for the first
    producer_off_us    time between the stamps around the producer, likewise `producer_on_us`
    slowdown_us        producer_on_us - producer_off_us
    stamp_cost_us      span of the stamped graph - span, PDL on: what looking costs
    """

    m: int
    kv: int
    wait: str
    off_us: float
    on_us: float
    saved_us: float
    step_us: float
    producer_off_us: float
    producer_on_us: float
    slowdown_us: float
    stamp_cost_us: float


def edge_table(
    backend: CudaBackend,
    producer: str = "A0",
    consumer: str = "B0",
    ms: Sequence[int] = MS,
    kv: int = 8192,
    workload_name: str = "glm52_attention_prefix",
    op_plans: dict[str, OpPlan] | None = None,
) -> list[EdgeRow]:
    """The table, rows by M, then by wait position. `op_plans` are configs other than the default ones.

    Raises InputError where the two ops have no edge; CandidateError where one of the graphs gives wrong results.
    """
    rows = []
    for m in ms:
        shape = Shape.from_m(m, kv)
        plans = edge_plans(workload(workload_name), producer, consumer, shape, backend.device.arch, op_plans)
        with backend.open(Problem(workload_name, (producer, consumer), shape)) as bench:
            rows += _rows(bench, plans, shape)
    return rows


def edge_plans(
    known: Workload,
    producer: str,
    consumer: str,
    shape: Shape,
    arch: str,
    op_plans: dict[str, OpPlan] | None = None,
) -> dict[tuple[str, bool], Plan]:
    """(wait position, PDL on) → plan, for each position that the consumer's kernel knows."""
    base = make_plan(known, (producer, consumer), shape, arch, "serial", op_plans)
    edge = _edge_between(known, base, producer, consumer)
    call = known.graph.calls[consumer]
    suffix = edge[1].removeprefix(consumer)
    positions = [wait for wait in WAITS if wait in call.op.gdc_values(base.op[consumer], suffix)]
    return {(wait, on): _placed(base, edge, wait, on) for wait in positions for on in (False, True)}


def _edge_between(known: Workload, plan: Plan, producer: str, consumer: str) -> EdgeName:
    calls = known.graph.calls
    sources = calls[producer].kernel_names(plan.op[producer])
    targets = calls[consumer].kernel_names(plan.op[consumer])
    found = [edge for edge, _ in plan.edges if edge[0] in sources and edge[1] in targets]
    if not found:
        raise InputError(f"no edge leads from {producer} to {consumer}")
    return found[0]


def _placed(base: Plan, edge: EdgeName, wait: str, on: bool) -> Plan:
    source, target = edge
    kernels = dict(base.kernels)
    kernels[source] = replace(kernels[source], trigger="start" if on else "exit")
    kernels[target] = replace(kernels[target], gdc=wait)
    edges = {**base.edge, edge: "programmatic" if on else "full"}
    return replace(base, kernels=tuple(kernels.items()), edges=tuple(edges.items())).canonical()


def _rows(bench: CudaBench, plans: dict[tuple[str, bool], Plan], shape: Shape) -> list[EdgeRow]:
    bench.prepare(list(plans.values()))
    for (wait, pdl), plan in plans.items():
        if wrong := bench.verify(plan):
            raise CandidateError("wrong_result", f"wait at {wait}, PDL {'on' if pdl else 'off'}: {wrong}")
    samples, _ = bench.rounds({f"{wait} {pdl}": plan for (wait, pdl), plan in plans.items()}, _ROUNDS)
    rows: list[EdgeRow] = []
    before: Sequence[float] = ()
    for wait in dict.fromkeys(wait for wait, _ in plans):
        off, on = samples[f"{wait} False"], samples[f"{wait} True"]
        root = plans[wait, True].order[0]
        alone, beside = (bench.kernel_time(plans[wait, pdl], root) for pdl in (False, True))
        rows.append(
            EdgeRow(
                m=shape.m,
                kv=shape.kv,
                wait=wait,
                off_us=median(off),
                on_us=median(on),
                saved_us=_gain(off, on),
                step_us=_gain(before, on) if before else 0.0,
                producer_off_us=alone["kernel_us"],
                producer_on_us=beside["kernel_us"],
                slowdown_us=beside["kernel_us"] - alone["kernel_us"],
                stamp_cost_us=beside["stamped_span_us"] - median(on),
            )
        )
        before = on
    return rows


def _gain(before: Sequence[float], after: Sequence[float]) -> float:
    return median([a - b for a, b in zip(before, after, strict=True)])
