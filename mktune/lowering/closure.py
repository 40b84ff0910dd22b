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

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from mktune.access import KernelFacts
from mktune.lowering.kernel_graph import Edge, KernelGraph

Known = tuple[int, int, int]
"""The masks (full, launch, wait) of one kernel."""

Left = tuple[int, int]
"""The masks (completes, started) of one kernel, for those behind it."""


class Closure(NamedTuple):
    """Sets of kernels as masks: bit i stands for `names[i]`, the kernels by name; higher bits for what `base` holds."""

    names: tuple[str, ...]
    bits: dict[str, int]
    known: dict[str, Known]
    left: dict[str, Left]

    def full(self, name: str) -> tuple[str, ...]:
        """Complete when kernel `name` starts, by its full edges alone."""
        return self.members(self.known[name][0])

    def launch(self, name: str) -> tuple[str, ...]:
        """Complete when kernel `name` starts: D_launch."""
        return self.members(self.known[name][1])

    def wait(self, name: str) -> tuple[str, ...]:
        """Complete when the wait of kernel `name` returns: D_wait."""
        return self.members(self.known[name][2])

    def members(self, mask: int) -> tuple[str, ...]:
        """The kernels of a mask, by name."""
        return tuple(name for index, name in enumerate(self.names) if mask >> index & 1)


def arrive(edges: Sequence[Edge], left: Mapping[str, Left]) -> Known:
    """What a kernel knows by its in-edges, whose sources have `left` something each."""
    full = launch = wait = 0
    for edge in edges:
        completes, started = left[edge.source]
        if edge.kind == "full":
            full |= completes
        elif edge.kind == "programmatic":
            launch |= started
            wait |= completes
        else:
            wait |= completes
    launch |= full
    return full, launch, wait | launch


def leave(kernel: KernelFacts, bit: int, launch: int, wait: int, transitive: bool = True) -> Left:
    """What is left of a kernel that knew `launch` at its start and `wait` after its wait.

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
    names = tuple(sorted([kernel.name for kernel in graph.kernels]))
    inward: dict[str, list[Edge]] = {name: [] for name in names}
    try:
        for edge in graph.edges:
            inward[edge.target].append(edge)
    except KeyError:
        raise ValueError(f"{edge.source} -> {edge.target}: no kernel {edge.target}") from None
    bits = _bits(names)
    left: dict[str, Left] = {}
    known: dict[str, Known] = {}
    at_root = (base, base, base)
    for kernel in graph.kernels:
        name, edges = kernel.name, inward[kernel.name]
        try:
            found = known[name] = arrive(edges, left) if edges else at_root
        except KeyError as missing:
            raise ValueError(f"{missing.args[0]} -> {name}: points backwards or comes from nowhere") from None
        left[name] = leave(kernel, bits[name], found[1], found[2], transitive)
    return Closure(names, bits, known, left)


@lru_cache(maxsize=1024)
def _bits(names: tuple[str, ...]) -> dict[str, int]:
    return {name: 1 << index for index, name in enumerate(names)}


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
