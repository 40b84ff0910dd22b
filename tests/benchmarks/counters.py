"""One layer of a workload, kernel by kernel, for a profiler that counts: what bounds each of them?

    ncu --clock-control none --profile-from-start off --section SpeedOfLight --section MemoryWorkloadAnalysis \
        --section SchedulerStats --section WarpStateStats --section LaunchStats \
        python -m tests.benchmarks.counters [--m 16] [--kv 8192] [--configs shipped|default] [--ops D0,E1]

The kernels follow each other on one stream (a profiler runs them so anyway), with the configs of the plan that ships
for the shape or with the default ones. The profiler is switched on after a first run; it empties the caches before each
kernel, so that weights are cold. Without ncu nothing is printed but the kernels' names. Needs a GPU and torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from mktune.device import Device
from mktune.executors.discovery import find_device
from mktune.executors.driver_calls import synchronize, use_device
from mktune.executors.streams import Streams
from mktune.graph.builtin import make_plan
from mktune.graph.workload import workload
from mktune.jit.build import build
from mktune.lowering.graph import lower
from mktune.lowering.kernel_graph import specs_of
from mktune.measure.memory import make_memory
from mktune.plan import OpPlan
from mktune.runtime.sources import bundled_winners
from mktune.shape import Shape

WORKLOAD = workload("glm52_attention_prefix")


def shipped_configs(shape: Shape, device: Device) -> Mapping[str, OpPlan]:
    """Of the fastest plan that ships for this shape and GPU."""
    found = [w for w in bundled_winners() if w.plan.shape == shape and w.fingerprint.gpu == device.name]
    if not found:
        raise SystemExit(f"no plan ships for {shape.name} on {device.name}: --configs default")
    return min(found, key=lambda winner: winner.measurement.span_us).plan.op


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--m", type=int, default=16)
    parser.add_argument("--kv", type=int, default=8192)
    parser.add_argument("--ops", default=",".join(WORKLOAD.graph.calls))
    parser.add_argument("--configs", choices=("shipped", "default"), default="shipped")
    given = parser.parse_args()
    device = find_device()
    use_device(0)
    shape, ops = Shape.from_m(given.m, given.kv), tuple(given.ops.split(","))
    configs = shipped_configs(shape, device) if given.configs == "shipped" else {}
    plan = make_plan(
        WORKLOAD, ops, shape, device.arch, "serial", {name: configs[name] for name in ops if name in configs}
    )
    graph = WORKLOAD.subgraph(ops)
    lowered = lower(plan, graph, shape, device, launches=True)
    kernels = {kernel.spec: kernel for kernel in build(specs_of(lowered), device.arch)}
    memory = make_memory(graph, shape, 1, 0, "cuda:0")
    buffers, spaces = memory.timing(plan)
    stream = torch.cuda.current_stream().cuda_stream
    with Streams(lowered, kernels, buffers) as layer:
        layer.replay(stream)
        synchronize()
        torch.cuda.profiler.start()
        layer.replay(stream)
        synchronize()
        torch.cuda.profiler.stop()
    del spaces
    for name, op in plan.ops:
        print(name, op.impl, *(f"{knob}={value}" for knob, value in op.config))


if __name__ == "__main__":
    main()
