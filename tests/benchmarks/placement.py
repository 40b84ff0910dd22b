"""How far apart are builds of one plan, by what lies elsewhere in memory? µs per layer, weights cold.

    python -m tests.benchmarks.placement [--m 16] [--kv 8192] [--plan FILE]

First one graph over four seconds; then, eight times each: the graph built again with the same addresses, with
workspaces elsewhere, with arguments and results elsewhere, with modules loaded again, and with all weights and
activations made anew behind a gap. A row is the medians of 24 launches. The plan is branches+pdl with default configs
where no file of one is given. Needs a GPU.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

from mktune.executors.captured import EXECUTABLES
from mktune.executors.discovery import find_device
from mktune.executors.driver_calls import use_device
from mktune.executors.modules import MODULES
from mktune.graph.builtin import make_plan
from mktune.graph.workload import workload
from mktune.jit.build import build
from mktune.lowering.graph import lower
from mktune.lowering.kernel_graph import specs_of
from mktune.measure.memory import Memory, layers_for, make_memory
from mktune.measure.session import Gauges
from mktune.measure.span import GraphTimer
from mktune.measure.stats import median
from mktune.plan import Plan
from mktune.shape import Shape

WORKLOAD = workload("glm52_attention_prefix")
BUILDS, LAUNCHES, SECONDS = 8, 24, 4.0


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--m", type=int, default=16)
    parser.add_argument("--kv", type=int, default=8192)
    parser.add_argument("--plan", type=Path)
    given = parser.parse_args()
    device, place = find_device(), "cuda:0"
    use_device(0)
    shape = Shape.from_m(given.m, given.kv)
    plan = Plan.from_json(given.plan.read_text()) if given.plan else None
    plan = plan or make_plan(WORKLOAD, None, shape, device.arch, "branches+pdl")
    graph = WORKLOAD.subgraph(plan.op_names)
    lowered = lower(plan, graph, plan.shape, device, launches=True)
    kernels = {kernel.spec: kernel for kernel in build(specs_of(lowered), device.arch)}
    layers = layers_for(graph, plan.shape, device)
    timer = GraphTimer(layers)

    def spans(memory: Memory, shift: int = 0) -> list[float]:
        buffers, spaces = memory.timing(plan, shift)
        with EXECUTABLES[plan.executor](lowered, kernels, buffers) as built:
            built.upload(timer.stream.cuda_stream)
            timer.settle(built)
            found = timer.sample([built] * (3 + LAUNCHES))[3:]
        del spaces
        return found

    def row(title: str, medians: list[float]) -> None:
        print(f"{title:24}", " ".join(f"{span:6.2f}" for span in medians), flush=True)

    memory, gauges = make_memory(graph, plan.shape, layers, 0, place), Gauges(device.uuid)
    print(device.name, plan.shape.name, plan.short_id, gauges.read())
    buffers, spaces = memory.timing(plan)
    with EXECUTABLES[plan.executor](lowered, kernels, buffers) as one:
        timer.settle(one)
        over = []
        for _ in range(BUILDS):
            end, samples = time.monotonic() + SECONDS / BUILDS, list[float]()
            while time.monotonic() < end:
                samples += timer.sample([one] * LAUNCHES)
            over.append(median(samples))
        row("one graph over time", over)
    del spaces
    print(gauges.read())
    MODULES.keep(512)
    row("built again", [median(spans(memory)) for _ in range(BUILDS)])
    row("workspaces elsewhere", [median(spans(memory, 512 * (1 + 17 * number))) for number in range(BUILDS)])
    draw = random.Random(0)
    moved = [memory.elsewhere(lambda: 512 * draw.randrange(128)) for _ in range(BUILDS)]
    row("activations elsewhere", [median(spans(each)) for each in moved])
    del moved
    again = []
    for _ in range(BUILDS):
        MODULES.keep(0)
        MODULES.keep(512)
        again.append(median(spans(memory)))
    row("modules loaded again", again)
    elsewhere = []
    for number in range(BUILDS):
        del memory
        torch.cuda.empty_cache()
        gap = torch.empty((1 + 37 * number) << 20, dtype=torch.uint8, device=place)
        memory = make_memory(graph, plan.shape, layers, 0, place)
        elsewhere.append(median(spans(memory)))
        del gap
    row("all memory elsewhere", elsewhere)


if __name__ == "__main__":
    main()
