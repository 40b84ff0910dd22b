"""Launch of D2: one CTA per row block, head and column block of the head (kernels/standalone/q_absorb.cu), or as a
schedule says (persistent_bf16_gemm.cu).

With impl deep_gemm its GEMM, then RoPE by a kernel of ours (kernels/standalone/q_absorb_rope.cu).
"""

from __future__ import annotations

from mktune.deep_gemm import IMPL
from mktune.device import Device
from mktune.launch import Arg, BufferArg, Launch, ScalarArg
from mktune.ops.deep_gemm.bf16 import ROPE_SOURCE, ROPE_THREADS, ROPE_TOKENS, Absorb
from mktune.ops.deep_gemm.tiles import Tiles
from mktune.ops.dimensions import HEAD_DIM, HEADS, KV_LORA, NOPE
from mktune.ops.gemm_schedules import ONE_TILE, STREAM_K
from mktune.ops.gemm_tiles import GemmConfig
from mktune.ops.launch.bf16 import MMA, STEP_K, l2_steps, rows_map, scheduled, smem_bytes
from mktune.ops.launch.deep_gemm import absorb
from mktune.ops.launch.description import instance, placement
from mktune.ops.q_absorb import QAbsorb
from mktune.plan import KernelPlan, OpPlan
from mktune.shape import Shape


def launches(plan: OpPlan, kernels: tuple[KernelPlan, ...], shape: Shape, device: Device) -> tuple[Launch, ...]:
    """The one kernel of D2, or two. `plan` and `kernels` passed the op's own check."""
    if plan.impl == IMPL:
        return absorb(QAbsorb(), plan, kernels[0], shape), _rope(kernels[1], shape)
    config, (kernel,) = GemmConfig.of(plan), kernels
    workspaces = ("partials", "tile_counters") if config.schedule == STREAM_K else ()
    operands: tuple[Arg, ...] = (
        rows_map("W_uk", HEADS * NOPE, KV_LORA, STEP_K, constant=True),
        rows_map("q", shape.m, HEADS * HEAD_DIM, config.block_m, constant=False),
        BufferArg("q"),
        *(BufferArg(port, constant=True) for port in ("cos", "sin")),
        *(BufferArg(port) for port in ("positions", *workspaces, "mla_q")),
    )
    if config.schedule != ONE_TILE:
        return (scheduled(QAbsorb(), plan, kernel, shape, operands, dynamic_smem(plan, "")),)
    args = (*operands, ScalarArg(shape.m), l2_steps(config, kernel.l2_prefetch_bytes))
    tile = (config.block_m, config.block_n, config.stages, config.warps)
    parameters = (MMA[plan.impl], *tile, *placement(kernel, prefetches=True))
    spec = instance("standalone/q_absorb.cu", "q_absorb", parameters, args)
    return (Launch(spec, (*config.tiles(QAbsorb.problem, shape), 1), config.threads, smem_bytes(plan), args),)


def dynamic_smem(plan: OpPlan, suffix: str) -> int:
    """Bytes of dynamic shared memory of a CTA."""
    if plan.impl == IMPL:
        return 0 if suffix else Absorb().smem_bytes(QAbsorb(), Tiles.of(plan))
    config = GemmConfig.of(plan)
    return smem_bytes(plan) + QAbsorb().staged_bytes(config)


def _rope(kernel: KernelPlan, shape: Shape) -> Launch:
    args: tuple[Arg, ...] = (
        BufferArg("q"),
        *(BufferArg(port, constant=True) for port in ("cos", "sin", "positions")),
        BufferArg("mla_q"),
        ScalarArg(shape.m),
    )
    parameters = (ROPE_THREADS, *placement(kernel, prefetches=False))
    spec = instance(ROPE_SOURCE, "q_absorb_rope", parameters, args)
    return Launch(spec, (-(-shape.m // ROPE_TOKENS), HEADS, 1), ROPE_THREADS, 0, args)
