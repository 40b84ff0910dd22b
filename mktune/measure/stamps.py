"""How long the first kernel of a graph runs, with what follows it running as it does: stamps before and after it.

A stamp is a node of one thread that writes the GPU's global timer. One stands before the kernel and one behind it, on
full edges, so that the kernels themselves stay as they are. The time between them holds the kernel and two boundaries,
which are the same whatever follows: differences between two such times are the kernel's own. Stamps explain; they
never score, and the span of the stamped graph is given too, so that their cost can be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mktune.access import KernelFacts
from mktune.errors import InputError
from mktune.executors.buffers import Buffers
from mktune.executors.cuda_graph import CudaGraph, Kernels
from mktune.launch import BufferArg, KernelSpec, Launch
from mktune.lowering.kernel_graph import Edge, KernelGraph
from mktune.measure.calibration import CLOCK
from mktune.measure.memory import Memory
from mktune.measure.span import GraphTimer
from mktune.measure.stats import median, median_interval
from mktune.plan import Plan

_BUFFER = "stamps"
_SPEC = KernelSpec(CLOCK, "mktune::stamp")
_BYTES = 16


def stamped(graph: KernelGraph, kernel: str) -> KernelGraph:
    """The same graph with stamps around `kernel`. Raises InputError where that is not the graph's only root."""
    if graph.roots != (kernel,):
        raise InputError(f"stamps go around the only root of a graph: {', '.join(graph.roots)}, not {kernel}")
    before, after = f"before {kernel}", f"after {kernel}"

    def facts(name: str) -> KernelFacts:
        return KernelFacts(name, "stamp", (), False, "exit")

    def launch(offset: int) -> Launch:
        return Launch(_SPEC, (1, 1, 1), 32, 0, (BufferArg(_BUFFER, offset),))

    return replace(
        graph,
        kernels=(facts(before), *graph.kernels, facts(after)),
        edges=(Edge(before, kernel, "full", False), *graph.edges, Edge(kernel, after, "full", False)),
        launches=((before, launch(0)), *graph.launches, (after, launch(8))),
    )


def stamp_times(
    plan: Plan,
    lowered: KernelGraph,
    memory: Memory,
    build: Callable[[Sequence[KernelSpec]], Kernels],
    timer: GraphTimer,
    kernel: str,
    replays: int,
) -> dict[str, Any]:
    """Median time between the stamps over layers and replays, its interval, and the stamped graph's own span (µs)."""
    import torch

    graph = stamped(lowered, kernel)
    buffers, spaces = memory.timing(plan)
    stamps = torch.zeros(memory.layers, _BYTES // 8, dtype=torch.int64, device=memory.place)
    layers = [{**layer, _BUFFER: stamps.data_ptr() + i * _BYTES} for i, layer in enumerate(buffers.layers)]
    built = CudaGraph(graph, build([launch.kernel for _, launch in graph.launches]), Buffers(tuple(layers)))
    times: list[float] = []
    spans: list[float] = []
    try:
        timer.sample([built] * 3)
        for _ in range(replays):
            spans += timer.sample([built])
            times += ((stamps[:, 1] - stamps[:, 0]).double() / 1e3).tolist()
    finally:
        built.close()
    del spaces
    found = median_interval(times)
    return {"kernel_us": found.median, "low_us": found.low, "high_us": found.high, "stamped_span_us": median(spans)}
