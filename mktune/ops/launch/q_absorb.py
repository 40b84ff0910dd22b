"""Launch of D2 (kernels/standalone/q_absorb.cu): one CTA per row block, head and column block of the head."""

from __future__ import annotations

from mktune.device import Device
from mktune.launch import Arg, BufferArg, Launch, ScalarArg
from mktune.ops.dimensions import HEAD_DIM, HEADS, KV_LORA, NOPE
from mktune.ops.gemm_tiles import GemmConfig
from mktune.ops.launch.bf16 import MMA, STEP_K, l2_steps, rows_map, smem_bytes
from mktune.ops.launch.description import instance, placement
from mktune.ops.q_absorb import QAbsorb
from mktune.plan import KernelPlan, OpPlan
from mktune.shape import Shape


def launches(plan: OpPlan, kernels: tuple[KernelPlan, ...], shape: Shape, device: Device) -> tuple[Launch, ...]:
    """The one kernel of D2. `plan` and `kernels` passed the op's own check."""
    config, (kernel,) = GemmConfig.of(plan), kernels
    args: tuple[Arg, ...] = (
        rows_map("W_uk", HEADS * NOPE, KV_LORA, STEP_K, constant=True),
        rows_map("q", shape.m, HEADS * HEAD_DIM, config.block_m, constant=False),
        BufferArg("q"),
        *(BufferArg(port, constant=True) for port in ("cos", "sin")),
        *(BufferArg(port) for port in ("positions", "mla_q")),
        ScalarArg(shape.m),
        l2_steps(config, kernel.l2_prefetch_bytes),
    )
    tile = (config.block_m, config.block_n, config.stages, config.warps)
    parameters = (MMA[plan.impl], *tile, *placement(kernel, prefetches=True))
    spec = instance("standalone/q_absorb.cu", "q_absorb", parameters, args)
    return (Launch(spec, (*config.tiles(QAbsorb.problem, shape), 1), config.threads, smem_bytes(plan), args),)


def dynamic_smem(plan: OpPlan, suffix: str) -> int:
    """Bytes of dynamic shared memory of a CTA."""
    return smem_bytes(plan)
