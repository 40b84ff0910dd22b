"""A0 → B0 on the GPU: equal to the reference at every M, under every built-in structure and both finalizers."""

import functools
from dataclasses import replace

import pytest

from mktune.graph.builtin import builtin_plans
from mktune.graph.workload import workload
from mktune.jit.build import build
from mktune.launch import KernelSpec
from mktune.lowering.graph import lower
from mktune.measure.correctness import verify
from mktune.measure.gate import check_facts
from mktune.measure.memory import make_memory
from mktune.measure.validation import Effort, delayed, producers, validate
from mktune.plan import OpPlan
from mktune.shape import Shape
from mktune.validity import check

pytestmark = pytest.mark.gpu

OPS = ("A0", "B0")
MS = (1, 2, 7, 8, 16, 17, 64, 100, 128, 256)
KV = 1024
B0_CONFIGS = {
    "default": {},
    "last arriver": {"finalizer": "last_arriver"},
    "no split": {"split_k": 1},
    "mma.sync, last arriver": {"impl": "mma_sync", "block_m": 16, "finalizer": "last_arriver"},
}


@functools.cache
def memory(m, ragged):
    known = workload("glm52_attention_prefix")
    return make_memory(known.subgraph(OPS), Shape.from_m(m, KV), 3, seed=m, place="cuda:0", ragged=ragged)


def plans(m, device, config):
    """The built-in plans at M with changes to B0's default config."""
    known, changes = workload("glm52_attention_prefix"), dict(B0_CONFIGS[config])
    base = known.graph.calls["B0"].op.default(device.arch)
    impl = changes.pop("impl", base.impl)
    op = OpPlan.of(impl, {**dict(base.config), **changes})
    return builtin_plans(known, OPS, Shape.from_m(m, KV), device.arch, {"B0": op})


def lowered(plan, device):
    assert check(plan, device) == []
    return lower(plan, workload(plan.workload).subgraph(OPS), plan.shape, device, launches=True)


def compiled(device, specs: list[KernelSpec]):
    wanted = list(dict.fromkeys(specs))
    return {kernel.spec: kernel for kernel in build(wanted, device.arch)}


@pytest.mark.parametrize("config", B0_CONFIGS)
@pytest.mark.parametrize("m", MS)
def test_results_equal_the_reference(device, m, config):
    for mode in ("serial", "branches+pdl"):
        plan = plans(m, device, config)[mode]
        graph = lowered(plan, device)
        kernels = compiled(device, [launch.kernel for _, launch in graph.launches])
        check_facts(graph, kernels)
        for ragged in (False, True):
            verify(plan, graph, kernels, memory(m, ragged).verification(), replays=3)


@pytest.mark.parametrize("m", MS)
def test_300_replays_over_poison_stay_equal(device, m):
    plan = plans(m, device, "default")["branches+pdl"]
    text = validate(
        plan,
        lowered(plan, device),
        memory(m, ragged=False).verification(),
        functools.partial(compiled, device),
        Effort(plain=300, delayed=40, shuffles=2),
    ).how
    assert text.startswith("380 poisoned replays")
    assert "bit-equal" in text


def test_a_consumer_that_does_not_wait_is_caught_by_delaying_its_producer(device):
    """The edge A0 → B0p taken away: B0p starts with A0 and reads poison once A0 is slow."""
    plan = plans(16, device, "default")["branches+pdl"]
    graph = lowered(plan, device)
    assert producers(graph) == ("A0", "B0p")
    broken = replace(graph, edges=tuple(edge for edge in graph.edges if edge.source != "A0"))
    slow = delayed(broken, "A0")
    kernels = compiled(device, [launch.kernel for _, launch in slow.launches])
    with pytest.raises(Exception, match="B0") as caught:
        verify(plan, slow, kernels, memory(16, ragged=False).verification())
    assert getattr(caught.value, "status", "wrong_result") == "wrong_result"
