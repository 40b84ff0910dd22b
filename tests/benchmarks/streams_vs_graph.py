"""The same plans as one CUDA graph, as launches captured into a graph, and as live launches: spans side by side.

    python -m tests.benchmarks.streams_vs_graph [--m 16] [--kv 8192] [--rounds N] [--plan FILE] [--json FILE]

All layers, cold weights, as every span is taken. "captured / graph" is the paired ratio of spans of the same rounds
(A B B A, B A A B) with its interval. "live" is what the GPU takes when the host is ahead: launches
are enqueued behind a blocking kernel. "host" is what the host takes to issue one layer, per layer; where it is longer,
live launches run at its pace. Needs a GPU and torch.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from mktune.device import Device
from mktune.executors.captured import CapturedStreams
from mktune.executors.cuda_graph import CudaGraph
from mktune.executors.discovery import find_device
from mktune.executors.driver_calls import synchronize, use_device
from mktune.executors.streams import Streams
from mktune.graph.builtin import builtin_plans, make_plan
from mktune.graph.workload import workload
from mktune.jit.build import build
from mktune.lowering.graph import lower
from mktune.lowering.kernel_graph import specs_of
from mktune.measure.correctness import verify
from mktune.measure.gpu_lock import gpu_lock
from mktune.measure.memory import Memory, layers_for, make_memory
from mktune.measure.span import GraphTimer, Replayable
from mktune.measure.stats import median, paired_ratio
from mktune.plan import Plan
from mktune.shape import Shape
from mktune.validity import check

WORKLOAD = workload("glm52_attention_prefix")
BAR = 1.03


@dataclass(frozen=True)
class Row:
    """One plan: µs per layer each way, the ratio of captured to graph with its interval, edges stricter live."""

    plan: str
    graph_us: float
    captured_us: float
    ratio: float
    low: float
    high: float
    live_us: float
    host_us: float
    stricter: int


def tuned_like(shape: Shape, arch: str) -> Plan:
    """As winners look: branches with priorities, one consumer from block start, one edge full."""
    base = make_plan(WORKLOAD, None, shape, arch, "branches+pdl")
    kernels = {
        name: replace(kernel, priority=2 if name in ("B0p", "B0f", "D1p") else 0) for name, kernel in base.kernels
    }
    kernels["C0"] = replace(kernels["C0"], trigger="exit")
    edges = {**base.edge, ("A0", "B1p"): "launch_order", ("C0", "D1f"): "full"}
    return replace(base, kernels=tuple(kernels.items()), edges=tuple(edges.items())).canonical()


def measured(name: str, plan: Plan, memory: Memory, device: Device, timer: GraphTimer, rounds: int) -> Row:
    lowered = lower(plan, WORKLOAD.graph, plan.shape, device, launches=True)
    kernels = {kernel.spec: kernel for kernel in build(specs_of(lowered), device.arch)}
    verify(replace(plan, executor="streams"), lowered, kernels, memory.verification())
    buffers, spaces = memory.timing(plan)
    graph, live = CudaGraph(lowered, kernels, buffers), Streams(lowered, kernels, buffers)
    captured = CapturedStreams(lowered, kernels, buffers)
    timer.settle(graph)
    both = palindromes(graph, captured, timer, rounds)
    ratio = paired_ratio(both[1], both[0])
    alone = [span for _ in range(rounds) for span in timer.sample([live, live])]
    spans = [median(each) for each in (*both, alone[2:])]
    host = issue_us(live, timer, memory.layers)
    for built in (graph, captured, live):
        built.close()
    del spaces
    return Row(name, spans[0], spans[1], ratio.median, ratio.low, ratio.high, spans[2], host, len(live.stricter))


def palindromes(first: Replayable, second: Replayable, timer: GraphTimer, rounds: int) -> tuple[list[float], ...]:
    """Two spans a round of each, A B B A and B A A B in turn; the first two rounds are warm-up."""
    samples: tuple[list[float], ...] = ([], [])
    for turn in range(rounds + 2):
        order = (0, 1, 1, 0) if turn % 2 else (1, 0, 0, 1)
        for way, span in zip(order, timer.sample([(first, second)[way] for way in order]), strict=True):
            samples[way].extend([span] if turn > 1 else [])
    return samples


def issue_us(launches: Streams, timer: GraphTimer, layers: int) -> float:
    """Host time to issue one layer, in µs; the GPU is idle before, so that no call waits for room in a queue."""
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        launches.replay(timer.stream.cuda_stream)
        times.append((time.perf_counter() - begin) * 1e6 / layers)
        synchronize()
    return median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description="Spans of a plan as a graph, captured launches and live launches.")
    parser.add_argument("--m", type=int, default=16)
    parser.add_argument("--kv", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--plan", type=Path, help="A plan's JSON; takes the place of the tuned-like plan.")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    use_device(0)
    device, shape = find_device(0), Shape.from_m(given.m, given.kv)
    plans = builtin_plans(WORKLOAD, None, shape, device.arch)
    plans["tuned"] = Plan.from_json(given.plan.read_text()) if given.plan else tuned_like(shape, device.arch)
    for name, plan in plans.items():
        assert not check(plan, device), f"{name} must be valid"
    layers = layers_for(WORKLOAD.graph, shape, device)
    memory, timer = make_memory(WORKLOAD.graph, shape, layers, 0, "cuda:0"), GraphTimer(layers)
    with gpu_lock(device.uuid):
        rows = [measured(name, plan, memory, device, timer, given.rounds) for name, plan in plans.items()]
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    print(f"{device.name}, M {given.m}, KV {given.kv}, {layers} layers, cold weights: µs per layer")
    print(f"{'plan':14}{'graph':>8}{'captured':>10}{'captured / graph':>26}{'live':>8}{'host':>8}  stricter edges live")
    for row in rows:
        ratio = f"{row.ratio:.4f} ({row.low:.4f}–{row.high:.4f})"
        spans = f"{row.graph_us:8.2f}{row.captured_us:10.2f}{ratio:>26}{row.live_us:8.2f}{row.host_us:8.1f}"
        print(f"{row.plan:14}{spans}  {row.stricter}")
    worst = max(row.ratio for row in rows)
    print(f"largest ratio {worst:.4f}, bar {BAR}: {'met' if worst <= BAR else 'MISSED'}")
    return int(worst > BAR)


if __name__ == "__main__":
    raise SystemExit(main())
