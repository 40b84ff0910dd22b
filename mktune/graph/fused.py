"""Kernels that share a launch: the first kernels of some ops, side by side in one grid.

A fused kernel is named by its parts, "B1p+C0", its CTAs in that order. That it stands in a plan's `kernels` in the
place of its parts is all that says that the plan fuses them: configs stay the ops' own, where it runs, waits and
triggers is the fused kernel's. What it does is what its parts do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from mktune.access import FUSED, KernelFacts
from mktune.errors import PlanError
from mktune.graph.opgraph import OpGraph
from mktune.plan import KernelPlan, OpPlan

Fusions = Mapping[str, tuple[str, ...]]
"""Fused kernel → the ops whose first kernels it is."""

_ORDER = ("before_wait", "after_wait", "exit")
_MAX_CACHED = 4096
_CACHED: dict[tuple[str, tuple[int, ...]], tuple[tuple[KernelFacts, ...], KernelFacts]] = {}


@lru_cache(maxsize=1024)
def parts_of(kernel: str) -> tuple[str, ...]:
    """The kernels that a kernel is made of: itself, unless it is fused."""
    return tuple(kernel.split(FUSED))


def fused_among(names: Iterable[str]) -> tuple[str, ...]:
    """Those of the kernels `names` that are fused."""
    return tuple([name for name in names if FUSED in name])


def launched_as(names: Iterable[str]) -> Mapping[str, str]:
    """Part → the kernel that it is a part of, for the fused ones among `names`."""
    return _launched_as(fused_among(names))


@lru_cache(maxsize=1024)
def _launched_as(fused: tuple[str, ...]) -> Mapping[str, str]:
    return {part: name for name in fused for part in parts_of(name)}


def with_parts(kernels: Mapping[str, KernelPlan]) -> Mapping[str, KernelPlan]:
    """`kernels` and the parts of those that are fused, which are placed as the whole."""
    return {**kernels, **{part: kernels[name] for part, name in launched_as(kernels).items()}}


def kernel_ops(graph: OpGraph, op_plans: Mapping[str, OpPlan], fused: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """Kernel → the ops that it computes, in the order of its parts: one, unless it is among `fused`.

    Raises PlanError where an op does not make its part of a fused kernel under its config.
    """
    owners = {kernel: name for name, call in graph.calls.items() for kernel in call.kernel_names(op_plans[name])}
    launched = launched_as(fused)
    if absent := launched.keys() - owners.keys():
        part = min(absent)
        raise PlanError(_not_made(launched[part], part, graph, op_plans))
    return {
        name: tuple(owners[part] for part in parts_of(name))
        for name in dict.fromkeys(launched.get(kernel, kernel) for kernel in owners)
    }


def _not_made(name: str, part: str, graph: OpGraph, op_plans: Mapping[str, OpPlan]) -> str:
    ops = [op for op in graph.calls if part.startswith(op)]
    if not ops:
        return f"{name}: no op here has a kernel {part}"
    op = max(ops, key=len)
    made = ", ".join(graph.calls[op].kernel_names(op_plans[op]))
    one = "the first kernel of an op that shares a launch has one name under every config"
    return f"{name}: {op} makes no {part} under this config, but {made}; {one}"


def fusions_of(graph: OpGraph, fusions: Iterable[tuple[str, ...]], arch: str) -> dict[str, tuple[str, ...]]:
    """The fused kernels that there may be of those `fusions` whose ops are all in `graph`."""
    calls = graph.calls
    return {
        FUSED.join(calls[op].kernel_names(calls[op].op.default(arch))[0] for op in ops): ops
        for ops in fusions
        if calls.keys() >= set(ops)
    }


def fuse_facts(facts: Sequence[KernelFacts], fused: Sequence[str]) -> list[KernelFacts]:
    """`facts` with each kernel of `fused` in the place of its parts. Raises KeyError for an unknown part."""
    found = {kernel.name: kernel for kernel in facts}
    launched = launched_as(fused)
    names = dict.fromkeys([launched.get(kernel.name, kernel.name) for kernel in facts])
    fuse(found, fused)
    return [found[name] for name in names]


def fuse(kernels: dict[str, KernelFacts], fused: Sequence[str]) -> None:
    """Puts each kernel of `fused` behind the others, and takes its parts away. Raises KeyError for an unknown part."""
    merged = {name: _merged(name, tuple([kernels[part] for part in parts_of(name)])) for name in fused}
    for part in launched_as(fused):
        del kernels[part]
    kernels.update(merged)


def fuse_edges(edges: Iterable[tuple[str, str]], fused: Sequence[str]) -> list[tuple[str, str]]:
    """`edges` between kernels, some of which are launched as `fused`: each once, and none within a launch."""
    launched = launched_as(fused)
    renamed = [(launched.get(source, source), launched.get(target, target)) for source, target in edges]
    return list(dict.fromkeys(edge for edge in renamed if edge[0] != edge[1]))


def cycle_among(edges: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Some kernels that each wait for the one before, and the first for the last; empty where there are none."""
    left = set(edges)
    while left:
        sources = {source for source, _ in left}
        kept = {edge for edge in left if edge[1] in sources and any(target == edge[0] for _, target in left)}
        if kept == left:
            return _walked(left)
        left = kept
    return ()


def _walked(edges: set[tuple[str, str]]) -> tuple[str, ...]:
    """Every source of `edges` is some edge's target: following them backwards comes round."""
    before = {target: source for source, target in sorted(edges)}
    path = [min(before)]
    while before[path[-1]] not in path:
        path.append(before[path[-1]])
    return tuple(reversed(path[path.index(before[path[-1]]) :]))


def _merged(name: str, parts: tuple[KernelFacts, ...]) -> KernelFacts:
    """One object for the same parts: the checks keep what they find out about it."""
    known = _CACHED.get(key := (name, tuple(map(id, parts))))
    if known is None:
        if len(_CACHED) >= _MAX_CACHED:
            _CACHED.clear()
        accesses = dict.fromkeys(access for part in parts for access in part.accesses)
        merged = KernelFacts(
            name,
            FUSED.join(part.op for part in parts),
            tuple(accesses),
            all(part.waits for part in parts),
            min((part.trigger for part in parts), key=_ORDER.index),
        )
        # The parts are kept beside the answer, so that their ids stay theirs.
        known = _CACHED[key] = (parts, merged)
    return known[1]
