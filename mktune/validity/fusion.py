"""May these kernels be one launch? Which fusions exist, whose configs go together, and what would wait for itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from mktune.access import FUSED, KernelFacts
from mktune.graph.fused import cycle_among, parts_of
from mktune.ops.base import Violation
from mktune.ops.sharing import COMMON, apart, l2_limit
from mktune.plan import Config, OpPlan, Plan
from mktune.validity.limits import JudgedGraph

RULE = "fusion"


def unknown_fusions(fused: Sequence[str], judged: JudgedGraph) -> list[Violation]:
    """Fused kernels of a plan that no workload declares: they have no code."""
    known = judged.fusions
    if not (unknown := [name for name in fused if name not in known]):
        return []
    there_are = f"known: {', '.join(known)}" if known else "these ops have no kernel in common"
    return [Violation(RULE, name, f"no such launch; {there_are}") for name in unknown]


def unfusable(plan: Plan, fused: tuple[str, ...], judged: JudgedGraph, facts: Sequence[KernelFacts]) -> list[Violation]:
    """Known fusions that this plan must not have. `facts` are those of the parts, which are right by themselves."""
    kernels = {kernel.name: kernel for kernel in facts}
    found: list[Violation] = []
    for name in fused:
        parts = parts_of(name)
        if absent := [part for part in parts if part not in kernels]:
            found.append(Violation(RULE, name, f"its configs make no {', '.join(absent)}"))
            continue
        found += _of_configs(plan, name, judged)
        found += _of_parts(name, tuple([kernels[part] for part in parts]), judged)
    return found or list(_of_edges(plan, tuple(kernels), fused, judged))


def _of_parts(name: str, parts: tuple[KernelFacts, ...], judged: JudgedGraph) -> tuple[Violation, ...]:
    """Answers are kept by the identity of the facts, as ops give one object for the same config."""
    key = name, tuple(map(id, parts))
    known = judged.fused.get(key)
    if known is None:
        races = _within(parts)
        # The facts are kept beside the answer, so that their ids stay theirs.
        known = judged.keep_fused(key, parts, (Violation(RULE, name, races),) if races else ())
    return known[1]


def _of_edges(plan: Plan, names: tuple[str, ...], fused: tuple[str, ...], judged: JudgedGraph) -> tuple[Violation, ...]:
    """What would wait for itself; the names of the kernels decide it."""
    known = judged.fused.get((names, fused))
    if known is None:
        cycle = _of_cycle(judged.needed_edges(plan, names, fused))
        known = judged.keep_fused((names, fused), (), cycle)
    return known[1]


def _of_configs(plan: Plan, name: str, judged: JudgedGraph) -> list[Violation]:
    ops = judged.fusions[name]
    if reason := _apart(tuple([_common(plan.op[op]) for op in ops])):
        return [Violation(RULE, name, reason)]
    if not (asked := plan.kernel[name].l2_prefetch_bytes):
        return []
    limit = l2_limit([(judged.graph.calls[op].op, plan.op[op]) for op in ops])
    if asked > limit:
        return [Violation("l2_prefetch", name, f"{asked} bytes asked, the rings leave {limit} of a CTA's weights")]
    return []


def _common(op: OpPlan) -> Config:
    """All of a config that decides what it can share a launch with, `impl` first."""
    return ("impl", op.impl), *[pair for pair in op.config if pair[0] in COMMON]


@lru_cache(maxsize=1024)
def _apart(parts: tuple[Config, ...]) -> str:
    return apart([dict(fields) for fields in parts])


def _within(parts: Sequence[KernelFacts]) -> str:
    """Which bytes the parts of one launch would race on: nothing orders their CTAs."""
    for one in parts:
        written = {access.buffer for access in one.accesses if access.writes}
        for other in parts:
            shared = sorted({access.buffer for access in other.accesses} & written) if other is not one else []
            if shared:
                return f"{other.name} uses {', '.join(shared)}, which {one.name} writes: they must be two launches"
    return ""


def _of_cycle(edges: Iterable[tuple[str, str]]) -> tuple[Violation, ...]:
    cycle = cycle_among(edges)
    if not cycle:
        return ()
    name = next(kernel for kernel in cycle if FUSED in kernel)
    at = cycle.index(name)
    way = " -> ".join((*cycle[at:], *cycle[:at], name))
    return (Violation(RULE, name, f"it would wait for itself: {way}"),)
