"""Launch of D0: one kernel, which adds its own splits up (kernels/standalone/main_q.cu, persistent_gemm.cu)."""

from __future__ import annotations

from mktune.device import Device
from mktune.launch import BufferArg, Launch
from mktune.ops.gemm_schedules import ONE_TILE
from mktune.ops.gemm_tiles import GemmConfig
from mktune.ops.launch.block_fp8 import BlockFp8Kernels
from mktune.ops.main_q import MainQ
from mktune.ops.scale_formats import FP32
from mktune.plan import KernelPlan, OpPlan
from mktune.shape import Shape

_KERNELS = BlockFp8Kernels(MainQ, "standalone/main_q.cu", "mktune::MainQ")

dynamic_smem = _KERNELS.dynamic_smem


def launches(
    plan: OpPlan, kernels: tuple[KernelPlan, ...], shape: Shape, device: Device, scale_format: str = FP32
) -> tuple[Launch, ...]:
    """The one kernel of D0. `plan` and `kernels` passed the op's own check."""
    ours = _KERNELS.under(scale_format)
    if ours.sums(plan) == "y":
        return (ours.producer(plan, kernels[0], shape, "q"),)
    if GemmConfig.of(plan).schedule != ONE_TILE:
        return (ours.adding(plan, kernels[0], shape, "q"),)
    rest = tuple(BufferArg(port) for port in ("partials", "tile_counters", "q"))
    return (ours.whole(plan, kernels[0], shape, "main_q_splits", rest),)
