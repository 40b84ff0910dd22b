"""DeepGEMM's tcgen05 templates compile for both Blackwells, multiply by tensor memory, and take what launches give."""

from __future__ import annotations

import pytest
from test_deep_gemm_gemms import maps_of, packed

from mktune import deep_gemm
from mktune.executors.arguments import check_tensor_map
from mktune.jit.build import build
from mktune.jit.cubin import parameters
from mktune.launch import Launch, ScalarArg
from mktune.ops.deep_gemm.tall_tiles import TallTiles
from mktune.ops.gemm import GemmOp
from mktune.ops.launch.deep_gemm_blackwell import bf16_gemm, fp8_gemm
from mktune.ops.registry import all_ops
from mktune.plan import KernelPlan
from mktune.shape import Shape

pytestmark = pytest.mark.skipif(bool(deep_gemm.missing()), reason=deep_gemm.missing())

SHAPE = Shape.from_m(17, 8192)
FP8, BF16 = TallTiles(block_m=32, stages=6, ctas=148), TallTiles(block_m=16, stages=6, ctas=132)


def gemm(title: str) -> GemmOp:
    op = all_ops()[title]
    assert isinstance(op, GemmOp)
    return op


def launches(trigger: str = "after_wait") -> dict[str, Launch]:
    """MMA instruction → launch."""
    kernel = KernelPlan(gdc="prologue", trigger=trigger)
    return {
        "UTCQMMA": fp8_gemm(gemm("qkv_a"), FP8, kernel, SHAPE, "y"),
        "UTCHMMA": bf16_gemm(gemm("head_gate"), BF16, kernel, SHAPE, "g"),
    }


@pytest.mark.parametrize("arch", ["sm_100a", "sm_103a"])
def test_templates_multiply_wait_and_take_their_arguments(arch: str) -> None:
    for (mma, launch), kernel in zip(
        launches().items(), build([one.kernel for one in launches().values()], arch), strict=True
    ):
        facts = kernel.facts
        assert facts is not None
        assert (facts.mma, facts.tma, facts.waits, facts.trigger_place) == ((mma,), True, "always", "after_wait")
        assert (facts.loads_before_wait, facts.unproven, kernel.spill_bytes, facts.local_accesses) == (0, (), 0, 0)
        found = parameters(kernel.cubin, kernel.symbol)
        assert found.ranges == packed(launch, found.start)


def test_scales_are_words_of_four_exponents() -> None:
    h, weights, h_scales, w_scales, y = maps_of(launches()["UTCQMMA"])
    assert (h.dims, h.box, weights.dims, weights.box) == ((6144, 17), (128, 32), (6144, 2624), (128, 128))
    assert (h_scales.dtype, h_scales.dims, h_scales.strides, h_scales.box) == ("i32", (20, 12), (80,), (32, 1))
    assert (w_scales.dtype, w_scales.dims, w_scales.strides, w_scales.box) == ("i32", (2624, 12), (10496,), (128, 1))
    assert (y.dims, y.strides, y.box, y.swizzle) == ((2624, 17), (5248,), (64, 16), 128)
    assert [one.constant for one in (h, weights, h_scales, w_scales, y)] == [False, True, False, True, False]
    for one in (h, weights, h_scales, w_scales, y):
        check_tensor_map(one, 0)


def test_results_of_the_gate_are_fp32() -> None:
    *_, g = maps_of(launches()["UTCHMMA"])
    assert (g.buffer, g.dtype, g.dims, g.box, g.swizzle) == ("g", "f32", (32, 17), (32, 16), 128)


def test_grid_threads_and_shared_memory() -> None:
    fp8, gate = launches()["UTCQMMA"], launches()["UTCHMMA"]
    assert (fp8.grid, fp8.block, fp8.cluster) == ((21, 1, 1), 256, 1)
    # Two buffers of results; a slot has tokens, weights, two rows of scales, three barriers; six more words of 8 bytes.
    assert fp8.smem == 2 * 16 * 128 * 2 + 6 * (32 * 128 + 128 * 128 + 2 * 512 + 24) + 48
    assert gate.grid == (2, 1, 1)
    assert gate.smem == 2 * 16 * 128 * 4 + 6 * (16 * 128 + 128 * 128 + 24) + 48
    assert [arg.value for arg in fp8.args if isinstance(arg, ScalarArg)] == [0, 17, 2624, 6144]
