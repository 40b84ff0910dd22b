"""A plan as kernels and edges: what the checks judge and what an executor builds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from mktune.access import KernelFacts
from mktune.launch import Launch


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
