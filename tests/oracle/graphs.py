"""Random small graphs of kernels with any accesses, waits, triggers and edges."""

from __future__ import annotations

from random import Random

from mktune.access import Access, KernelFacts
from mktune.lowering.kernel_graph import Edge, KernelGraph

BUFFERS = "abcd"
KINDS = ("full", "full", "programmatic", "programmatic", "launch_order")


def random_graph(random: Random, kernels: int) -> KernelGraph:
    """Kernels k0, k1, … in topological order; neighbours mostly joined, others half the time."""
    facts = tuple(_random_kernel(random, f"k{number}") for number in range(kernels))
    edges = tuple(
        Edge(f"k{source}", f"k{target}", random.choice(KINDS))
        for target in range(kernels)
        for source in range(target)
        if random.random() < (0.9 if source == target - 1 else 0.4)
    )
    return KernelGraph(facts, edges)


def _random_kernel(random: Random, name: str) -> KernelFacts:
    accesses = tuple(
        Access(random.choice(BUFFERS), random.random() < 0.5, random.random() < 0.7)
        for _ in range(random.randint(1, 3))
    )
    return KernelFacts(
        name, "op", accesses, random.random() < 0.8, random.choice(("exit", "before_wait", "after_wait"))
    )
