"""Spans of the same graph, however they are sampled: one by one, in batches, with a busy host."""

import os
import subprocess
import sys

import pytest
from test_executor_numbers import OPS, compiled, lowered

from mktune.executors.cuda_graph import CudaGraph
from mktune.graph.builtin import builtin_plans
from mktune.graph.workload import workload
from mktune.measure.memory import layers_for, make_memory
from mktune.measure.span import GraphTimer
from mktune.measure.stats import median, noise_floor
from mktune.shape import Shape

pytestmark = [pytest.mark.gpu, pytest.mark.gpu_alone]


@pytest.fixture(scope="module")
def timed(device):
    known, shape = workload("glm52_attention_prefix"), Shape.from_m(16, 8192)
    graph = known.subgraph(OPS)
    layers = layers_for(graph, shape, device)
    held = make_memory(graph, shape, layers, 0, "cuda:0")
    plan = builtin_plans(known, OPS, shape, device.arch)["serial+pdl"]
    low = lowered(plan, device)
    buffers, spaces = held.timing(plan)
    built = CudaGraph(low, compiled(device, [launch.kernel for _, launch in low.launches]), buffers)
    yield built, GraphTimer(layers), spaces
    built.close()


def test_batches_and_single_launches_agree(timed):
    built, timer, _ = timed
    timer.sample([built] * 5)
    batched = [span for _ in range(10) for span in timer.sample([built] * 12)]
    single = [timer.sample([built])[0] for _ in range(60)]
    print("batched", median(batched), "single", median(single))
    assert median(batched) == pytest.approx(median(single), rel=0.02)


def test_a_busy_host_changes_nothing(timed):
    built, timer, _ = timed
    timer.settle(built)
    quiet = [span for _ in range(5) for span in timer.sample([built] * 12)]
    spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        busy = [span for _ in range(5) for span in timer.sample([built] * 12)]
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()
    print("quiet", median(quiet), "busy", median(busy))
    assert median(busy) == pytest.approx(median(quiet), rel=0.03)


def test_a_plan_against_itself_is_within_the_noise(timed):
    built, timer, _ = timed
    rounds = [timer.sample([built] * 4) for _ in range(16)]
    once = [span for spans in rounds for span in (spans[0], spans[3])]
    again = [span for spans in rounds for span in (spans[1], spans[2])]
    floor = noise_floor(once, again)
    print("noise floor", floor)
    assert floor < 0.01
