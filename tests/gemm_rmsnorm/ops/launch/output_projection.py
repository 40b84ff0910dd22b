"""Launch of G (kernels/standalone/output_projection.cu): one CTA per row block, column block and split of K."""

from __future__ import annotations

from gemm_rmsnorm.ops.output_projection import OutputProjection
from mktune.device import Device
from mktune.launch import Arg, BufferArg, Launch, ScalarArg
from mktune.ops.gemm_tiles import GemmConfig
from mktune.ops.launch.bf16 import MMA, l2_steps, rows_map, smem_bytes
from mktune.ops.launch.description import instance, placement
from mktune.plan import KernelPlan, OpPlan
from mktune.shape import Shape


def launches(plan: OpPlan, kernels: tuple[KernelPlan, ...], shape: Shape, device: Device) -> tuple[Launch, ...]:
    """The one kernel of G."""
    config, problem, (kernel,) = GemmConfig.of(plan), OutputProjection.problem, kernels
    # Without splits there are neither partial sums nor counters: not read.
    partials, counters = ("partials", "tile_counters") if config.split_k > 1 else ("projected", "projected")
    args: tuple[Arg, ...] = (
        rows_map("W_o", problem.n, problem.k, config.block_n, constant=True),
        rows_map("attention", shape.m, problem.k, config.block_m, constant=False),
        BufferArg(partials),
        BufferArg(counters),
        BufferArg("projected"),
        ScalarArg(shape.m),
        l2_steps(config, kernel.l2_prefetch_bytes),
    )
    tile = (config.block_m, config.block_n, config.split_k, config.stages, config.warps)
    parameters = (MMA[plan.impl], *tile, *placement(kernel, prefetches=True))
    spec = instance("standalone/output_projection.cu", "output_projection", parameters, args)
    grid = (*config.tiles(problem, shape), config.split_k)
    return (Launch(spec, grid, config.threads, smem_bytes(plan), args),)


def dynamic_smem(plan: OpPlan, suffix: str) -> int:
    """Bytes of dynamic shared memory of a CTA."""
    return smem_bytes(plan)
