"""Launches of a plan's kernels, with graph-wide buffer names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mktune.device import Device
from mktune.graph.fused import fused_among, kernel_ops, launched_as, parts_of
from mktune.graph.opgraph import Call, OpGraph
from mktune.launch import Arg, Launch, ScalarArg
from mktune.ops.launch import fused_launch, launches_for
from mktune.ops.scale_formats import FP32
from mktune.ops.sharing import placed_part
from mktune.plan import KernelPlan, OpPlan, Plan
from mktune.shape import Shape


def launches_of(plan: Plan, graph: OpGraph, shape: Shape, device: Device) -> tuple[tuple[str, Launch], ...]:
    """(kernel, launch) for every kernel, in call order. Raises SetupError for an op without CUDA kernels."""
    found: dict[str, Launch] = {}
    for name, call in graph.calls.items():
        op = plan.op[name]
        placed = placed_kernels(call, op, plan.kernel)
        scales = call.op.scale_format if call.op.ue8m0_ports else FP32
        made = launches_for(call.op.title, op, placed, shape, device, scales)
        found |= {kernel: _named(launch, call) for kernel, launch in zip(call.kernel_names(op), made, strict=True)}
    fused = fused_among(plan.kernel)
    return tuple(
        (name, _fused(plan, graph, name, ops, found) if name in fused else found[name])
        for name, ops in kernel_ops(graph, plan.op, fused).items()
    )


def placed_kernels(call: Call, op: OpPlan, kernels: Mapping[str, KernelPlan]) -> tuple[KernelPlan, ...]:
    """How those kernels of a configured call that `kernels` has are placed, be it as parts of fused ones."""
    launched = launched_as(kernels)
    placed = []
    for name in call.kernel_names(op):
        if name in launched:
            placed.append(placed_part(call.op, op, kernels[launched[name]]))
        elif name in kernels:
            placed.append(kernels[name])
    return tuple(placed)


def _fused(plan: Plan, graph: OpGraph, name: str, ops: tuple[str, ...], found: dict[str, Launch]) -> Launch:
    """The launch of a fused kernel, from those of its parts."""
    titles, plans = [graph.calls[op].op.title for op in ops], [plan.op[op] for op in ops]
    return fused_launch(titles, plans, [found[part] for part in parts_of(name)], plan.kernel[name])


def _named(launch: Launch, call: Call) -> Launch:
    def rename(arg: Arg) -> Arg:
        return arg if isinstance(arg, ScalarArg) else replace(arg, buffer=call.buffer(arg.buffer))

    return replace(launch, args=tuple(rename(arg) for arg in launch.args))
