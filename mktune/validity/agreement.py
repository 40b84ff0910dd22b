"""Does a plan name its workload, and exactly the kernels and edges of its graph, in an order that its edges allow?"""

from __future__ import annotations

from collections.abc import Set

from mktune.graph.workload import Workload
from mktune.ops.base import Violation
from mktune.plan import CHAINS, EDGE_KINDS, EXECUTORS, SCHEMA_VERSION, EdgeName, Plan


def wrong_header(plan: Plan, known: Workload) -> list[Violation]:
    """A plan for another contract, another version of mktune, or not for its own shape."""
    found = []
    for field, given, wanted in (
        ("contract", plan.contract, known.contract),
        ("scale_format", plan.scale_format, known.scale_format),
    ):
        if given != wanted:
            message = f"the plan has {given!r}, the workload {wanted!r}; tune it again"
            found.append(Violation(field, plan.workload, message))
    if plan.schema != SCHEMA_VERSION:
        found.append(Violation("schema", plan.workload, f"{plan.schema}; this version reads {SCHEMA_VERSION}"))
    if len(plan.ops) != len(plan.op):
        found.append(Violation("ops", plan.workload, "the same op stands there twice"))
    if plan.executor not in EXECUTORS:
        found.append(Violation("executor", plan.executor, f"unknown; use {' or '.join(EXECUTORS)}"))
    for field, value, (low, high) in (("m", plan.shape.m, plan.m_range), ("kv", plan.shape.kv, plan.kv_range)):
        if not low <= value <= high:
            found.append(Violation("range", field, f"the plan's own shape has {value}, outside {low} to {high}"))
    return found


def wrong_order(plan: Plan, names: Set[str]) -> list[Violation]:
    """Kernels other than `names`, which the configs make, a wrong order, streams that are not numbered by use."""
    if len(plan.kernels) != len(names):
        extra = [name for name, _ in plan.kernels if name not in names]
        return [Violation("kernels", plan.workload, f"its configs make no {', '.join(extra) or 'kernel twice'}")]
    kernels = plan.kernel
    if len(plan.order) != len(names) or kernels.keys() != set(plan.order):
        return [Violation("order", plan.workload, "name every kernel exactly once")]
    found = []
    next_stream = 0
    for name in plan.order:
        kernel = kernels[name]
        if kernel.chain not in CHAINS:
            found.append(Violation("chain", name, f"{kernel.chain!r}; use {' or '.join(CHAINS)}"))
        if kernel.stream == next_stream:
            next_stream += 1
        elif not 0 <= kernel.stream < next_stream:
            found.append(Violation("stream", name, f"{kernel.stream}; number streams from 0 by first use in order"))
    return found


def wrong_edges(plan: Plan, needed: frozenset[EdgeName]) -> list[Violation]:
    """Edges that are missing, too many, of an unknown kind or backwards in the plan's order."""
    kinds = plan.edge
    found = []
    if kinds.keys() != needed or len(plan.edges) != len(needed):
        for source, target in sorted(needed - kinds.keys()):
            found.append(Violation("edges", f"{source}->{target}", f"missing: {target} reads what {source} writes"))
        for source, target in sorted(kinds.keys() - needed):
            found.append(Violation("edges", f"{source}->{target}", f"{target} reads nothing that {source} writes last"))
        if len(plan.edges) != len(kinds):
            found.append(Violation("edges", plan.workload, "the same edge stands there twice"))
        return found
    if not _KINDS.issuperset(kinds.values()):
        for (source, target), kind in plan.edges:
            if kind not in _KINDS:
                found.append(Violation("edges", f"{source}->{target}", f"kind {kind!r}; use {', '.join(EDGE_KINDS)}"))
    place = dict(zip(plan.order, range(len(plan.order)), strict=True))
    for source, target in kinds:
        if place[source] > place[target]:
            message = f"{target} stands before {source}, whose results it reads"
            found.append(Violation("order", f"{source}->{target}", message))
    return found


_KINDS = frozenset(EDGE_KINDS)
