"""What each cell's plan costs in its neighbours: winners of a grid of shapes, run at each other's shapes.

A neighbour is the next M or the next KV of the grid. Its plan is adapted (`neighbours.adapt`) and measured in the same
rounds as the cell's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mktune.backends.base import Backend, Bench, Problem
from mktune.errors import CandidateError
from mktune.graph.workload import Workload
from mktune.measure.stats import Interval, median, paired_ratio
from mktune.plan import Plan
from mktune.search.neighbours import adapt
from mktune.shape import Shape
from mktune.space import SearchSpace
from mktune.validity import check

if TYPE_CHECKING:
    from mktune.store import Store

ROUNDS = 16


@dataclass(frozen=True)
class Borrowed:
    """The plan of another cell, run in this one. `ratio`: its span over that of the cell's own plan; None where it
    could not be run, and `why`."""

    of: Shape
    ratio: Interval | None
    why: str = ""


@dataclass(frozen=True)
class MatrixCell:
    """One shape: its stored plan, measured anew, and its neighbours' plans. `span_us` is None where it has no plan."""

    shape: Shape
    plan: Plan | None
    span_us: float | None
    borrowed: tuple[Borrowed, ...] = ()


def matrix(
    workload: Workload, ops: Sequence[str] | None, shapes: Sequence[Shape], backend: Backend, store: Store
) -> Iterator[MatrixCell]:
    """The cells in the order of `shapes`, each when it is measured. Raises SetupError."""
    names = tuple(workload.subgraph(ops).calls)
    gpu, simulated = backend.device.name, backend.simulated
    scales = workload.scale_format
    plans = {shape: store.served_plan(workload.name, names, shape, gpu, simulated, scales) for shape in shapes}
    with backend.kept():
        for shape in shapes:
            own = plans[shape]
            if own is None:
                yield MatrixCell(shape, None, None)
                continue
            others = {other: plan for other in _beside(shape, shapes) if (plan := plans[other]) is not None}
            space = SearchSpace.load(workload, names, shape, backend.device)
            with backend.open(Problem.of(workload, names, shape)) as bench:
                yield _measured(bench, space, own, others)


def _beside(shape: Shape, shapes: Sequence[Shape]) -> list[Shape]:
    """The next smaller and larger M at the same KV, and KV at the same M."""
    found = []
    for same, size in (("kv", "m"), ("m", "kv")):
        row = sorted((s for s in shapes if getattr(s, same) == getattr(shape, same)), key=lambda s: getattr(s, size))
        place = row.index(shape)
        found += [row[near] for near in (place - 1, place + 1) if 0 <= near < len(row)]
    return found


def _measured(bench: Bench, space: SearchSpace, own: Plan, others: Mapping[Shape, Plan]) -> MatrixCell:
    wrong = bench.verify(own)
    if wrong:
        return MatrixCell(space.shape, own, None, tuple(Borrowed(of, None, f"own plan: {wrong}") for of in others))
    plans, refused = {"own": own}, dict[Shape, str]()
    for of, plan in others.items():
        fitted = adapt(plan, space)
        refused[of] = _wrong(bench, space, fitted)
        if fitted is not None and not refused[of]:
            plans[of.name] = fitted
    try:
        samples, _ = bench.rounds(plans, ROUNDS)
    except CandidateError as error:
        return MatrixCell(space.shape, own, None, tuple(Borrowed(of, None, str(error)) for of in others))
    borrowed = [
        Borrowed(of, None, why) if why else Borrowed(of, paired_ratio(samples[of.name], samples["own"]))
        for of, why in refused.items()
    ]
    return MatrixCell(space.shape, own, median(samples["own"]), tuple(borrowed))


def _wrong(bench: Bench, space: SearchSpace, plan: Plan | None) -> str:
    if plan is None:
        return "outside the search space"
    violations = check(plan, space.device)
    return str(violations[0]) if violations else bench.verify(plan)
