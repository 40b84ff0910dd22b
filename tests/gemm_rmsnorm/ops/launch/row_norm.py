"""Launch of N (kernels/standalone/row_norm.cu): one CTA per row."""

from __future__ import annotations

from mktune.device import Device
from mktune.launch import Arg, BufferArg, Launch, ScalarArg
from mktune.ops.launch.description import instance, placement
from mktune.plan import KernelPlan, OpPlan
from mktune.shape import Shape


def launches(plan: OpPlan, kernels: tuple[KernelPlan, ...], shape: Shape, device: Device) -> tuple[Launch, ...]:
    """The one kernel of N."""
    threads = int(dict(plan.config)["threads"])
    args: tuple[Arg, ...] = (BufferArg("y"), BufferArg("norm_w", constant=True), BufferArg("h"), ScalarArg(shape.m))
    spec = instance("standalone/row_norm.cu", "row_norm", (threads, *placement(kernels[0], prefetches=False)), args)
    return (Launch(spec, (shape.m, 1, 1), threads, 0, args),)


def dynamic_smem(plan: OpPlan, suffix: str) -> int:
    """Bytes of dynamic shared memory: none."""
    return 0
