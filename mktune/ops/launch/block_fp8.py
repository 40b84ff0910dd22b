"""Block-FP8 GEMMs: template parameters, grid, shared memory, tensor maps (see kernels/ops/block_fp8_gemm.cuh)."""

from __future__ import annotations

from mktune.graph.tensors import round_up
from mktune.launch import Arg, BufferArg, ScalarArg, TensorMapArg
from mktune.ops.dimensions import GROUP
from mktune.ops.gemm_tiles import STEP_BYTES, GemmConfig, Problem
from mktune.plan import OpPlan
from mktune.shape import Shape

_IMPLS = {"wgmma": "mktune::Mma::kWgmma", "mma_sync": "mktune::Mma::kMmaSync"}


def template_parameters(plan: OpPlan) -> tuple[int | str, ...]:
    """Mma, block_m, block_n, split_k, stages, warps."""
    config = GemmConfig.of(plan)
    return _IMPLS[plan.impl], config.block_m, config.block_n, config.split_k, config.stages, config.warps


def grid(config: GemmConfig, problem: Problem, shape: Shape) -> tuple[int, int, int]:
    """(row blocks, column blocks, splits)."""
    return (*config.tiles(problem, shape), config.split_k)


def operands(
    config: GemmConfig, problem: Problem, shape: Shape, weights: tuple[str, str], activations: tuple[str, str]
) -> tuple[Arg, ...]:
    """The first four parameters: maps of weights and activations, the weights' scales, a map of the activations'.

    Each pair names values and scales.
    """
    padded = round_up(shape.m, 4)
    groups = problem.groups // config.split_k
    return (
        _rows(weights[0], problem.n, problem.k, config.block_n, constant=True),
        _rows(activations[0], shape.m, problem.k, config.block_m, constant=False),
        BufferArg(weights[1], constant=True),
        TensorMapArg(
            activations[1], "f32", (padded, problem.groups), (4 * padded,), (config.block_m, groups), swizzle=0, l2=0
        ),
    )


def l2_groups(config: GemmConfig, l2_prefetch_bytes: int) -> ScalarArg:
    """K groups beyond the ring that a CTA asks into L2, as the kernels' last parameter."""
    return ScalarArg(l2_prefetch_bytes // (STEP_BYTES * config.block_n))


def _rows(buffer: str, rows: int, k: int, block: int, constant: bool) -> TensorMapArg:
    """Row-major e4m3 [rows, k] by boxes of `block` rows and one K group. Rows beyond the last arrive as zeros."""
    return TensorMapArg(buffer, "u8", (k, rows), (k,), (GROUP, block), swizzle=128, l2=256, constant=constant)
