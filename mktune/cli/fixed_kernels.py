"""What `ablate` and `grow` share: the kernels of a study stay as they are, at default configs or those of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mktune.cli.backend import choose, require_kernels
from mktune.cli.options import names, numbers
from mktune.cli.plans import BuiltinAt, find
from mktune.graph.workload import workload as find_workload
from mktune.shape import Shape

if TYPE_CHECKING:
    from mktune.backends.base import Backend
    from mktune.measure.stats import Interval
    from mktune.plan import Plan

PlanOption = Annotated[
    str | None,
    typer.Option(
        "--plan", metavar="PLAN", help="Take the ops' configs from this plan: an id, a file. [default configs]"
    ),
]


@dataclass(frozen=True)
class Study:
    """What is measured: `ops` (None: all, or all of `plan`) of a workload at each of `shapes` on a back end."""

    workload: str
    ops: tuple[str, ...] | None
    shapes: tuple[Shape, ...]
    plan: Plan | None
    backend: Backend

    @property
    def title(self) -> str:
        """Ops, configs and device, for people."""
        ops = self.ops or (self.plan.op_names if self.plan else find_workload(self.workload).ops)
        configs = f"configs of {self.plan.short_id}" if self.plan else "default configs"
        mark = " simulated" if self.backend.simulated else ""
        return f"{self.workload} {','.join(ops)}, {configs}, {self.backend.device.name}{mark}"

    def document(self, cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The study with one entry of `cells` for each shape, as JSON data."""
        device = self.backend.device
        return {
            "workload": self.workload,
            "backend": self.backend.name,
            "simulated": self.backend.simulated,
            "gpu": device.name,
            "driver": device.driver,
            "cuda": device.cuda,
            "plan_id": self.plan.plan_id if self.plan else None,
            "cells": [{**shape_document(shape), **cell} for shape, cell in zip(self.shapes, cells, strict=True)],
        }


def study(
    workload: str,
    ops: str | None,
    m: str,
    kv: str,
    tokens_per_request: int | None,
    plan: str | None,
    store: str | None,
    backend: str,
    sim_gpu: str,
) -> Study:
    """The study that options describe. Where M is the plan's, so are the tokens of a request unless they are given.

    Raises InputError for names and numbers that are wrong, SetupError where there is no such back end.
    """
    known, chosen = find_workload(workload), names("--ops", ops) or None
    known.subgraph(chosen)
    rows, contexts = numbers("--m", m), numbers("--kv", kv)
    shapes = [Shape.from_m(each, context, tokens_per_request) for each in rows for context in contexts]
    picked = choose(backend, sim_gpu)
    found = None
    if plan is not None:
        at = BuiltinAt(workload, chosen or (), shapes[0], picked.device.arch)
        found = find(plan, at, store).plan
        if tokens_per_request is None:
            own = found.shape
            shapes = [Shape.from_m(s.m, s.kv, own.tokens_per_request) if s.m == own.m else s for s in shapes]
    require_kernels(picked, known, chosen or (found.op_names if found and found.workload == workload else None))
    return Study(workload, chosen, tuple(shapes), found, picked)


def shape_document(shape: Shape) -> dict[str, int]:
    """A shape as JSON data."""
    requests, tokens = shape.requests, shape.tokens_per_request
    return {"m": shape.m, "requests": requests, "tokens_per_request": tokens, "kv": shape.kv}


def interval_document(interval: Interval, unit: str = "us", factor: float = 1.0) -> dict[str, float]:
    """{"us": …, "low_us": …, "high_us": …}."""
    parts = (("", interval.median), ("low_", interval.low), ("high_", interval.high))
    return {f"{name}{unit}": factor * value for name, value in parts}


def between(interval: Interval) -> str:
    """ "26.91–27.30"; "−1.20 to −0.95" where a bound is below zero; "–" for a point, as a model gives."""
    if interval.low == interval.high:
        return "–"
    join = "–" if interval.low >= 0 else " to "
    return f"{signed(interval.low)}{join}{signed(interval.high)}"


def signed(value: float, digits: int = 2) -> str:
    """The number with a minus sign that is as wide as a digit; no minus zero."""
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")
