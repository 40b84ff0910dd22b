"""Rows keep their bits: in every run, beside other requests, and alone as in a batch of eight."""

import functools

import pytest
from whole import WORKLOAD, compiled

from mktune.executors.buffers import Buffers
from mktune.executors.cuda_graph import CudaGraph
from mktune.executors.driver_calls import synchronize
from mktune.executors.torch_memory import workspaces
from mktune.graph.builtin import MODES, make_plan
from mktune.lowering.graph import lower
from mktune.lowering.kernel_graph import specs_of
from mktune.measure.memory import addresses, make_memory, results_of
from mktune.measure.repeatability import repeatability
from mktune.plan import OpPlan
from mktune.shape import Shape
from mktune.trial import YES
from mktune.validity import check

pytestmark = pytest.mark.gpu

KV = 1000
BATCH = Shape(8, 1, KV)
ALONE = Shape(1, 1, KV)
RUNS = 20
VARIANTS: dict[str, dict[str, int | str]] = {
    "default": {},
    "wide splits": {"split_k": 8, "stages": 2},
    "last arriver": {"finalizer": "last_arriver"},
    "last arriver, wide splits": {"split_k": 8, "stages": 2, "finalizer": "last_arriver"},
    "portable": {"impl": "mma_sync", "block_m": 16},
}


def plan_of(variant, shape, arch, mode="branches+pdl"):
    """A plan whose GEMMs have the variant's values, where they exist, and the same tiles at every number of rows."""
    configs = {}
    for name, default in WORKLOAD.default_ops(WORKLOAD.ops, arch).items():
        choices = WORKLOAD.graph.calls[name].op.choices(arch)
        impl = VARIANTS[variant].get("impl", default.impl)
        impl = impl if impl in choices else default.impl
        wanted = {field: value for field, value in VARIANTS[variant].items() if value in choices[impl].get(field, ())}
        configs[name] = OpPlan.of(impl, {**dict(default.config), **wanted})
    return make_plan(WORKLOAD, None, shape, arch, mode, configs)


@functools.cache
def memory():
    return make_memory(WORKLOAD.graph, BATCH, 2, seed=5, place="cuda:0")


class Stage:
    """A plan's graph over given arguments, with results and caches of its own; `replay` gives copies of the results."""

    def __init__(self, plan, device, args, bound):
        assert check(plan, device) == []
        lowered = lower(plan, WORKLOAD.graph, plan.shape, device, launches=True)
        caches = {name: bound[name].clone() for name, spec in WORKLOAD.graph.tensors.items() if spec.kind == "cache"}
        self.results = results_of(WORKLOAD.graph, plan.shape, "cuda:0")
        spaces = workspaces(plan, WORKLOAD.graph, plan.shape, "cuda:0")
        self.held = {**args, **bound, **caches, **self.results, **spaces}
        self.built = CudaGraph(lowered, compiled(device, specs_of(lowered)), Buffers((addresses(self.held),)))

    def replay(self):
        import torch

        self.built.replay(torch.cuda.current_stream().cuda_stream)
        synchronize()
        return {name: value.clone() for name, value in self.results.items()}


def first_row(results, shape):
    """Row 0 of every result as bits; of the logits what lies within its context."""
    import torch

    found = {}
    for name, value in results.items():
        dims = WORKLOAD.graph.tensors[name].dims
        axis = next(place for place, dim in enumerate(dims) if dim in ("m", "m4"))
        row = value.select(axis, 0).contiguous()
        row = row[: int(memory().args["context_lens"][0])] if name == "logits" else row
        found[name] = row.view(torch.uint8).cpu()
    return found


@pytest.mark.parametrize("variant", VARIANTS)
def test_twenty_runs_give_the_same_bits(device, variant):
    import torch

    stage = Stage(plan_of(variant, BATCH, device.arch), device, memory().args, memory().bound[0])
    first, *others = [stage.replay() for _ in range(RUNS)]
    stage.built.close()
    length = memory().args["context_lens"]
    for name, value in first.items():
        for other in others:
            if name == "logits":
                for row, end in enumerate(length.tolist()):
                    assert torch.equal(value[row, :end], other[name][row, :end]), name
            else:
                assert torch.equal(value.view(torch.uint8), other[name].view(torch.uint8)), name


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_row_is_the_same_alone_and_in_a_batch_of_eight(device, variant):
    args, bound = memory().args, memory().bound[0]
    alone = {name: value[:1].contiguous() for name, value in args.items()}
    batch = Stage(plan_of(variant, BATCH, device.arch), device, args, bound)
    single = Stage(plan_of(variant, ALONE, device.arch), device, alone, bound)
    left, right = first_row(batch.replay(), BATCH), first_row(single.replay(), ALONE)
    batch.built.close()
    single.built.close()
    assert [name for name in left if not left[name].equal(right[name])] == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_validation_finds_that_bits_repeat_beside_other_requests(device, variant, mode):
    plan = plan_of(variant, BATCH, device.arch, mode)
    lowered = lower(plan, WORKLOAD.graph, BATCH, device, launches=True)
    copies = memory().verification()
    found = repeatability(plan, lowered, compiled(device, specs_of(lowered)), copies, 1, 0)
    assert found.batch_invariant == YES
