"""bf16 GEMMs: template parameters, shared memory, tensor maps (see kernels/ops/bf16_gemm.cuh)."""

from __future__ import annotations

from mktune.graph.tensors import round_up
from mktune.launch import ScalarArg, TensorMapArg
from mktune.ops.gemm_tiles import BARRIERS, STEP_BYTES, GemmConfig
from mktune.plan import OpPlan

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
