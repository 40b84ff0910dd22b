"""bf16 GEMMs: template parameters, shared memory, tensor maps (see kernels/ops/bf16_gemm.cuh)."""

from __future__ import annotations

from mktune.graph.tensors import round_up
from mktune.launch import Arg, Launch, ScalarArg, TensorMapArg
from mktune.ops.gemm import GemmOp
from mktune.ops.gemm_schedules import BF16_SOURCE, Shares
from mktune.ops.gemm_tiles import BARRIERS, STEP_BYTES, GemmConfig
from mktune.ops.launch.description import instance, placement, share_args
from mktune.plan import KernelPlan, OpPlan
from mktune.shape import Shape

STEP_K = STEP_BYTES // 2
"""Values of K in one stage."""

MMA = {"wgmma": "mktune::Mma::kWgmma", "mma_sync": "mktune::Mma::kMmaSync"}

_FLAG_BYTES = 16  # behind the ring, for the last of several splits


def smem_bytes(plan: OpPlan) -> int:
    """Dynamic shared memory of one CTA: `Bf16Gemm::kBytes`."""
    config = GemmConfig.of(plan)
    slot = STEP_BYTES * (config.block_n + config.block_m) + 8 * BARRIERS
    exchange = 4 * config.block_m * config.block_n if config.splits_steps else 0
    return round_up(config.stages * slot + _FLAG_BYTES, 128) + exchange


def rows_map(buffer: str, rows: int, columns: int, box_rows: int, constant: bool) -> TensorMapArg:
    """Row-major bf16 [rows, columns] by boxes of `box_rows` rows and 128 bytes. What lies outside arrives as zeros."""
    box = (STEP_K, box_rows)
    return TensorMapArg(buffer, "bf16", (columns, rows), (2 * columns,), box, swizzle=128, l2=256, constant=constant)


def l2_steps(config: GemmConfig, l2_prefetch_bytes: int) -> ScalarArg:
    """Steps beyond the ring that a CTA asks into L2, as the kernels' last parameter."""
    return ScalarArg(l2_prefetch_bytes // (STEP_BYTES * config.block_n))


def scheduled(op: GemmOp, plan: OpPlan, kernel: KernelPlan, shape: Shape, args: tuple[Arg, ...], smem: int) -> Launch:
    """The kernel of the op's schedule, whose CTAs each go through their share of all tiles.

    `args` are its parameters up to the number of rows, `smem` the bytes of dynamic shared memory of a CTA.
    """
    config = GemmConfig.of(plan)
    shares = Shares.of(config, op.problem, config.tiles(op.problem, shape)[0])
    args = (*args, ScalarArg(shape.m), l2_steps(config, kernel.l2_prefetch_bytes), *share_args(shares))
    tile = (config.block_m, config.block_n, config.stages, config.warps)
    parameters = (MMA[plan.impl], *tile, *placement(kernel, prefetches=True))
    spec = instance(BF16_SOURCE, f"{config.schedule}_{op.title}", parameters, args)
    return Launch(spec, (shares.ctas, 1, 1), config.threads, smem, args)
