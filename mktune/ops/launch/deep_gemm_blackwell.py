"""Launches of DeepGEMM's tcgen05 GEMMs, for contracts whose scales are powers of two (scale_format ue8m0).

With fp32 scales there is no such kernel. What a contract with ue8m0 scales hands over:

    activation scales   int32 [K / 512, M rounded up to 4]: four exponents of K groups of 128, the first in the low byte
    weight scales       int32 [K / 512, N rounded up to 4]: the same for each weight row
"""

from __future__ import annotations

from mktune.graph.tensors import round_up
from mktune.launch import Arg, Launch, TensorMapArg
from mktune.ops.deep_gemm.tall_tiles import HALF_THREADS, MMA_ROWS, STORE_ROWS, TallTiles
from mktune.ops.dimensions import GROUP
from mktune.ops.gemm import GemmOp
from mktune.ops.gemm_tiles import STEP_BYTES
from mktune.ops.launch.deep_gemm import BF16, K_MAJOR, NORMAL, PLAIN_EPILOGUE, instance, rows, sizes
from mktune.plan import KernelPlan
from mktune.shape import Shape

FP8_SOURCE = "providers/deep_gemm/sm100_fp8_gemm.cu"
BF16_SOURCE = "providers/deep_gemm/sm100_bf16_gemm.cu"
E4M3 = "cutlass::float_e4m3_t"

_PACKED = 4 * GROUP  # of K, whose exponents are one word


def fp8_gemm(op: GemmOp, tiles: TallTiles, kernel: KernelPlan, shape: Shape, out: str) -> Launch:
    """out bf16 [M, N] = activations · weightsᵀ, both block-FP8 with scales as above at the op's own ports."""
    problem, (weights, weight_scales), (codes, scales) = op.problem, op.operands, op.activations
    args: tuple[Arg, ...] = (
        *sizes(shape.m, problem.n, problem.k),
        rows(codes, "u8", shape.m, problem.k, tiles.block_m, constant=False),
        rows(weights, "u8", problem.n, problem.k, MMA_ROWS, constant=True),
        _packed_scales(scales, shape.m, problem.k, tiles.block_m, constant=False),
        _packed_scales(weight_scales, problem.n, problem.k, MMA_ROWS, constant=True),
        _results(out, "bf16", shape.m, problem.n),
    )
    granularity = (GROUP, GROUP, GROUP)  # of K: activation scales, weight scales, groups of a grouped GEMM
    parameters = (K_MAJOR, K_MAJOR, *granularity, *_layout(op, tiles, GROUP), *_launched(tiles))
    parameters += ("true", "false", NORMAL, "false", E4M3, E4M3, BF16, PLAIN_EPILOGUE)
    spec = instance(FP8_SOURCE, "sm100_fp8_fp4_gemm_1d1d_impl", parameters, args, kernel)
    grid = (tiles.grid(op.problem, shape.m), 1, 1)
    return Launch(spec, grid, tiles.threads, tiles.smem_bytes(2, scaled=True), args)


def bf16_gemm(op: GemmOp, tiles: TallTiles, kernel: KernelPlan, shape: Shape, out: str) -> Launch:
    """out fp32 [M, N] = activations · weightsᵀ, both bf16."""
    problem, (weights,), (activations,) = op.problem, op.operands, op.activations
    args: tuple[Arg, ...] = (
        *sizes(shape.m, problem.n, problem.k),
        rows(activations, "bf16", shape.m, problem.k, tiles.block_m, constant=False),
        rows(weights, "bf16", problem.n, problem.k, MMA_ROWS, constant=True),
        _results(out, "f32", shape.m, problem.n),
    )
    parameters = (K_MAJOR, K_MAJOR, *_layout(op, tiles, problem.step_k), *_launched(tiles), problem.step_k)
    parameters += ("true", "false", NORMAL, "false", "float", 100)
    spec = instance(BF16_SOURCE, "sm100_bf16_gemm_impl", parameters, args, kernel)
    grid = (tiles.grid(op.problem, shape.m), 1, 1)
    return Launch(spec, grid, tiles.threads, tiles.smem_bytes(4, scaled=False), args)


def _layout(op: GemmOp, tiles: TallTiles, step_k: int) -> tuple[int | str, ...]:
    """Sizes that the compiler knows, tile, groups, swizzles of both operands and of the results, stages."""
    shapes = (0, op.problem.n, op.problem.k, tiles.block_m, MMA_ROWS, step_k, 1)
    return (*shapes, STEP_BYTES, STEP_BYTES, STEP_BYTES, tiles.stages)


def _launched(tiles: TallTiles) -> tuple[int | str, ...]:
    """Threads of the two halves, no multicast, number of CTAs."""
    return HALF_THREADS, HALF_THREADS, 1, "false", tiles.ctas


def _packed_scales(buffer: str, count: int, k: int, block: int, constant: bool) -> TensorMapArg:
    padded = round_up(count, 4)
    dims, box = (padded, -(-k // _PACKED)), (block, 1)
    return TensorMapArg(buffer, "i32", dims, (4 * padded,), box, swizzle=0, l2=256, constant=constant)


def _results(buffer: str, dtype: str, m: int, n: int) -> TensorMapArg:
    """Row-major [m, n], written by boxes of 16 rows and one swizzle atom."""
    size = {"bf16": 2, "f32": 4}[dtype]
    return TensorMapArg(buffer, dtype, (n, m), (n * size,), (STEP_BYTES // size, STORE_ROWS), swizzle=STEP_BYTES)
