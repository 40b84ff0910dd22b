"""Launch of A0 (kernels/standalone/add_rmsnorm_quant.cu): one CTA per row."""

from __future__ import annotations

from mktune.device import Device
from mktune.launch import Arg, BufferArg, Launch, ScalarArg
from mktune.ops.launch.description import instance, placement
from mktune.plan import KernelPlan, OpPlan
from mktune.shape import Shape


def launches(plan: OpPlan, kernels: tuple[KernelPlan, ...], shape: Shape, device: Device) -> tuple[Launch, ...]:
    """The one kernel of A0."""
    threads = int(dict(plan.config)["threads"])
    args: tuple[Arg, ...] = (
        BufferArg("x"),
        BufferArg("residual"),
        BufferArg("norm_w", constant=True),
        *(BufferArg(port) for port in ("residual_out", "h", "h_q", "h_s")),
        ScalarArg(shape.m),
    )
    parameters = (threads, *placement(kernels[0], prefetches=False))
    spec = instance("standalone/add_rmsnorm_quant.cu", "add_rmsnorm_quant", parameters, args)
    return (Launch(spec, (shape.m, 1, 1), threads, 0, args),)


def dynamic_smem(plan: OpPlan, suffix: str) -> int:
    """Bytes of dynamic shared memory: none."""
    return 0
