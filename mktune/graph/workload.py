"""A workload: a graph of ops under a pinned contract, found by name.

One file each in `mktune/graph/workloads/`, or in the `workloads/` of one's own packages (see `mktune.extensions`).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from mktune import extensions
from mktune.errors import InputError
from mktune.graph.fused import fusions_of
from mktune.graph.opgraph import OpGraph
from mktune.plan import OpPlan, Plan


@dataclass(frozen=True, eq=False)
class Workload:
    """What is tuned.

    name          also the stem of its file and of its search space
    contract      version of everything that defines a right answer; part of every plan's key
    scale_format  how quantisation scales are represented (`mktune.ops.scale_formats`); part of every plan's key
    graph         ops and tensors
    branches      ops by stream in the built-in `branches` plans: each op once, in issue order within its branch
    title         one line for people
    growth        every op, in the order in which the workload is built up; empty: call order
    others        the same workload under other scale formats, for which the file's own is asked: `under`
    fusions       ops whose first kernels, which have one name under every config, may be one launch, each in the order
                  of its CTAs
    """

    name: str
    contract: int
    scale_format: str
    graph: OpGraph
    branches: tuple[tuple[str, ...], ...]
    title: str
    growth: tuple[str, ...] = ()
    others: tuple[Workload, ...] = ()
    fusions: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        """Raises InputError for what no search could work with: somebody's own file says it before any trial."""
        if not (self.name and isinstance(self.scale_format, str) and self.scale_format):
            raise InputError(f"workload {self.name!r}: name and scale_format must be text that is not empty")
        if type(self.contract) is not int or self.contract < 0:
            raise InputError(f"workload {self.name}: contract must be a whole number from 0, not {self.contract!r}")
        ops, named = sorted(self.ops), [op for branch in self.branches for op in branch]
        if sorted(named) != ops:
            raise InputError(f"workload {self.name}: branches must name every op once: {', '.join(ops)}")
        if self.growth and sorted(self.growth) != ops:
            raise InputError(f"workload {self.name}: growth must name every op once, or nothing: {', '.join(ops)}")
        for fusion in self.fusions:
            if len(fusion) < 2 or len(set(fusion)) < len(fusion) or not set(fusion) <= set(ops):
                raise InputError(f"workload {self.name}: {fusion!r} is no fusion: name two or more of {', '.join(ops)}")

    @property
    def scale_formats(self) -> tuple[str, ...]:
        """Every scale format that it has; the first is what is meant where none is named."""
        return (self.scale_format, *(other.scale_format for other in self.others))

    @property
    def full_name(self) -> str:
        """Its name, and the scale format where that is not the one which the name alone means."""
        own = workload(self.name).scale_format
        return self.name if self.scale_format == own else f"{self.name} {self.scale_format}"

    def under(self, scale_format: str | None) -> Workload:
        """It under that scale format; None: under its own. Raises InputError with those that it has."""
        for found in (self, *self.others):
            if scale_format in (None, found.scale_format):
                return found
        raise InputError(f"{self.name} has no scale format {scale_format!r}; it has {', '.join(self.scale_formats)}")

    def require_implementations(self, ops: Sequence[str] | None, arch: str) -> None:
        """Raises InputError, with what there is, where no implementation of one of `ops` (None: all) computes this
        scale format on `arch`, or where they are not connected."""
        calls = self.subgraph(ops).calls
        lacking = {name: call.op for name, call in calls.items() if not call.op.implementations(arch)}
        if lacking:
            there = {
                f"{impl} ({', '.join(op.scale_formats(impl, arch))})": None
                for op in lacking.values()
                for impl in op.choices(arch)
            }
            what = f"{', '.join(lacking)} computes scale_format {self.scale_format} on {arch}"
            raise InputError(f"no implementation of {what}: there are {', '.join(there)}")

    @property
    def ops(self) -> tuple[str, ...]:
        """Every op, in call order: what is tuned unless fewer are chosen."""
        return tuple(self.graph.calls)

    def subgraph(self, ops: Sequence[str] | None = None) -> OpGraph:
        """The graph of `ops` (None: all). Raises InputError for a set that is unknown or not connected."""
        return self.graph if ops is None else self.graph.subgraph(ops)

    def fused_kernels(self, ops: Sequence[str] | None, arch: str) -> dict[str, tuple[str, ...]]:
        """Fused kernel → its ops, for every fusion within `ops` (None: all): {"B1p+C0": ("B1", "C0")}."""
        return fusions_of(self.subgraph(ops), self.fusions, arch)

    def growth_of(self, ops: Sequence[str] | None = None) -> tuple[str, ...]:
        """`ops` (None: all) in the order of `growth`, each taken as soon as an edge joins it to those before it: every
        beginning is a connected part. Raises InputError for a set that is not."""
        graph = self.subgraph(ops)
        left = [op for op in self.growth or self.ops if op in graph.calls]
        order = [left.pop(0)]
        while left:
            joined = next(op for op in left if any({op, other} == set(edge) for edge in graph.edges for other in order))
            left.remove(joined)
            order.append(joined)
        return tuple(order)

    def default_ops(self, ops: Sequence[str], arch: str) -> dict[str, OpPlan]:
        """Op → the config to start from on `arch`, in call order."""
        graph = self.subgraph(ops)
        return {name: call.op.default(arch) for name, call in graph.calls.items()}


@cache
def workload_names() -> tuple[str, ...]:
    """Names of every workload, sorted. Raises InputError for a MKTUNE_PATH that cannot be used."""
    return tuple(sorted({*_shipped(), *extensions.names("workloads")}))


@cache
def workload(name: str, scale_format: str | None = None) -> Workload:
    """The workload of that name, under a scale format of it (None: its own).

    Raises InputError with the known names or formats, or with what is wrong with its file.
    """
    return _of_file(name).under(scale_format)


def graph_of(plan: Plan) -> OpGraph:
    """The ops of `plan`, as its workload connects them under its scale format. Raises InputError as `workload` does."""
    return workload(plan.workload, plan.scale_format).subgraph(plan.op_names)


@cache
def _of_file(name: str) -> Workload:
    if name in _shipped():
        module = importlib.import_module(f"mktune.graph.workloads.{name}")
    elif own := extensions.module("workloads", name):
        module = own
    else:
        raise InputError(f"unknown workload {name!r}; known: {', '.join(workload_names())}")
    found = getattr(module, "WORKLOAD", None)
    if not isinstance(found, Workload) or found.name != name:
        raise InputError(f"{module.__file__} must define WORKLOAD, a Workload called {name!r}")
    return found


@cache
def _shipped() -> frozenset[str]:
    from mktune.graph import workloads

    return frozenset(module.name for module in pkgutil.iter_modules(workloads.__path__))
