"""The example engine: eight captured batch sizes over one pool of pages, four layers, thousands of steps.

Each batch size first runs uncaptured, and its layers are held against the reference op by op; what it left is then
what every captured step must leave, bit by bit, over results that were poisoned before.
"""

from __future__ import annotations

import logging

import pytest

torch = pytest.importorskip("torch")

from examples.decode_loop import RESULTS, WORKLOAD, DecodeLoop, StepPlans  # noqa: E402

from mktune.backends.base import Problem  # noqa: E402
from mktune.graph.builtin import make_plan  # noqa: E402
from mktune.lowering.graph import lower  # noqa: E402
from mktune.lowering.kernel_graph import specs_of  # noqa: E402
from mktune.measure.compile_ahead import CompileAhead  # noqa: E402
from mktune.measure.cuda_bench import fingerprint_of  # noqa: E402
from mktune.ops.evaluate import differences  # noqa: E402
from mktune.ops.inputs import make_inputs  # noqa: E402
from mktune.runtime import PlanBook  # noqa: E402
from mktune.shape import Shape  # noqa: E402
from mktune.trial import Measurement, Policy, Winner  # noqa: E402

pytestmark = pytest.mark.gpu

KV = 512
LAYERS = 4
REPLAYS = 10_000
TUNED = {1: "branches+pdl", 16: "serial+pdl", 64: "branches", 128: "branches+pdl"}
BATCHES = {1: "branches+pdl", 4: "serial", 10: "serial+pdl", 16: "serial+pdl", 40: "branches", 64: "branches",
           128: "branches+pdl", 200: "serial"}  # fmt: skip
"""Batch size → the built-in plan that it gets: the tuned one that serves it, or the serial one."""
POOL = Shape(256, 1, 1024)
CACHES = tuple(name for name, spec in WORKLOAD.graph.tensors.items() if spec.kind == "cache")
WEIGHTS = tuple(name for name, spec in WORKLOAD.graph.tensors.items() if spec.kind == "weight")
ARGS = tuple(name for name, spec in WORKLOAD.graph.tensors.items() if spec.kind == "arg")


def book_of(device):
    """Winners at the tuned batch sizes, as if tuned on this GPU."""
    measurement = Measurement(1.0, 1.0, 1.0, (1.0,), Policy("cuda"))
    winners = []
    for m, mode in TUNED.items():
        shape = Shape(m, 1, KV)
        plan = make_plan(WORKLOAD, None, shape, device.arch, mode)
        made = fingerprint_of(device, Problem(WORKLOAD.name, WORKLOAD.ops, shape))
        winners.append(Winner(plan, measurement, made, "serial", 1.0, 1.0, 1.0, 0.0, True, validated="for a test"))
    return PlanBook.of(winners)


def compile_ahead(device):
    """Kernels of all batch sizes, side by side; loading them would compile one after the other."""
    specs = []
    for m, mode in BATCHES.items():
        plan = make_plan(WORKLOAD, None, Shape(m, 1, KV), device.arch, mode)
        specs += specs_of(lower(plan, WORKLOAD.graph, plan.shape, device, launches=True))
    ahead = CompileAhead(device.arch)
    try:
        ahead.wait(list(dict.fromkeys(specs)))
    finally:
        ahead.close()


def layers():
    """Weights of each layer, and pools with pages for all batch sizes."""
    pools = [make_inputs(WORKLOAD.graph, POOL, seed, "cuda:0", only=CACHES) for seed in range(LAYERS)]
    weights = [make_inputs(WORKLOAD.graph, Shape(1, 1, KV), seed, "cuda:0", only=WEIGHTS) for seed in range(LAYERS)]
    return [{**pool, **own} for pool, own in zip(pools, weights, strict=True)]


def copies(model):
    """The caches of every layer as they are now."""
    return [{name: layer[name].clone() for name in CACHES} for layer in model]


