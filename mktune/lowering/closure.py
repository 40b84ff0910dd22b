"""Which grids are known to be complete when a kernel starts, and when its wait returns: the closure rule.

One pass over the kernels in topological order, with a set of kernels as the bits of one integer. For a kernel K with
prerequisites P:

    completes(P)  {P} and what P's wait knew where every path of P waits, else what its launch knew
    started(P)    known complete once P's trigger has fired. Trigger after the wait, every path waiting: what P's wait
                  knew. At exit: completes(P) without P, since exits come before the flush. Otherwise: P's launch
    launch(K)     completes(P) over full edges, started(P) over programmatic ones; launch_order adds nothing, because
                  CUDA calls the port at block start a best effort
    wait(K)       launch(K), and completes(P) over programmatic and launch_order edges

`full(K)`, the part of launch(K) that came over full edges, is what code before the wait may *read*: a trigger orders
a launch and publishes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mktune.access import KernelFacts
from mktune.lowering.kernel_graph import Edge, KernelGraph

Known = tuple[int, int, int]


@dataclass(frozen=True)
class Closure:
    """Masks by kernel, in the order of `names`; bit i stands for `names[i]`, a higher bit for what `base` holds."""

    names: tuple[str, ...]
    full: tuple[int, ...]
    launch: tuple[int, ...]
    wait: tuple[int, ...]
    completes: tuple[int, ...]

    def members(self, mask: int) -> tuple[str, ...]:
        """The kernels of a mask, in order."""
        return tuple(name for index, name in enumerate(self.names) if mask >> index & 1)


def arrive(kind: str, completes: int, started: int) -> Known:
    """What one edge of `kind` tells its target: (full, launch, wait) masks."""
    if kind == "full":
        return completes, completes, completes
    if kind == "programmatic":
        return 0, started, started | completes
    assert kind == "launch_order", kind
    return 0, 0, completes


def leave(kernel: KernelFacts, bit: int, launch: int, wait: int, transitive: bool = True) -> tuple[int, int]:
    """(completes, started) of a kernel that knew `launch` at its start and `wait` after its wait.

    transitive=False counts nothing that only the kernel's wait knew: the strict reading.
    """
    inherited = wait if kernel.waits and transitive else launch
    early = kernel.trigger == "before_wait"
    return bit | inherited, launch if early else inherited


def close(graph: KernelGraph, base: int = 0, transitive: bool = True) -> Closure:
    """The closure of a graph whose `kernels` stand in topological order. O(kernels + edges).

    base is what every root's launch already knows: a mask above the kernels' own bits stands for a whole earlier copy.
    Raises ValueError where an edge points backwards or names no kernel of the graph.
    """
    inward = in_edges(graph)
    left: dict[str, tuple[int, int]] = {}
    known: list[Known] = []
    for index, kernel in enumerate(graph.kernels):
        full = launch = wait = 0 if inward[kernel.name] else base
        for edge in inward[kernel.name]:
            if edge.source not in left:
                raise ValueError(f"{edge.source} -> {edge.target} points backwards or comes from nowhere")
            told = arrive(edge.kind, *left[edge.source])
            full, launch, wait = full | told[0], launch | told[1], wait | told[2]
        left[kernel.name] = leave(kernel, 1 << index, launch, wait, transitive)
        known.append((full, launch, wait))
    return Closure(
        names=tuple(left),
        full=tuple(masks[0] for masks in known),
        launch=tuple(masks[1] for masks in known),
        wait=tuple(masks[2] for masks in known),
        completes=tuple(masks[0] for masks in left.values()),
    )


def in_edges(graph: KernelGraph) -> dict[str, list[Edge]]:
    """Kernel → its in-edges. Raises ValueError where an edge goes to a kernel that is not there."""
    inward: dict[str, list[Edge]] = {kernel.name: [] for kernel in graph.kernels}
    for edge in graph.edges:
        if edge.target not in inward:
            raise ValueError(f"{edge.source} -> {edge.target}: no kernel {edge.target}")
        inward[edge.target].append(edge)
    return inward


def repeat(graph: KernelGraph, copies: int, chained: tuple[str, ...] | None = None) -> KernelGraph:
    """`copies` of a graph one after the other, copy c of kernel K named "K@c".

    Full edges lead from every sink of a copy (or from the kernels `chained`) to every root of the next.
    """
    tails = graph.sinks if chained is None else chained
    kernels = [replace(kernel, name=f"{kernel.name}@{copy}") for copy in range(copies) for kernel in graph.kernels]
    edges = [
        replace(edge, source=f"{edge.source}@{copy}", target=f"{edge.target}@{copy}")
        for copy in range(copies)
        for edge in graph.edges
    ]
    edges += [
        Edge(f"{tail}@{copy - 1}", f"{root}@{copy}", "full", data=False)
        for copy in range(1, copies)
        for tail in tails
        for root in graph.roots
    ]
    return KernelGraph(tuple(kernels), tuple(edges))
