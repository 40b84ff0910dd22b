"""Def-use edges between kernels, derived from what each kernel reads and writes, and orders that respect them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from mktune.access import KernelFacts
from mktune.graph.fused import fuse_edges, fuse_facts, fused_among, kernel_ops, with_parts
from mktune.graph.opgraph import OpGraph
from mktune.plan import KernelPlan, OpPlan

Edges = tuple[tuple[str, str], ...]

_MAX_CACHED_EDGES = 1024


def kernel_names(graph: OpGraph, op_plans: Mapping[str, OpPlan], fused: Sequence[str] = ()) -> tuple[str, ...]:
    """Every kernel of the graph under `op_plans`, those of `fused` in the place of their parts, in call order: the
    serial order."""
    names = tuple(kernel_ops(graph, op_plans, fused))
    return topological_order(names, kernel_edges(graph, op_plans, fused)) if fused else names


def graph_facts(
    graph: OpGraph, op_plans: Mapping[str, OpPlan], kernels: Mapping[str, KernelPlan]
) -> tuple[KernelFacts, ...]:
    """What every kernel does, with graph-wide names, in call order. `kernels` has a plan for each kernel; those that
    are fused stand there in the place of their parts."""
    found: list[KernelFacts] = []
    fused = fused_among(kernels)
    placed = with_parts(kernels) if fused else kernels
    for name, call in graph.calls.items():
        plan = op_plans[name]
        found += call.facts(plan, tuple(placed[kernel] for kernel in call.kernel_names(plan)))
    return tuple(fuse_facts(found, fused)) if fused else tuple(found)


def kernel_edges(graph: OpGraph, op_plans: Mapping[str, OpPlan], fused: Sequence[str] = ()) -> Edges:
    """(producer, consumer), each once: a consumer reads what the producer was the last to write before it.

    Depends on which kernels the op plans have, not on how they are placed. Ordered by consumer, then producer, in
    call order. Edges of a part are those of the kernel of `fused` that has it.
    """
    if fused:
        return tuple(fuse_edges(kernel_edges(graph, op_plans), fused))
    facts: list[KernelFacts] = []
    for name, call in graph.calls.items():
        facts += call.facts(op_plans[name], call.default_kernels(op_plans[name]))
    known = graph.edge_cache.get(key := tuple(map(id, facts)))
    if known is None:
        if len(graph.edge_cache) >= _MAX_CACHED_EDGES:
            graph.edge_cache.clear()
        # The facts are kept beside the answer, so that their ids stay theirs.
        known = graph.edge_cache[key] = (tuple(facts), _edges(facts))
    return known[1]


def _edges(facts: Sequence[KernelFacts]) -> Edges:
    place = {kernel.name: index for index, kernel in enumerate(facts)}
    writer: dict[str, str] = {}
    found: set[tuple[str, str]] = set()
    for kernel in facts:
        for access in kernel.accesses:
            source = writer.get(access.buffer)
            if not access.writes and source is not None:
                found.add((source, kernel.name))
        writer.update((access.buffer, kernel.name) for access in kernel.accesses if access.writes)
    return tuple(sorted(found, key=lambda edge: (place[edge[1]], place[edge[0]])))


def is_topological(order: Sequence[str], edges: Edges) -> bool:
    """Every edge goes forward in `order`."""
    place = {name: index for index, name in enumerate(order)}
    return all(place[source] < place[target] for source, target in edges)


def topological_order(
    names: Sequence[str], edges: Edges, rank: Callable[[str], float] | None = None
) -> tuple[str, ...]:
    """The order that always takes the ready kernel of lowest `rank` (default: place in `names`)."""
    place = {name: index for index, name in enumerate(names)}
    key = rank or (lambda name: float(place[name]))
    left, order = list(names), []
    while left:
        ready = [name for name in left if not any(target == name and source in left for source, target in edges)]
        assert ready, "kernel edges have a cycle"
        order.append(min(ready, key=lambda name: (key(name), place[name])))
        left.remove(order[-1])
    return tuple(order)


def topological_orders(names: Sequence[str], edges: Edges) -> Iterator[tuple[str, ...]]:
    """Every order that respects `edges`, lazily: there may be thousands. Lexicographic by place in `names`."""
    if not names:
        yield ()
        return
    for name in names:
        if not any(target == name and source in names for source, target in edges):
            rest = [other for other in names if other != name]
            for tail in topological_orders(rest, edges):
                yield (name, *tail)
