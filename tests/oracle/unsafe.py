"""Graphs to show a race with: copies of a lowered graph, one kernel of them asleep, and edges changed or taken away.

Copies share every intermediate, output and workspace, as layers of a model do, and have weights and caches of their
own; so the results that the graph leaves are those of its last copy. A slow kernel sleeps between its trigger and its
first result (MKTUNE_DELAY_NS), for longer than everything else takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from mktune.graph.opgraph import OpGraph
from mktune.launch import Arg, Launch, ScalarArg
from mktune.lowering.closure import repeat
from mktune.lowering.kernel_graph import Edge, KernelGraph

Rename = Callable[[str], str]


def copies_of(lowered: KernelGraph, graph: OpGraph, copies: int, slow: str, delay_ns: int) -> KernelGraph:
    """Copies chained as they should be, kernel K of copy c named "K@c", with kernel `slow` asleep before its results.

    Launches are there where `lowered` has them, each with the weights and caches of its own copy.
    """
    made = []
    for copy in range(copies):
        for name, launch in lowered.launches:
            asleep = (("MKTUNE_DELAY_NS", str(delay_ns)),) if f"{name}@{copy}" == slow else ()
            kernel = replace(launch.kernel, defines=(*launch.kernel.defines, *asleep))
            own = _with_buffers(launch, lambda buffer, copy=copy: own_buffer(graph, buffer, copy))
            made.append((f"{name}@{copy}", replace(own, kernel=kernel)))
    return replace(repeat(lowered, copies), launches=tuple(made))


def with_edges(graph: KernelGraph, dropped: Sequence[str], added: Sequence[str]) -> KernelGraph:
    """Without the edges "source->target" of `dropped`, with those "source->target kind" of `added`.

    Raises ValueError where an edge to be dropped is not there.
    """
    kept = [edge for edge in graph.edges if f"{edge.source}->{edge.target}" not in dropped]
    if len(kept) + len(dropped) != len(graph.edges):
        raise ValueError(f"no such edge: {', '.join(dropped)}")
    return replace(graph, edges=(*kept, *map(_edge, added)))


def with_shared(graph: KernelGraph, shares: Mapping[str, str]) -> KernelGraph:
    """With the buffers that are keys of `shares` in the memory of their values, for the rule and for the launches."""

    def name(buffer: str) -> str:
        return shares.get(buffer, buffer)

    kernels = [
        replace(kernel, accesses=tuple(replace(access, buffer=name(access.buffer)) for access in kernel.accesses))
        for kernel in graph.kernels
    ]
    launches = [(kernel, _with_buffers(launch, name)) for kernel, launch in graph.launches]
    return replace(graph, kernels=tuple(kernels), launches=tuple(launches))


def own_buffer(graph: OpGraph, name: str, copy: int) -> str:
    """The name of a weight or cache of one copy: "W_a@1"; of other buffers, which copies share, their own."""
    return f"{name}@{copy}" if name in graph.tensors and graph.tensors[name].kind in ("weight", "cache") else name


def _with_buffers(launch: Launch, name: Rename) -> Launch:
    def rename(arg: Arg) -> Arg:
        return arg if isinstance(arg, ScalarArg) else replace(arg, buffer=name(arg.buffer))

    return replace(launch, args=tuple(rename(arg) for arg in launch.args))


def _edge(text: str) -> Edge:
    ends, _, kind = text.partition(" ")
    source, _, target = ends.partition("->")
    return Edge(source, target, kind, data=False)