def inputs_of_all():
    """Arguments of each batch size, every one on pages of its own."""
    found, page = {}, 0
    for m in BATCHES:
        shape = Shape(m, 1, KV)
        found[m] = make_inputs(WORKLOAD.graph, shape, m, "cuda:0", only=ARGS)
        found[m]["block_table"] += page
        found[m]["slots"] += 64 * page
        page += found[m]["block_table"].numel()
    assert page <= POOL.requests * POOL.kv // 64
    return found


def left_by(step):
    """All that a step leaves, as bytes."""
    tensors = [step.hidden, *step.residuals, *(results[name] for results in step.results for name in RESULTS)]
    return [tensor.view(torch.uint8) for tensor in tensors]


def recorded(work):
    """`work` as a graph: three launches instead of dozens in the loop of replays."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


class Watch:
    """Poisons what a step leaves, and counts the tensors that are not as expected afterwards, on the GPU."""

    def __init__(self, step, expected):
        self.unequal = torch.zeros((), dtype=torch.int64, device="cuda:0")
        self.poison = recorded(lambda: [left.fill_(0xFF) for left in left_by(step)])
        pairs = list(zip(left_by(step), expected, strict=True))
        self.count = recorded(lambda: [self.unequal.add_((left != right).any()) for left, right in pairs])
        self.unequal.zero_()


def expected_of(loop, model, inputs, shape):
    """What the uncaptured step leaves, its first and last layer judged op by op."""
    wrong, pools = [], copies(model)

    def judge(layer):
        if layer in (0, LAYERS - 1):
            torch.cuda.synchronize()
            before = {**step.plans[layer].tensors, **{name: pools[layer][name] for name in CACHES}}
            wrong.extend(differences(WORKLOAD.graph, before, step.plans[layer].tensors, shape))

    step = loop.replayed(inputs, shape, judge)
    for left in left_by(step):
        left.fill_(0xFF)
    step.run()
    torch.cuda.synchronize()
    assert wrong == [], shape
    kept = [left.clone() for left in left_by(step)]
    step.close()
    return kept


def test_ten_thousand_steps_over_eight_captured_batch_sizes_equal_the_reference(device, caplog):
    compile_ahead(device)
    plans, model, inputs = StepPlans(book_of(device), device), layers(), inputs_of_all()
    loop = DecodeLoop(model, plans)
    pools = copies(model)
    expected = {m: expected_of(loop, model, inputs[m], Shape(m, 1, KV)) for m in BATCHES}
    written = copies(model)
    for layer, pool in zip(model, pools, strict=True):
        for name in CACHES:
            layer[name].copy_(pool[name])

    steps = {m: loop.captured(inputs[m], Shape(m, 1, KV)) for m in BATCHES}
    for m, step in steps.items():
        (loaded,) = step.plans  # one for all layers
        mode = BATCHES[m]
        tuned = min((size for size in TUNED if size >= m), default=m) if mode != "serial" else m
        assert loaded.plan == make_plan(WORKLOAD, None, Shape(tuned, 1, KV), device.arch, mode), m
    (warning,) = [record for record in caplog.records if record.name == "examples.decode_loop"]
    assert warning.levelno == logging.WARNING
    assert {shape.m for shape in plans.missed} == {4, 200}

    watches = {m: Watch(steps[m], expected[m]) for m in BATCHES}
    order = list(BATCHES)
    for turn in range(REPLAYS):
        m = order[turn % len(order)]
        watches[m].poison.replay()
        steps[m].run()
        watches[m].count.replay()
    torch.cuda.synchronize()
    unequal = {m: int(watch.unequal) for m, watch in watches.items()}
    print(f"{REPLAYS} replays over {len(BATCHES)} captured batch sizes, unequal tensors by batch size: {unequal}")
    assert unequal == dict.fromkeys(BATCHES, 0)
    for layer, pool in zip(model, written, strict=True):
        assert all(torch.equal(layer[name].view(torch.uint8), pool[name].view(torch.uint8)) for name in CACHES)

    # Other inputs in the same places give other results: the comparison sees, and the step reads what is there now.
    inputs[16]["x"].neg_()
    steps[16].run()
    watches[16].count.replay()
    torch.cuda.synchronize()
    assert int(watches[16].unequal) > 0
    for step in steps.values():
        step.close()
