"""Launches name ports, say which parameters are constant, and refuse what has no kernel."""

from __future__ import annotations

import pytest

from mktune.device import Device
from mktune.errors import InputError, SetupError
from mktune.launch import BufferArg, TensorMapArg
from mktune.ops.gemm import GemmOp
from mktune.ops.launch import dynamic_smem, launches_for, with_defines
from mktune.ops.registry import all_ops
from mktune.plan import KernelPlan, OpPlan
from mktune.shape import Shape

H200 = Device("NVIDIA H200", "sm_90a", 132, 232448, 60 << 20, 4.8e12)
PLAIN = KernelPlan()


def changed(title: str, **fields: int | str) -> OpPlan:
    default = all_ops()[title].default("sm_90a")
    return OpPlan.of(default.impl, {**dict(default.config), **fields})


def b0(**fields: int | str) -> OpPlan:
    return changed("qkv_a", **fields)


CONFIGS: list[tuple[str, dict[str, int | str]]] = [
    *(
        (title, {"block_n": block_n, "split_k": split_k, "finalizer": finalizer})
        for title in ("qkv_a", "indexer_k", "indexer_q")
        for block_n in (64, 128)
        for split_k in (1, 4)
        for finalizer in ("kernel", "last_arriver")
    ),
    ("main_q", {"split_k": 1}),
    ("main_q", {"split_k": 4}),
]


@pytest.mark.parametrize(("title", "fields"), CONFIGS)
def test_a_launch_uses_exactly_the_buffers_of_the_ops_facts(title: str, fields: dict[str, int | str]) -> None:
    op, plan = all_ops()[title], changed(title, **fields)
    assert isinstance(op, GemmOp)
    kernels = (PLAIN,) * len(op.kernels(plan))
    found = launches_for(title, plan, kernels, Shape.from_m(16, 8192), H200)
    for launch, facts in zip(found, op.facts(plan, kernels), strict=True):
        named = {arg.buffer for arg in launch.args if isinstance(arg, BufferArg | TensorMapArg)}
        assert named == {access.buffer for access in facts.accesses}
        written = {access.buffer for access in facts.accesses if access.writes}
        constant = {arg.buffer for arg in launch.args if isinstance(arg, BufferArg | TensorMapArg) and arg.constant}
        assert constant == named & {*op.weights, *op.places}
        assert not constant & written


def test_grids_cover_every_row_and_the_half_tile_at_the_end() -> None:
    gemm, finalizer = launches_for(
        "qkv_a", b0(block_m=16, block_n=128, split_k=6), (PLAIN, PLAIN), Shape.from_m(17, 8192), H200
    )
    assert gemm.grid == (2, 21, 6)
    assert finalizer.grid == (17, 1, 1)
    assert gemm.smem == dynamic_smem("qkv_a", b0(block_m=16, block_n=128, split_k=6), "p")


@pytest.mark.parametrize(
    ("title", "m", "threads", "ctas"),
    [
        ("indexer_k", 1, 128, 1),
        ("indexer_k", 17, 256, 3),
        ("indexer_k", 16, 512, 1),
        ("indexer_q", 1, 256, 4),
        ("indexer_q", 16, 128, 128),
        ("indexer_q", 17, 512, 34),
    ],
)
def test_heads_get_a_warp_each(title: str, m: int, threads: int, ctas: int) -> None:
    plan = changed(title, finalizer_threads=threads)
    _, finalizer = launches_for(title, plan, (PLAIN, PLAIN), Shape.from_m(m, 8192), H200)
    assert (finalizer.grid, finalizer.block) == ((ctas, 1, 1), threads)


@pytest.mark.parametrize(("m", "parts"), [(1, 4), (16, 4), (17, 2), (33, 2), (34, 1), (256, 1)])
def test_few_rows_are_shared_by_several_ctas(m: int, parts: int) -> None:
    plan = all_ops()["add_rmsnorm_quant"].default("sm_90a")
    (launch,) = launches_for("add_rmsnorm_quant", plan, (PLAIN,), Shape.from_m(m, 8192), H200)
    assert launch.grid == (m, parts, 1)
    assert launch.kernel.name_expression.startswith(f"mktune::add_rmsnorm_quant<384, {parts}, ")


def test_an_op_without_kernels_says_so() -> None:
    with pytest.raises(SetupError, match=r"op nothing has no CUDA kernel yet: there is no ops/launch/nothing.py"):
        launches_for("nothing", OpPlan.of("wgmma", {}), (PLAIN,), Shape.from_m(16, 8192), H200)


def test_a_kernel_without_weights_prefetches_nothing() -> None:
    plan = all_ops()["add_rmsnorm_quant"].default("sm_90a")
    with pytest.raises(InputError, match="no weights to prefetch"):
        launches_for("add_rmsnorm_quant", plan, (KernelPlan(gdc="prefetch"),), Shape.from_m(16, 8192), H200)


def test_macros_are_part_of_the_kernel() -> None:
    plan = all_ops()["add_rmsnorm_quant"].default("sm_90a")
    (launch,) = launches_for("add_rmsnorm_quant", plan, (PLAIN,), Shape.from_m(16, 8192), H200)
    delayed = with_defines(launch, {"MKTUNE_DELAY_NS": "20000"})
    assert delayed.kernel.defines == (("MKTUNE_DELAY_NS", "20000"),)
    assert delayed.kernel != launch.kernel
    assert (delayed.grid, delayed.args) == (launch.grid, launch.args)
