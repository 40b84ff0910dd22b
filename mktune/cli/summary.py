"""What a plan does, in words short enough for a table."""

from __future__ import annotations

from collections import Counter

from mktune.plan import OpPlan, Plan

SHORT_ID = 12


def short_id(plan: Plan) -> str:
    """The beginning of a plan's id that tables show and commands take."""
    return plan.plan_id[:SHORT_ID]


def structure(plan: Plan) -> str:
    """Kernels, streams and kinds of edges: "3 kernels, 1 stream, 2 edges programmatic"."""
    kernels = len(plan.kernels)
    streams = len({kernel.stream for _, kernel in plan.kernels})
    kinds = Counter(kind for _, kind in plan.edges)
    edges = [f"{kinds[kind]} {kind.replace('_', ' ')}" for kind in ("programmatic", "launch_order") if kinds[kind]]
    shown = f"{' + '.join(edges)} of {len(plan.edges)} edges" if edges else "full edges"
    return f"{_count(kernels, 'kernel')}, {_count(streams, 'stream')}, {shown}"


def config(op: OpPlan) -> str:
    """An implementation and its config: "wgmma 16×64 split_k=4 stages=8 warps=4"."""
    values = dict(op.config)
    tile = []
    if "block_m" in values and "block_n" in values:
        tile = [f"{values.pop('block_m')}×{values.pop('block_n')}"]
    return " ".join([op.impl, *tile, *(f"{name}={value}" for name, value in values.items())])


def configs(plan: Plan) -> str:
    """Every op with its config, in op order."""
    return "; ".join(f"{name} {config(op)}" for name, op in plan.ops)


def waits(plan: Plan) -> str:
    """Kernels that wait or trigger elsewhere than at entry and exit: "B0p prefetch/after_wait"."""
    found = []
    for name in plan.order:
        kernel = plan.kernel[name]
        if (kernel.gdc, kernel.trigger) != ("entry", "exit"):
            found.append(f"{name} {kernel.gdc}/{kernel.trigger}")
    return ", ".join(found)


def does(plan: Plan) -> str:
    """All of it on one line."""
    return "; ".join(part for part in (structure(plan), configs(plan), waits(plan)) if part)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
