"""A plan as kernels and edges: what the checks judge and what an executor builds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from mktune.access import KernelFacts
from mktune.launch import KernelSpec, Launch


@dataclass(frozen=True)
class Edge:
    """An ordering edge between two kernels.

    kind   full, programmatic (the port after the trigger) or launch_order (programmatic, the port at block start)
    data   True: a def-use edge of the workload; False: only the order of a stream
    """

    source: str
    target: str
    kind: str
    data: bool = True


@dataclass(frozen=True)
class KernelGraph:
    """Kernels in issue order and the edges between them. Buffers in `facts` and `launches` are graph-wide names.

    launches is empty where only the facts were asked for.
    """

    kernels: tuple[KernelFacts, ...]
    edges: tuple[Edge, ...]
    streams: tuple[tuple[str, int], ...] = ()
    priorities: tuple[tuple[str, int], ...] = ()
    launches: tuple[tuple[str, Launch], ...] = ()

    @cached_property
    def roots(self) -> tuple[str, ...]:
        """Kernels without an in-edge."""
        targets = {edge.target for edge in self.edges}
        return tuple(kernel.name for kernel in self.kernels if kernel.name not in targets)

    @cached_property
    def sinks(self) -> tuple[str, ...]:
        """Kernels without an out-edge."""
        sources = {edge.source for edge in self.edges}
        return tuple(kernel.name for kernel in self.kernels if kernel.name not in sources)


def with_priorities(graph: KernelGraph, priorities: Mapping[str, int]) -> KernelGraph:
    """The same graph with other node priorities."""
    return replace(graph, priorities=tuple(sorted(priorities.items())))


def all_full(graph: KernelGraph) -> KernelGraph:
    """The same kernels with every edge full."""
    return replace(graph, edges=tuple(replace(edge, kind="full") for edge in graph.edges))


def specs_of(graph: KernelGraph) -> list[KernelSpec]:
    """The kernels that `graph` launches, each once, in issue order."""
    launches = dict(graph.launches)
    return list(dict.fromkeys(launches[kernel.name].kernel for kernel in graph.kernels))
