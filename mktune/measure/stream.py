"""How fast this GPU reads some bytes, boundary included, when a kernel does nothing else: no op can be faster.

The bytes are pulled through a ring of shared-memory stages by bulk copies (kernels/standalone/stream.cu), in the same
chain of layers with full edges that ops are timed in, each layer with bytes of its own. The limit is the best over some
shapes of the ring and the grid.
"""

from __future__ import annotations

import itertools
import math

from mktune.access import KernelFacts
from mktune.device import Device
from mktune.executors.buffers import Buffers
from mktune.executors.cuda_graph import CudaGraph
from mktune.launch import BufferArg, KernelSpec, Launch, ScalarArg
from mktune.lowering.kernel_graph import KernelGraph, specs_of
from mktune.measure.memory import MAX_LAYERS, MIN_LAYERS
from mktune.measure.span import GraphTimer
from mktune.measure.stats import median
from mktune.measure.validation import Build

RINGS = ((8192, 8), (16384, 6), (16384, 12), (32768, 6))
"""Bytes of a chunk, and chunks in flight in one CTA."""

_THREADS = 64
_SAMPLES = 15


def stream_us(size: int, device: Device, build: Build, place: str) -> float:
    """µs per layer for `size` bytes on the device `place`. Needs torch and the current device's context."""
    import torch

    layers = min(MAX_LAYERS, max(MIN_LAYERS, math.ceil(4 * device.l2_bytes / size)))
    step = -(-size // max(chunk for chunk, _ in RINGS)) * max(chunk for chunk, _ in RINGS)
    pool = torch.empty(layers * step, dtype=torch.uint8, device=place).random_(0, 100)
    sink = torch.zeros(2 * device.sms, device=place)
    buffers = Buffers(tuple({"weights": pool.data_ptr() + i * step, "sink": sink.data_ptr()} for i in range(layers)))
    timer = GraphTimer(layers)
    best = math.inf
    for graph in graphs(size, device):
        running = CudaGraph(graph, build(specs_of(graph)), buffers)
        try:
            timer.settle(running)
            best = min(best, median(timer.sample([running] * _SAMPLES)))
        finally:
            running.close()
    return best


def graphs(size: int, device: Device) -> list[KernelGraph]:
    """A layer for each ring that fits and each grid: one or two CTAs an SM."""
    found = []
    for (chunk, stages), ctas in itertools.product(RINGS, (1, 2)):
        if ctas * chunk * stages > device.smem_per_block:
            continue
        args = (BufferArg("weights", constant=True), ScalarArg(-(-size // chunk)), BufferArg("sink"))
        spec = KernelSpec("standalone/stream.cu", f"mktune::stream<{chunk}, {stages}>", constants=(0, 1))
        launch = Launch(spec, (ctas * device.sms, 1, 1), _THREADS, chunk * stages, args)
        facts = KernelFacts("stream", "stream", (), False, "exit")
        found.append(KernelGraph((facts,), (), launches=(("stream", launch),)))
    return found
