"""Launches of DeepGEMM's tcgen05 GEMMs, for contracts whose scales are powers of two (scale_format ue8m0).

No op offers them yet: with fp32 scales there is no such kernel. What a contract with ue8m0 scales hands over:

    activation scales   int32 [K / 512, M rounded up to 4]: four exponents of K groups of 128, the first in the low byte
    weight scales       int32 [K / 512, N rounded up to 4]: the same for each weight row

Weights are the tall operand of the MMA (128 rows), tokens the other, so that few tokens are no waste.
"""

from __future__ import annotations

from dataclasses import dataclass

from mktune.graph.tensors import round_up
from mktune.launch import Arg, Launch, TensorMapArg
from mktune.ops.dimensions import GROUP
from mktune.ops.gemm import GemmOp
from mktune.ops.gemm_tiles import STEP_BYTES
from mktune.ops.launch.deep_gemm import BF16, K_MAJOR, NORMAL, PLAIN_EPILOGUE, instance, rows, sizes
from mktune.plan import KernelPlan
from mktune.shape import Shape

FP8_SOURCE = "providers/deep_gemm/sm100_fp8_gemm.cu"
BF16_SOURCE = "providers/deep_gemm/sm100_bf16_gemm.cu"
E4M3 = "cutlass::float_e4m3_t"

MMA_ROWS = 128
"""Weight rows of a tile."""
STORE_ROWS = 16
"""Tokens whose results leave together, from one of two buffers."""
THREADS = 128
"""Of each half of a CTA: loading, multiplying and transposing scales; and storing results."""

_PACKED = 4 * GROUP  # of K, whose exponents are one word
_STORE_BUFFERS, _RESULT_STAGES = 2, 2
_BARRIER = 8


@dataclass(frozen=True)
class TallTiles:
    """A tile of block_m tokens (a multiple of 16 up to 128) by 128 weight rows; `ctas` CTAs go from tile to tile."""

    block_m: int
    stages: int
    ctas: int

    def grid(self, op: GemmOp, rows: int) -> int:
        """CTAs that are launched: those beyond one for each tile would end at once."""
        return min(self.ctas, -(-rows // self.block_m) * -(-op.problem.n // MMA_ROWS))

    def smem_bytes(self, result_bytes: int, scaled: bool) -> int:
        """Dynamic shared memory of a CTA: buffers of results, ring, scales, barriers, a word for tensor memory."""
        results = _STORE_BUFFERS * STORE_ROWS * MMA_ROWS * result_bytes
        slot = (self.block_m + MMA_ROWS) * STEP_BYTES + 3 * _BARRIER
        if scaled:
            slot += 4 * (round_up(self.block_m, MMA_ROWS) + MMA_ROWS)
        return results + self.stages * slot + (2 * _RESULT_STAGES + 2) * _BARRIER


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
    grid = (tiles.grid(op, shape.m), 1, 1)
    return Launch(spec, grid, 2 * THREADS, tiles.smem_bytes(2, scaled=True), args)


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
    grid = (tiles.grid(op, shape.m), 1, 1)
    return Launch(spec, grid, 2 * THREADS, tiles.smem_bytes(4, scaled=False), args)


def _layout(op: GemmOp, tiles: TallTiles, step_k: int) -> tuple[int | str, ...]:
    """Sizes that the compiler knows, tile, groups, swizzles of both operands and of the results, stages."""
    shapes = (0, op.problem.n, op.problem.k, tiles.block_m, MMA_ROWS, step_k, 1)
    return (*shapes, STEP_BYTES, STEP_BYTES, STEP_BYTES, tiles.stages)


def _launched(tiles: TallTiles) -> tuple[int | str, ...]:
    """Threads of the two halves, no multicast, number of CTAs."""
    return THREADS, THREADS, 1, "false", tiles.ctas


def _packed_scales(buffer: str, count: int, k: int, block: int, constant: bool) -> TensorMapArg:
    padded = round_up(count, 4)
    dims, box = (padded, -(-k // _PACKED)), (block, 1)
    return TensorMapArg(buffer, "i32", dims, (4 * padded,), box, swizzle=0, l2=256, constant=constant)


def _results(buffer: str, dtype: str, m: int, n: int) -> TensorMapArg:
    """Row-major [m, n], written by boxes of 16 rows and one swizzle atom."""
    size = {"bf16": 2, "f32": 4}[dtype]
    return TensorMapArg(buffer, dtype, (n, m), (n * size,), (STEP_BYTES // size, STORE_ROWS), swizzle=STEP_BYTES)
