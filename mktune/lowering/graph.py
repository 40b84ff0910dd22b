"""Lowering a plan to kernels and edges.

Kernels come from the ops' facts, data edges from what those kernels read and write, with the kinds that the plan
gives them; a chain edge joins a kernel to the one before it on its stream where no data edge does. An edge is dropped
where the closure of every kernel stays the same without it: it would order nothing and may still cost a join its
early start. That a longer path leads to the same kernel is no reason to drop one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from mktune.access import KernelFacts
from mktune.device import Device
from mktune.errors import PlanError
from mktune.graph.fused import fused_among
from mktune.graph.kernel_edges import graph_facts, is_topological, kernel_edges
from mktune.graph.opgraph import OpGraph
from mktune.lowering.closure import Known, Left, arrive, leave
from mktune.lowering.kernel_graph import Edge, KernelGraph
from mktune.lowering.launches import launches_of
from mktune.plan import EdgeName, Plan
from mktune.shape import Shape


def lower(
    plan: Plan, graph: OpGraph, shape: Shape, device: Device | None = None, launches: bool = False
) -> KernelGraph:
    """The kernels of `plan` in its order, at `shape`, with the edges that remain. `graph` holds the plan's ops alone.

    With `launches` every kernel also gets its launch on `device`. Raises PlanError where the plan does not name
    exactly the kernels and data edges of its graph, in an order that those allow; one that `mktune.validity.check`
    passed does.
    """
    try:
        facts = graph_facts(graph, plan.op, plan.kernel)
    except KeyError as missing:
        raise PlanError(f"the plan and the graph {graph.name} do not have the same kernels: {missing}") from None
    needed = kernel_edges(graph, plan.op, fused_among(plan.kernel))
    names = {kernel.name for kernel in facts}
    if len(plan.kernels) != len(names) or sorted(plan.order) != sorted(names) or plan.edge.keys() != set(needed):
        raise PlanError(f"the plan must name every kernel once, and the edges {_listed(needed)}")
    if not is_topological(plan.order, needed):
        raise PlanError(f"the plan's order has a kernel before one whose results it reads: {_listed(needed)}")
    found = {kernel.name: kernel for kernel in facts}
    kernels = tuple(found[name] for name in plan.order)
    return KernelGraph(
        kernels,
        reduce_edges(kernels, plan_edges(plan)),
        streams=tuple((name, plan.kernel[name].stream) for name in plan.order),
        priorities=tuple((name, plan.kernel[name].priority) for name in plan.order if plan.kernel[name].priority),
        launches=launches_of(plan, graph, shape, device) if launches and device else (),
    )


def plan_edges(plan: Plan) -> tuple[Edge, ...]:
    """Every edge that the plan asks for: its data edges, and the order of its streams where those leave it open."""
    data = [_EDGES[edge] for edge in plan.edges]
    kernels, kinds = plan.kernel, plan.edge
    last: dict[int, str] = {}
    for name in plan.order:
        kernel = kernels[name]
        before = last.get(kernel.stream)
        if before is not None and (before, name) not in kinds:
            data.append(_CHAINS[(before, name), kernel.chain])
        last[kernel.stream] = name
    return tuple(data)


def reduce_edges(kernels: Sequence[KernelFacts], edges: Sequence[Edge]) -> tuple[Edge, ...]:
    """`edges` without those that the closure of no kernel needs; an edge from further up is dropped first.

    What an edge does downstream it does through its target's own closure, so one pass in topological order decides.
    """
    place = {kernel.name: index for index, kernel in enumerate(kernels)}
    inward: dict[str, list[Edge]] = {}
    for edge in edges:
        inward.setdefault(edge.target, []).append(edge)
    left: dict[str, Left] = {}
    kept: list[Edge] = []
    for index, kernel in enumerate(kernels):
        edges = sorted(inward.get(kernel.name, ()), key=lambda edge: place[edge.source])
        known = arrive(edges, left)
        while len(edges) > 1 and (idle := _first_idle(edges, left, known)) is not None:
            del edges[idle]
        kept += edges
        left[kernel.name] = leave(kernel, 1 << index, known[1], known[2])
    return tuple(kept)


def _first_idle(edges: list[Edge], left: dict[str, Left], known: Known) -> int | None:
    """The place of the first edge without which the others tell the same."""
    return next((i for i in range(len(edges)) if arrive(edges[:i] + edges[i + 1 :], left) == known), None)


class _Edges(dict[tuple[EdgeName, str], Edge]):
    """Edges by ends and kind, each made once: plans differ by the thousand, their edges hardly."""

    def __init__(self, data: bool) -> None:
        self.data = data

    def __missing__(self, key: tuple[EdgeName, str]) -> Edge:
        (source, target), kind = key
        edge = self[key] = Edge(source, target, kind, self.data)
        return edge


_EDGES = _Edges(data=True)
_CHAINS = _Edges(data=False)


def _listed(edges: Sequence[EdgeName]) -> str:
    return ", ".join(f"{source}->{target}" for source, target in edges)


def graph_key(graph: KernelGraph) -> str:
    """sha256 of what a CUDA graph is made of: edges, and node priorities. Order and streams only chose the edges."""
    data = {
        "kernels": sorted(kernel.name for kernel in graph.kernels),
        "edges": sorted((edge.source, edge.target, edge.kind) for edge in graph.edges),
        "priorities": sorted(graph.priorities),
    }
    return _digest(data)


def lowered_id(plan: Plan, graph: KernelGraph) -> str:
    """Equal for plans that run the same kernels with the same configs in the same graph: duplicates of each other.

    A trigger that starts no kernel, and the place of a wait that has nothing to wait for, do not count.
    """
    triggers = {edge.source for edge in graph.edges if edge.kind == "programmatic"}
    waits = {edge.target for edge in graph.edges if edge.kind != "full"}
    kernels = {}
    for name, kernel in plan.kernels:
        gdc = kernel.gdc if name in waits or kernel.l2_prefetch_bytes else "entry"
        trigger = kernel.trigger if name in triggers else "exit"
        kernels[name] = (gdc, trigger, kernel.l2_prefetch_bytes)
    data = plan.to_dict()
    chosen = {field: data[field] for field in ("workload", "contract", "scale_format", "shape", "executor", "ops")}
    return _digest({**chosen, "kernels": kernels, "graph": graph_key(graph)})


def runs_as(plan: Plan, graph: OpGraph) -> str:
    """The `lowered_id` of `plan`, which computes the calls of `graph`. Raises what `lower` does."""
    return lowered_id(plan, lower(plan, graph, plan.shape))


def _digest(data: object) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
