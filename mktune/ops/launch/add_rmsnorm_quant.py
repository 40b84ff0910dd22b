"""Launch of A0 (kernels/standalone/add_rmsnorm_quant.cu): one CTA per row, or several where rows are few."""

from __future__ import annotations

from mktune.device import Device
from mktune.launch import Arg, BufferArg, Launch, ScalarArg
from mktune.ops.launch.description import instance, placement, scale_defines
from mktune.ops.scale_formats import FP32
from mktune.plan import KernelPlan, OpPlan
from mktune.shape import Shape


def launches(
    plan: OpPlan, kernels: tuple[KernelPlan, ...], shape: Shape, device: Device, scale_format: str = FP32
) -> tuple[Launch, ...]:
    """The one kernel of A0."""
    threads = int(dict(plan.config)["threads"])
    args: tuple[Arg, ...] = (
        BufferArg("x"),
        BufferArg("residual"),
        BufferArg("norm_w", constant=True),
        *(BufferArg(port) for port in ("residual_out", "h", "h_q", "h_s")),
        ScalarArg(shape.m),
    )
    parts = _parts(shape, device)
    parameters = (threads, parts, *placement(kernels[0], prefetches=False))
    defines = scale_defines(scale_format)
    spec = instance("standalone/add_rmsnorm_quant.cu", "add_rmsnorm_quant", parameters, args, defines)
    return (Launch(spec, (shape.m, parts, 1), threads, 0, args),)


def _parts(shape: Shape, device: Device) -> int:
    """CTAs that share a row: as many as leave at least half of the SMs to other kernels."""
    return next(parts for parts in (4, 2, 1) if parts == 1 or 2 * shape.m * parts <= device.sms)


def dynamic_smem(plan: OpPlan, suffix: str) -> int:
    """Bytes of dynamic shared memory: none."""
    return 0
