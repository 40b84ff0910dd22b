"""Launches that ops share: their parameters one list behind the other, their tiles in one grid (shared_grid.cuh)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mktune.errors import InputError
from mktune.launch import Arg, Launch, ScalarArg
from mktune.ops.gemm_tiles import GemmConfig
from mktune.ops.launch.bf16 import MMA
from mktune.ops.launch.description import instance, placement
from mktune.plan import KernelPlan, OpPlan


def joined(
    source: str,
    template: str,
    plans: Sequence[OpPlan],
    parts: Sequence[Launch],
    parameters: Sequence[Arg],
    kernel: KernelPlan,
) -> Launch:
    """`template` in kernels/`source`, whose template parameters begin with the tilings of `plans`: the CTAs of all
    `parts`. Behind `parameters` the kernel gets an inverse for each part.

    Raises InputError for parts that are clusters or of different sizes.
    """
    if len({part.block for part in parts}) != 1 or any(part.cluster != 1 for part in parts):
        raise InputError(f"{template}: these launches differ in their threads, or are clusters, and cannot be one")
    args = (*parameters, *(ScalarArg(inverse(part.grid[0]), "u32") for part in parts))
    defines = dict(define for part in parts for define in part.kernel.defines)
    template_parameters = (*map(tiling, plans), *placement(kernel, prefetches=True))
    spec = instance(source, template, template_parameters, args, tuple(defines.items()))
    ctas = sum(math.prod(part.grid) for part in parts)
    return Launch(spec, (ctas, 1, 1), parts[0].block, max(part.smem for part in parts), args)


def inverse(row_tiles: int) -> int:
    """What a kernel multiplies a CTA's number by to divide it by its op's row tiles; 0 for one, which needs none."""
    return -(-(1 << 32) // row_tiles) if row_tiles > 1 else 0


def tiling(plan: OpPlan) -> str:
    """The config of a GEMM as the template parameter that selects its tiles."""
    config = GemmConfig.of(plan)
    sizes = (config.block_m, config.block_n, config.split_k, config.stages, config.warps)
    return f"mktune::Tiling<{', '.join(map(str, (MMA[plan.impl], *sizes)))}>"
