"""What `ablate` and `grow` share: the kernels of a study stay as they are, at default configs or those of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mktune.cli.backend import choose, require_kernels
from mktune.cli.documents import device_document, shape_document
from mktune.cli.options import names, shapes
from mktune.cli.plans import BuiltinAt, find
from mktune.graph.workload import workload as find_workload
from mktune.shape import Shape

if TYPE_CHECKING:
    from mktune.backends.base import Backend
    from mktune.graph.workload import Workload
    from mktune.plan import Plan

PlanOption = Annotated[
    str | None,
    typer.Option(
        "--plan", metavar="PLAN", help="Configs and fused kernels as in this plan: an id, a file. [default configs]"
    ),
]


@dataclass(frozen=True)
class Study:
    """What is measured: `ops` (None: all, or all of `plan`) of a workload, under its scale format, at each of `shapes`
    on a back end."""

    known: Workload
    ops: tuple[str, ...] | None
    shapes: tuple[Shape, ...]
    plan: Plan | None
    backend: Backend

    @property
    def fused(self) -> tuple[str, ...]:
        """The kernels of `plan` that are launched as one here too."""
        from mktune.measure.ablation import fused_of

        return fused_of(self.plan, self.ops) if self.plan else ()

    @property
    def title(self) -> str:
        """Ops, configs and device, for people."""
        ops = self.ops or (self.plan.op_names if self.plan else self.known.ops)
        configs = f"configs of {self.plan.short_id}" if self.plan else "default configs"
        configs += f", {', '.join(self.fused)} fused as there" if self.fused else ""
        mark = " simulated" if self.backend.simulated else ""
        return f"{self.known.full_name} {','.join(ops)}, {configs}, {self.backend.device.name}{mark}"

    def document(self, cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The study with one entry of `cells` for each shape, as JSON data."""
        return {
            "workload": self.known.name,
            "scale_format": self.known.scale_format,
            **device_document(self.backend),
            "plan_id": self.plan.plan_id if self.plan else None,
            "fused": list(self.fused),
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
    scale_format: str | None,
) -> Study:
    """The study that options describe. Unless they are given, the scale format is the plan's, and the tokens of a
    request are where M is.

    Raises InputError for names and numbers that are wrong, SetupError where there is no such back end.
    """
    known, chosen = find_workload(workload, scale_format), names("--ops", ops) or None
    known.subgraph(chosen)
    grid = shapes(m, kv, tokens_per_request)
    picked = choose(backend, sim_gpu)
    found = None
    if plan is not None:
        at = BuiltinAt(workload, chosen or (), grid[0], picked.device.arch, scale_format)
        found = find(plan, at, store).plan
        if scale_format is None and found.workload == workload:
            known = find_workload(workload, found.scale_format)
        if tokens_per_request is None:
            own = found.shape
            grid = [Shape.from_m(s.m, s.kv, own.tokens_per_request) if s.m == own.m else s for s in grid]
    require_kernels(picked, known, chosen or (found.op_names if found and found.workload == workload else None))
    return Study(known, chosen, tuple(grid), found, picked)
