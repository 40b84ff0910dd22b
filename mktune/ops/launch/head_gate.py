"""Launch of C0: one CTA per row block and split of K (kernels/standalone/head_gate.cu), or as a schedule says
(persistent_bf16_gemm.cu).
"""

from __future__ import annotations

from mktune.deep_gemm import IMPL
from mktune.device import Device
from mktune.launch import Arg, BufferArg, Launch, ScalarArg
from mktune.ops.deep_gemm.bf16 import Gate
from mktune.ops.deep_gemm.tiles import Tiles
from mktune.ops.gemm_schedules import ONE_TILE
from mktune.ops.gemm_tiles import GemmConfig
from mktune.ops.head_gate import HeadGate
from mktune.ops.launch.bf16 import MMA, l2_steps, rows_map, scheduled, smem_bytes
from mktune.ops.launch.deep_gemm import gate
from mktune.ops.launch.description import instance, placement
from mktune.plan import KernelPlan, OpPlan
from mktune.shape import Shape


def launches(plan: OpPlan, kernels: tuple[KernelPlan, ...], shape: Shape, device: Device) -> tuple[Launch, ...]:
    """The one kernel of C0. `plan` and `kernels` passed the op's own check."""
    if plan.impl == IMPL:
        return (gate(HeadGate(), plan, kernels[0], shape),)
    config, problem, (kernel,) = GemmConfig.of(plan), HeadGate.problem, kernels
    clustered = config.finalizer == "cluster"
    # Without splits there are neither partial sums nor counters: not read.
    in_pieces = config.split_k > 1 or config.schedule != ONE_TILE
    workspaces = ("partials", "tile_counters") if in_pieces else ("g", "g")
    operands: tuple[Arg, ...] = (
        rows_map("W_g", problem.n, problem.k, problem.n, constant=True),
        rows_map("h", shape.m, problem.k, config.block_m, constant=False),
        *(BufferArg(port) for port in (("g",) if clustered else (*workspaces, "g"))),
    )
    if config.schedule != ONE_TILE:
        return (scheduled(HeadGate(), plan, kernel, shape, operands, smem_bytes(plan)),)
    args = (*operands, ScalarArg(shape.m), l2_steps(config, kernel.l2_prefetch_bytes))
    tile = (config.block_m, config.block_n, config.split_k, config.stages, config.warps)
    parameters = (MMA[plan.impl], *tile, *placement(kernel, prefetches=True))
    spec = instance("standalone/head_gate.cu", "head_gate_cluster" if clustered else "head_gate", parameters, args)
    row_blocks, _ = config.tiles(problem, shape)
    grid = (config.split_k, row_blocks, 1) if clustered else (row_blocks, 1, config.split_k)
    return (Launch(spec, grid, config.threads, smem_bytes(plan), args, cluster=HeadGate().cluster(config)),)


def dynamic_smem(plan: OpPlan, suffix: str) -> int:
    """Bytes of dynamic shared memory of a CTA."""
    return Gate().smem_bytes(HeadGate(), Tiles.of(plan)) if plan.impl == IMPL else smem_bytes(plan)
