"""What a plan does, and what was measured of it, in words short enough for a table."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

from mktune.device import ARCHITECTURES
from mktune.errors import InputError
from mktune.graph.fused import fused_among
from mktune.graph.workload import workload
from mktune.plan import EDGE_KINDS, ConfigValue, OpPlan, Plan
from mktune.shape import Shape

if TYPE_CHECKING:
    from mktune.measure.stats import Interval


def full_name(name: str, scale_format: str) -> str:
    """A workload's name, and the scale format where the name alone does not mean it."""
    try:
        return workload(name, scale_format).full_name
    except InputError:  # of another version
        return f"{name} {scale_format}"


def shape_words(shape: Shape) -> str:
    """ "M 16 (2 × 8), KV 8192": rows as requests × tokens of each."""
    return f"M {shape.m} ({shape.requests} × {shape.tokens_per_request}), KV {shape.kv}"


def size(plan: Plan) -> str:
    """ "3 kernels, 1 stream"; "9 kernels (B1p+C0, D0+D1p fused), 2 streams"."""
    streams = len({kernel.stream for _, kernel in plan.kernels})
    fused = fused_among(plan.kernel)
    together = f" ({', '.join(fused)} fused)" if fused else ""
    return f"{count(len(plan.kernels), 'kernel')}{together}, {count(streams, 'stream')}"


def structure(plan: Plan) -> str:
    """Kernels, streams and kinds of edges: "3 kernels, 1 stream, 2 programmatic edges"."""
    return ", ".join(part for part in (size(plan), _edges(plan)) if part)


def _edges(plan: Plan) -> str:
    kinds = Counter(kind for _, kind in plan.edges)
    if len(kinds) == 1:
        (kind,) = kinds
        return f"{count(len(plan.edges), f'{kind} edge').replace('_', ' ')}"
    counts = [f"{kinds[kind]} {kind}" for kind in EDGE_KINDS if kinds[kind]]
    return f"{' + '.join(counts)} edges".replace("_", " ") if counts else ""


def config(op: OpPlan) -> str:
    """An implementation and its config in full: "wgmma 16×64 split_k=4 stages=8 warps=4"."""
    tile, rest = _tile(op)
    return " ".join([op.impl, *tile, *(f"{name}={value}" for name, value in rest.items())])


def short_config(op: OpPlan) -> str:
    """The same with one letter for each usual field: "wgmma 16×64 k4 s8 w4 persistent/132 kernel/256"."""
    tile, rest = _tile(op)
    # A number that stands alone, as the ctas of deep_gemm do, is a field as any other.
    pairs = [(rest.pop(name), rest.pop(number, None)) for name, number in _PAIRS if name in rest]
    words = [f"{_LETTERS[name]}{value}" if name in _LETTERS else f"{name}={value}" for name, value in rest.items()]
    words += [f"{name}/{number}" if number is not None else f"{name}" for name, number in pairs]
    return " ".join([op.impl, *tile, *words])


_PAIRS = (("schedule", "ctas"), ("finalizer", "finalizer_threads"))
_LETTERS = {"split_k": "k", "stages": "s", "warps": "w", "threads": "t"}


def _tile(op: OpPlan) -> tuple[list[str], dict[str, ConfigValue]]:
    rest = dict(op.config)
    if "block_m" in rest and "block_n" in rest:
        return [f"{rest.pop('block_m')}×{rest.pop('block_n')}"], rest
    return [], rest


def changes(plan: Plan) -> str:
    """The ops whose config is not the default one, with their configs."""
    usual = _defaults(plan.workload, plan.scale_format)
    changed = [f"{name} {short_config(op)}" for name, op in plan.ops if op not in usual.get(name, ())]
    return "; ".join(changed) or "default configs"


@cache
def _defaults(name: str, scale_format: str) -> dict[str, tuple[OpPlan, ...]]:
    """Op → its default on each architecture; empty for a workload that this mktune does not know."""
    try:
        calls = workload(name, scale_format).graph.calls
    except InputError:
        return {}
    return {op: tuple(call.op.default(arch) for arch in ARCHITECTURES) for op, call in calls.items()}


def waits(plan: Plan) -> str:
    """Kernels that wait or trigger elsewhere than at entry and exit: "B0p prefetch/start, A0 B0f prologue/start"."""
    places: dict[str, list[str]] = {}
    for name in plan.order:
        kernel = plan.kernel[name]
        places.setdefault(f"{kernel.gdc}/{kernel.trigger}", []).append(name)
    places.pop("entry/exit", None)
    return ", ".join(f"{' '.join(kernels)} {place}" for place, kernels in places.items())


def does(plan: Plan) -> str:
    """All of it on one line."""
    return "; ".join(part for part in (structure(plan), changes(plan), waits(plan)) if part)


def count(number: int, noun: str) -> str:
    """ "1 trial", "2 trials"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def between(interval: Interval) -> str:
    """ "26.91–27.30"; "−1.20 to −0.95" where a bound is below zero; "–" for a point, as a model gives."""
    if interval.low == interval.high:
        return "–"
    join = "–" if interval.low >= 0 else " to "
    return f"{signed(interval.low)}{join}{signed(interval.high)}"


def signed(value: float, digits: int = 2) -> str:
    """The number with a minus sign that is as wide as a digit; no minus zero."""
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")
