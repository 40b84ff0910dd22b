"""Configs that do not exist or do not fit are named, with what to change."""

import pytest

from mktune.device import Device
from mktune.ops.gemm import GemmConfig
from mktune.ops.registry import all_ops
from mktune.plan import KernelPlan, OpPlan
from mktune.shape import Shape

H200 = Device("NVIDIA H200", "sm_90a", 132, 232448, 60 << 20, 4.8e12)
B300 = Device("NVIDIA B300", "sm_103a", 148, 232448, 126 << 20, 8e12)
SHAPE = Shape(2, 8, 8192)
OPS = all_ops()


def violations(title, device=H200, impl=None, placement=None, **config):
    op = OPS[title]
    default = op.default(device.arch)
    plan = OpPlan.of(impl or default.impl, {**dict(default.config), **config})
    kernels = placement or (KernelPlan(),) * len(op.kernels(plan))
    return {(v.rule, v.message) for v in op.violations(plan, kernels, SHAPE, device)}


def rules(*args, **config):
    return {rule for rule, _ in violations(*args, **config)}


@pytest.mark.parametrize("title", sorted(OPS))
def test_defaults_are_fine(title):
    assert not violations(title)
    assert not violations(title, B300)


@pytest.mark.parametrize(
    ("title", "config", "rule"),
    [
        ("qkv_a", {"split_k": 5}, "config"),
        ("main_q", {"split_k": 3}, "config"),
        ("q_absorb", {"split_k": 2}, "config"),
        ("head_gate", {"block_n": 128}, "config"),
        ("qkv_a", {"split_k": 8, "stages": 9}, "stages"),
        ("qkv_a", {"split_k": 1, "stages": 12, "block_m": 128}, "smem"),
        ("qkv_a", {"block_m": 128, "block_n": 128, "stages": 4, "impl": "mma_sync"}, "tile"),
        ("q_absorb", {"split_k": 3, "stages": 2}, "stages"),
        ("q_absorb", {"block_n": 64, "warps": 8, "split_k": 3}, "warps"),
        ("qkv_a", {"finalizer": "cluster"}, "config"),
        ("qkv_a", {"cluster": 2}, "config"),
        ("qkv_a", {"block_m": "16"}, "config"),
        ("add_rmsnorm_quant", {"threads": 256}, "config"),
        ("paged_indexer_score", {"kv_split": 64, "stages": 3}, "stages"),
        ("paged_indexer_score", {"kv_split": 64, "stages": 2, "ahead": "page"}, "ahead"),
        ("paged_indexer_score", {"kv_split": 64, "stages": 2, "ahead": "turns"}, "ahead"),
        ("paged_indexer_score", {"q_block": 2, "ahead": "half"}, "ahead"),
        ("paged_indexer_score", {"q_block": 2, "ahead": "turns"}, "ahead"),
        ("paged_indexer_score", {"kv_split": 4096}, "kv_split"),
        ("paged_indexer_score", {"ahead": "none"}, "config"),
    ],
)
def test_what_does_not_exist_or_fit(title, config, rule):
    assert rule in rules(title, **config)


def test_wgmma_is_hoppers():
    assert rules("main_q", B300, impl="wgmma") == {"impl"}
    assert not violations("main_q", H200, impl="mma_sync")
    assert rules("main_q", B300, block_m=8) == {"config"}
    assert not violations("main_q", H200, block_m=8)


def test_a_missing_field_is_named():
    op = OPS["main_q"]
    plan = OpPlan.of("wgmma", {"block_m": 16})
    assert op.violations(plan, (KernelPlan(),), SHAPE, H200)[0].message == "block_n is missing"


def test_finalizers_do_not_prefetch():
    placement = (KernelPlan(gdc="prefetch"), KernelPlan(gdc="prefetch"))
    assert violations("qkv_a", placement=placement) == {
        ("gdc", "kernel 'f' cannot wait at prefetch; it knows entry, prologue")
    }
    assert rules("add_rmsnorm_quant", placement=(KernelPlan(gdc="prefetch"),)) == {"gdc"}


def test_l2_prefetch_needs_prefetch_and_weights_beyond_the_ring():
    config = {"split_k": 1, "stages": 8}
    rest = 8 * 128 * 128
    prefetch = KernelPlan(gdc="prefetch", l2_prefetch_bytes=rest)
    assert not violations("main_q", placement=(prefetch,), **config)
    assert rules("main_q", placement=(KernelPlan(gdc="prefetch", l2_prefetch_bytes=rest + 1),), **config) == {
        "l2_prefetch"
    }
    assert rules("main_q", placement=(KernelPlan(l2_prefetch_bytes=rest),), **config) == {"l2_prefetch"}


def test_a_plan_places_every_kernel():
    assert rules("qkv_a", placement=(KernelPlan(),)) == {"kernels"}


def test_smem_grows_with_stages_and_fits_where_it_should():
    config = GemmConfig(block_m=16, block_n=128, split_k=1, stages=8, warps=4)
    assert 8 * 128 * 144 < config.smem_bytes() < 8 * 128 * 144 + 4096
    assert GemmConfig(16, 64, 1, 8, 8).smem_bytes() > GemmConfig(16, 64, 1, 8, 4).smem_bytes()


def test_a_key_is_not_summed_in_whole_groups_by_wgmma():
    large = {"block_m": 128, "block_n": 128, "stages": 2, "warps": 8}
    assert any("half K groups" in message for _, message in violations("indexer_k", **large))
    assert not any("half K groups" in message for _, message in violations("indexer_k", impl="mma_sync", **large))
    assert not any("half K groups" in message for _, message in violations("main_q", **large))
