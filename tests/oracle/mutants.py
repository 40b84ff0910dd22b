"""Mutants of lowered plans: one to four small mistakes, as in a wrong plan, fact or executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random

from mktune.access import Access, KernelFacts
from mktune.graph.builtin import MODES, make_plan
from mktune.graph.fused import fused_among
from mktune.lowering.graph import lower
from mktune.lowering.kernel_graph import Edge, KernelGraph
from mktune.plan import EDGE_KINDS, Plan
from tests.oracle.plans import FUSIBLE, H200, SHAPE, SUBGRAPHS, WORKLOAD, random_fused_plan, random_plan

TRIGGERS = ("exit", "before_wait", "after_wait")


@dataclass(frozen=True)
class Mutant:
    """A graph with mistakes: what was done to it, and which kernels chain copies (None: every sink)."""

    graph: KernelGraph
    done: tuple[str, ...]
    chained: tuple[str, ...] | None = None


def mutants(seed: int, count: int, fuse: bool = False) -> Iterator[Mutant]:
    """`count` mutants of lowered plans of every subgraph; each third is one of the whole workload.

    fuse  some kernels of every plan are one launch
    """
    random = Random(seed)
    for number in range(count):
        ops = WORKLOAD.ops if number % 3 == 0 else random.choice(FUSIBLE if fuse else SUBGRAPHS)
        plan = _some_fused_plan(random, ops) if fuse else _some_plan(random, ops)
        if random.random() < 0.3:
            plan = random.choice(PLAN_MUTATIONS)(random, plan)
        mutant = Mutant(lower(plan, WORKLOAD.subgraph(ops), SHAPE), ())
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            mutant = random.choice(MUTATIONS)(random, mutant)
        yield mutant


def _some_plan(random: Random, ops: tuple[str, ...]) -> Plan:
    if random.random() < 0.5:
        return random_plan(random, ops)
    return make_plan(WORKLOAD, ops, SHAPE, H200.arch, random.choice(MODES))


def _some_fused_plan(random: Random, ops: tuple[str, ...]) -> Plan:
    """Random, or of built-in structure."""
    plan = random_fused_plan(random, ops)
    names = fused_among(plan.kernel)
    if random.random() < 0.5:
        return plan
    return make_plan(WORKLOAD, ops, SHAPE, H200.arch, random.choice(MODES), plan.op, names)


def move_stream(random: Random, plan: Plan) -> Plan:
    """One kernel goes to another stream."""
    name = random.choice(plan.order)
    moved = replace(plan.kernel[name], stream=random.randrange(5))
    return replace(plan, kernels=tuple({**plan.kernel, name: moved}.items())).canonical()


def flip_chain(random: Random, plan: Plan) -> Plan:
    """One chain edge changes its kind."""
    name = random.choice(plan.order)
    kind = "full" if plan.kernel[name].chain == "programmatic" else "programmatic"
    return replace(plan, kernels=tuple({**plan.kernel, name: replace(plan.kernel[name], chain=kind)}.items()))


def change_edge_kind(random: Random, mutant: Mutant) -> Mutant:
    """An edge becomes weaker or stronger."""
    edge = _some_edge(random, mutant)
    if edge is None:
        return mutant
    other = replace(edge, kind=random.choice([kind for kind in EDGE_KINDS if kind != edge.kind]))
    edges = tuple(other if one is edge else one for one in mutant.graph.edges)
    return _with(mutant, f"{edge.source}->{edge.target} {other.kind}", edges=edges)


def drop_edge(random: Random, mutant: Mutant) -> Mutant:
    edge = _some_edge(random, mutant)
    if edge is None:
        return mutant
    edges = tuple(one for one in mutant.graph.edges if one is not edge)
    return _with(mutant, f"{edge.source}->{edge.target} dropped", edges=edges)


def add_edge(random: Random, mutant: Mutant) -> Mutant:
    """A redundant or a helpful edge: mostly safe."""
    names = [kernel.name for kernel in mutant.graph.kernels]
    first, second = sorted(random.sample(range(len(names)), 2))
    if any((edge.source, edge.target) == (names[first], names[second]) for edge in mutant.graph.edges):
        return mutant
    edge = Edge(names[first], names[second], random.choice(EDGE_KINDS), data=False)
    return _with(mutant, f"{edge.source}->{edge.target} added {edge.kind}", edges=(*mutant.graph.edges, edge))


def change_trigger(random: Random, mutant: Mutant) -> Mutant:
    kernel = random.choice(mutant.graph.kernels)
    trigger = random.choice([trigger for trigger in TRIGGERS if trigger != kernel.trigger])
    return _with_kernel(mutant, f"{kernel.name} trigger {trigger}", replace(kernel, trigger=trigger))


def remove_wait(random: Random, mutant: Mutant) -> Mutant:
    """The kernel has no wait: everything it does stands before one."""
    kernel = random.choice(mutant.graph.kernels)
    accesses = tuple(replace(access, after_wait=False) for access in kernel.accesses)
    return _with_kernel(mutant, f"{kernel.name} never waits", replace(kernel, waits=False, accesses=accesses))


def weaken_wait(random: Random, mutant: Mutant) -> Mutant:
    """CTAs without work leave before the wait."""
    kernel = random.choice(mutant.graph.kernels)
    return _with_kernel(mutant, f"{kernel.name} may not wait", replace(kernel, waits=False))


def move_access(random: Random, mutant: Mutant) -> Mutant:
    """One access is hoisted above the wait."""
    kernel = random.choice(mutant.graph.kernels)
    accesses = list(kernel.accesses)
    place = random.randrange(len(accesses))
    accesses[place] = replace(accesses[place], after_wait=False)
    done = f"{kernel.name} uses {accesses[place].buffer} before its wait"
    return _with_kernel(mutant, done, replace(kernel, accesses=tuple(accesses)))


def share_workspace(random: Random, mutant: Mutant) -> Mutant:
    """Two ops get one workspace, counters included."""
    owners = sorted({access.buffer.split(".")[0] for access in _accesses(mutant.graph) if "." in access.buffer})
    if len(owners) < 2:
        return mutant
    kept, gone = random.sample(owners, 2)
    return _rename(mutant, f"{gone} uses the workspace of {kept}", lambda name: name.replace(f"{gone}.", f"{kept}."))


def share_tensor(random: Random, mutant: Mutant) -> Mutant:
    """Two tensors get one buffer: an update in place, or a pool that reuses memory too early."""
    buffers = sorted({access.buffer for access in _accesses(mutant.graph)})
    kept, gone = random.sample(buffers, 2)
    return _rename(mutant, f"{gone} lies in {kept}", lambda name: kept if name == gone else name)


def chain_one_sink(random: Random, mutant: Mutant) -> Mutant:
    """The next copy follows one sink only."""
    sink = random.choice(mutant.graph.sinks)
    return replace(mutant, chained=(sink,), done=(*mutant.done, f"chained from {sink} only"))


def swap_order(random: Random, mutant: Mutant) -> Mutant:
    """Two neighbours that no edge orders change places: which one is meant to be the earlier changes with them."""
    kernels = list(mutant.graph.kernels)
    place = random.randrange(len(kernels) - 1)
    pair = kernels[place].name, kernels[place + 1].name
    if any((edge.source, edge.target) == pair for edge in mutant.graph.edges):
        return mutant
    kernels[place], kernels[place + 1] = kernels[place + 1], kernels[place]
    return _with(mutant, f"{pair[1]} before {pair[0]}", kernels=tuple(kernels))


PLAN_MUTATIONS: tuple[Callable[[Random, Plan], Plan], ...] = (move_stream, flip_chain)
MUTATIONS: tuple[Callable[[Random, Mutant], Mutant], ...] = (
    change_edge_kind,
    change_edge_kind,
    drop_edge,
    add_edge,
    change_trigger,
    change_trigger,
    remove_wait,
    weaken_wait,
    move_access,
    share_workspace,
    share_tensor,
    chain_one_sink,
    swap_order,
)


def _some_edge(random: Random, mutant: Mutant) -> Edge | None:
    return random.choice(mutant.graph.edges) if mutant.graph.edges else None


def _accesses(graph: KernelGraph) -> Iterator[Access]:
    return (access for kernel in graph.kernels for access in kernel.accesses)


def _with(
    mutant: Mutant, done: str, kernels: tuple[KernelFacts, ...] | None = None, edges: tuple[Edge, ...] | None = None
) -> Mutant:
    graph = KernelGraph(
        mutant.graph.kernels if kernels is None else kernels, mutant.graph.edges if edges is None else edges
    )
    return replace(mutant, graph=graph, done=(*mutant.done, done))


def _with_kernel(mutant: Mutant, done: str, kernel: KernelFacts) -> Mutant:
    return _with(mutant, done, kernels=tuple(kernel if k.name == kernel.name else k for k in mutant.graph.kernels))


def _rename(mutant: Mutant, done: str, name: Callable[[str], str]) -> Mutant:
    kernels = tuple(
        replace(kernel, accesses=tuple(replace(access, buffer=name(access.buffer)) for access in kernel.accesses))
        for kernel in mutant.graph.kernels
    )
    return _with(mutant, done, kernels=kernels)
