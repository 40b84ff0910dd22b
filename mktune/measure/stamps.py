"""When kernels of a graph begin and end, by the GPU's own timer, noted by the kernels themselves in a diagnostic build.

Kernels are built with MKTUNE_STAMPS (kernels/common/diagnostics.cuh); every layer overwrites the stamps of the one
before, so a replay tells of its last layer. A kernel begins with its first CTA and ends with its last. Stamps explain;
they never score, and the span of the stamped graph is given too, so that their cost can be seen.
"""

from __future__ import annotations

import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mktune.errors import InputError
from mktune.executors.cuda_graph import CudaGraph
from mktune.executors.driver_calls import call
from mktune.lowering.kernel_graph import KernelGraph, specs_of
from mktune.measure.memory import Memory
from mktune.measure.span import GraphTimer
from mktune.measure.stats import median
from mktune.measure.validation import Build
from mktune.ops.launch import with_defines
from mktune.plan import Plan

STAMPS = "MKTUNE_STAMPS"
STAMPS_SYMBOL = "mktune_stamps"


def stamped(graph: KernelGraph, kernels: Sequence[str]) -> KernelGraph:
    """The same graph with `kernels` built to note their times. Raises InputError for a kernel that is not there."""
    launches = dict(graph.launches)
    for name in kernels:
        if name not in launches:
            raise InputError(f"no kernel {name!r} to stamp; there are {', '.join(launches)}")
        x, y, z = launches[name].grid
        launches[name] = with_defines(launches[name], {STAMPS: str(x * y * z)})
    return replace(graph, launches=tuple(launches.items()))


def stamp_times(
    plan: Plan,
    lowered: KernelGraph,
    memory: Memory,
    build: Build,
    timer: GraphTimer,
    kernels: Sequence[str],
    replays: int,
) -> dict[str, Any]:
    """{"kernels": {name: [begin, end]}, "stamped_span_us": …}: medians over replays, in µs from the first begin."""
    graph = stamped(lowered, kernels)
    buffers, spaces = memory.timing(plan)
    built = CudaGraph(graph, build(specs_of(graph)), buffers)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in kernels}
    spans: list[float] = []
    try:
        timer.settle(built)
        for _ in range(replays):
            spans += timer.sample([built])
            found = {name: _begin_end(built, name) for name in kernels}
            origin = min(begin for begin, _ in found.values())
            for name, (begin, end) in found.items():
                times[name].append(((begin - origin) / 1e3, (end - origin) / 1e3))
    finally:
        built.close()
    del spaces
    medians = {name: [median(side) for side in zip(*pairs, strict=True)] for name, pairs in times.items()}
    return {"kernels": medians, "stamped_span_us": median(spans)}


def read_words(built: CudaGraph, kernel: str, symbol: str) -> array.array[int]:
    """The u64 words that `kernel` keeps in the `__device__` array `symbol`. The replay that wrote them must be over."""
    address, size = built.symbol(kernel, symbol)
    words = array.array("Q", bytes(size))
    call("cuMemcpyDtoH", words.buffer_info()[0], address, size)
    return words


def _begin_end(built: CudaGraph, kernel: str) -> tuple[int, int]:
    stamps = read_words(built, kernel, STAMPS_SYMBOL)
    return min(stamps[::2]), max(stamps[1::2])
