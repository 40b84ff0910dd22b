"""How much of each op's time the graph hides: the workload built up op by op, beside each op alone.

Every step is a problem of its own, with its own layers and inputs, on the same kernels: the span of the ops so far,
what the newest added to the span of the step before, and what it takes alone, as a cold chain of its own. Steps are
not measured in the same rounds, so that an increase is a difference of two medians.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from mktune.backends.base import Backend, Bench, Problem
from mktune.device import Device
from mktune.errors import CandidateError
from mktune.graph.builtin import make_plan
from mktune.graph.workload import workload
from mktune.measure.ablation import configs_of, fused_of
from mktune.measure.admission import refuse_invalid
from mktune.measure.stats import Interval, difference, median_interval
from mktune.plan import Plan
from mktune.shape import Shape
from mktune.trial import Measurement, Policy, Status


@dataclass(frozen=True)
class Step:
    """One op joins those before it. Times in µs per layer, each with its 95 % interval.

    op, ops      the op that joined, and all there are now
    span         of all of them
    increase     span - span of the step before; the first step's is its span
    alone        span of the op by itself
    plan         what was measured for `span`; policy: how (its layers differ from step to step)
    """

    op: str
    ops: tuple[str, ...]
    span: Interval
    increase: Interval
    alone: Interval
    plan: Plan
    policy: Policy


@dataclass(frozen=True)
class Growth:
    """One shape's steps. `seconds`: by phase; `set-up` is starting the process and bringing each step's problem."""

    shape: Shape
    mode: str
    steps: tuple[Step, ...]
    seconds: dict[str, float]

    @property
    def alone_us(self) -> float:
        """Sum of the spans of the ops alone: not a time that anything takes."""
        return sum(step.alone.median for step in self.steps)


def grow(
    backend: Backend,
    name: str,
    ops: Sequence[str] | None,
    shape: Shape,
    mode: str,
    plan: Plan | None = None,
    seed: int = 0,
    scale_format: str | None = None,
) -> Growth:
    """Steps of the workload `name`, under a scale format of it (None: its own), in its growth order: as built-in
    `mode`, with default configs or those of `plan`.

    Kernels that `plan` fuses are one launch from the step on in which all their ops are there.

    Raises InputError for ops, a shape or a plan that do not go together, CandidateError where a step fails or gives
    wrong results.
    """
    begun, alone = step_plans(name, ops, shape, mode, backend.device, plan, scale_format)
    seconds, found = dict[str, float](), dict[str, tuple[Measurement, Measurement]]()
    problem = Problem.of(workload(name, scale_format), begun[-1].op_names, shape, seed)
    with backend.open(problem) as bench:
        _prepare(bench, [*begun, *alone.values()])
        for (op, single), so_far in zip(alone.items(), begun, strict=True):
            span = _measured(bench, so_far, seconds)
            found[op] = (span, span if single == so_far else _measured(bench, single, seconds))
    return Growth(shape, mode, tuple(_steps(begun, found)), seconds)


def step_plans(
    name: str,
    ops: Sequence[str] | None,
    shape: Shape,
    mode: str,
    device: Device,
    plan: Plan | None = None,
    scale_format: str | None = None,
) -> tuple[list[Plan], dict[str, Plan]]:
    """The plan of each step, and op → its plan alone, both in growth order. Raises as `grow` does."""
    known = workload(name, scale_format)
    op_plans = configs_of(plan, known, ops) if plan is not None else None
    order = known.growth_of(tuple(op_plans) if op_plans else ops)
    so_far = [order[: n + 1] for n in range(len(order))]
    fused = [fused_of(plan, ops) if plan is not None else () for ops in so_far]
    begun = [
        make_plan(known, ops, shape, device.arch, mode, op_plans, together)
        for ops, together in zip(so_far, fused, strict=True)
    ]
    alone = {op: make_plan(known, (op,), shape, device.arch, mode, op_plans) for op in order}
    refuse_invalid({"+".join(each.op_names): each for each in (*begun, *alone.values())}, device)
    return begun, alone


def _prepare(bench: Bench, plans: Sequence[Plan]) -> None:
    """All compile while the first is measured."""
    for plan in plans:
        with bench.alone(plan.op_names) as part:
            part.prepare([plan])


def _measured(bench: Bench, plan: Plan, seconds: dict[str, float]) -> Measurement:
    """The span of `plan`, alone on the device; adds to `seconds` where the time went."""
    began = time.perf_counter()
    with bench.alone(plan.op_names) as part:
        outcome = part.measure(plan, None)
    if outcome.status not in (Status.OK, Status.NOISY) or outcome.measurement is None:
        raise CandidateError(outcome.status, f"{'+'.join(plan.op_names)}: {outcome.status}: {outcome.reason}")
    spent = {phase: took for phase, took in outcome.seconds if phase != "total"}
    spent["set-up"] = time.perf_counter() - began - sum(spent.values())
    seconds.update({phase: seconds.get(phase, 0.0) + took for phase, took in spent.items()})
    return outcome.measurement


def _steps(begun: Sequence[Plan], found: dict[str, tuple[Measurement, Measurement]]) -> list[Step]:
    steps: list[Step] = []
    before: Measurement | None = None
    for plan, (op, (span, alone)) in zip(begun, found.items(), strict=True):
        whole = median_interval(span.samples_us)
        grown = difference(span.samples_us, before.samples_us) if before is not None else whole
        ops = (*(step.op for step in steps), op)
        steps.append(Step(op, ops, whole, grown, median_interval(alone.samples_us), plan, span.policy))
        before = span
    return steps
