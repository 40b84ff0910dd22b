"""Launches of a plan's kernels, with graph-wide buffer names."""

from __future__ import annotations

from dataclasses import replace

from mktune.device import Device
from mktune.graph.opgraph import Call, OpGraph
from mktune.launch import Arg, Launch, ScalarArg
from mktune.ops.launch import launches_for
from mktune.plan import Plan
from mktune.shape import Shape


def launches_of(plan: Plan, graph: OpGraph, shape: Shape, device: Device) -> tuple[tuple[str, Launch], ...]:
    """(kernel, launch) for every kernel, in call order. Raises SetupError for an op without CUDA kernels."""
    found = []
    for name, call in graph.calls.items():
        op = plan.op[name]
        names = call.kernel_names(op)
        made = launches_for(call.op.title, op, tuple(plan.kernel[kernel] for kernel in names), shape, device)
        found += [(kernel, _named(launch, call)) for kernel, launch in zip(names, made, strict=True)]
    return tuple(found)


def _named(launch: Launch, call: Call) -> Launch:
    def rename(arg: Arg) -> Arg:
        return arg if isinstance(arg, ScalarArg) else replace(arg, buffer=call.buffer(arg.buffer))

    return replace(launch, args=tuple(rename(arg) for arg in launch.args))
