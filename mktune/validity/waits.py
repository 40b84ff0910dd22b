"""Rules on edges into a kernel that never waits: an early start is only for kernels that can hold themselves back."""

from __future__ import annotations

from mktune.access import KernelFacts
from mktune.lowering.kernel_graph import KernelGraph
from mktune.ops.base import Violation


def unheld(graph: KernelGraph) -> list[Violation]:
    """Programmatic and launch-order edges into kernels without a wait. A root without one may still trigger early."""
    without = {kernel.name for kernel in graph.kernels if not kernel.waits and never_waits(kernel)}
    return [
        Violation(
            "no_wait",
            f"{edge.source}->{edge.target}",
            f"{edge.target} never waits, so a {edge.kind} edge holds nothing back: make it full",
        )
        for edge in graph.edges
        if edge.kind != "full" and edge.target in without
    ]


def never_waits(kernel: KernelFacts) -> bool:
    """No path of the kernel has a wait: none is promised, and nothing stands behind one."""
    return not kernel.waits and not any(access.after_wait for access in kernel.accesses)
