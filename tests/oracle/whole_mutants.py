"""Unsafe graphs of the whole prefix that an H200 can be made to show, each with the reason that the rule must give.

- a missing join: an edge between two streams is not there; the consumer reads poison while its producer sleeps
- a read that comes too early: E1 fetches pages before its wait, and B1's trigger says nothing about them
- a chain that starts from one sink only: the other sink's late results lie over those of the next copy
- a workspace of split-K sums that two ops on different streams share, or two copies that no edge orders

Every kernel has few stages: a copy that cannot start beside a CTA that sleeps has no race to show (`NEVER_SHOWN`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from mktune.device import Device
from mktune.graph.builtin import make_plan
from mktune.lowering.graph import lower
from mktune.lowering.kernel_graph import KernelGraph
from mktune.plan import OpPlan, Plan
from mktune.shape import Shape
from tests.oracle.plans import WORKLOAD, place
from tests.oracle.plans import with_edges as with_kinds
from tests.oracle.unsafe import copies_of, with_edges, with_shared

GRAPH = WORKLOAD.graph
DELAY_NS = 400_000
ROWS = (1, 16, 64)
KV = 192
"""Three pages, as many as E1's ring holds: what is written last is among those that it fetches before its wait."""

B1_BEHIND_C0 = ("A0", "B0p", "B0f", "B1p", "C0", "B1f", "D0", "D1p", "D1f", "D2", "E1")
"""Issue order of the bases "held": B1's finalizer follows C0 on its stream and reads its sums only when C0 is done."""

BASES = ("branches", "branches+pdl", "early pages", "early pages, merged", "held", "held+pdl")


@dataclass(frozen=True)
class Case:
    """A base plan with edges of its copies `dropped` and `added`, and buffers of ops in those of others (`shares`).

    slow    the kernel that sleeps, as "C0@0"
    reason  rule and place of a violation that it must be refused for; empty for a safe graph
    """

    base: str
    copies: int
    slow: str
    reason: str = ""
    dropped: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    shares: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        changes = [f"without {edge}" for edge in self.dropped] + [f"with {edge}" for edge in self.added]
        changes += [f"{one} in {other}" for one, other in self.shares]
        return f"{self.base} x{self.copies}: {', '.join(changes) or 'as it is'}; {self.slow} slow"


def _missing_join(base: str, source: str, target: str) -> Case:
    edge = f"{source}@0->{target}@0"
    return Case(base, 1, f"{source}@0", f"read_after_write {edge}", (edge,))


def _early_read(base: str, writer: str, kind: str) -> Case:
    edge = f"{writer}@0->E1@0"
    return Case(base, 1, f"{writer}@0", f"read_after_write {edge}", (edge,), (f"{edge} {kind}",))


def _launch_order_join(source: str, target: str) -> Case:
    """The consumer starts beside its producer and is held by its wait alone."""
    edge = f"{source}@0->{target}@0"
    return Case("branches+pdl", 1, f"{source}@0", "", (edge,), (f"{edge} launch_order",))


def _one_sink(base: str, left_out: str, slow: str, reason: str) -> Case:
    return Case(base, 2, f"{slow}@0", reason, (f"{left_out}@0->A0@1",))


JOINS = (("A0", "C0"), ("A0", "B1p"), ("B0f", "D1p"), ("C0", "D1f"), ("B1f", "E1"), ("D1f", "E1"))

UNSAFE: tuple[Case, ...] = (
    *(_missing_join(base, *join) for base in ("branches", "branches+pdl") for join in JOINS),
    _early_read("early pages", "B1f", "programmatic"),
    _early_read("early pages", "B1f", "launch_order"),
    _early_read("early pages, merged", "B1p", "programmatic"),
    *(
        _one_sink(base, *case)
        for base in ("branches", "branches+pdl")
        for case in (
            ("D2", "D2", "write_after_write D2@0->D2@1"),
            ("D2", "D0", "write_after_write D0@0->D0@1"),
            ("E1", "E1", "write_after_write E1@0->E1@1"),
        )
    ),
    *(
        Case(base, 1, "C0@0", f"write_after_write B0p@0->{later}", shares=(("B1.partials", "B0.partials"),))
        for base, later in (("held", "B1p@0"), ("held+pdl", "B1p@0"))
    ),
    Case("held", 1, "C0@0", "write_after_read B1f@0->D1p@0", shares=(("B1.partials", "D1.partials"),)),
    Case("held", 2, "C0@0", "write_after_read B1f@0->B1p@1", ("E1@0->A0@1",)),
)

NEVER_SHOWN = (Case("branches+pdl", 2, "D0@0", "write_after_write D0@0->D0@1", ("D2@0->A0@1",)), 64)
"""A case that an H200 cannot show at this M: its blocks of 64 rows take so many registers that beside the sleeping D0@0
and the CTAs of D2@0 that wait for it no SM has room for E1@0, behind which the second copy begins. At 1 and 16 rows all
of them fit (`tests/unit/test_oracle_residency.py` counts)."""

SAFE: tuple[Case, ...] = (
    *(Case(base, copies, slow) for base, copies, slow in sorted({(c.base, c.copies, c.slow) for c in UNSAFE})),
    Case("branches+pdl", 2, "D1f@0", shares=(("B0.partials", "D1.partials"),)),
    *(_launch_order_join(source, target) for source, target in JOINS),
)
"""Each base with each slow kernel; then two workspaces that may be one, and joins that only the wait holds."""


def shape_of(m: int) -> Shape:
    return Shape.from_m(m, KV)


@cache
def base_plan(base: str, m: int, arch: str) -> Plan:
    """The plan that a case starts from, at `m` rows."""
    held = base.startswith("held")
    mode = "branches" if base in ("branches", "held") else "branches+pdl"
    plan = make_plan(WORKLOAD, None, shape_of(m), arch, mode, _configs(m, arch, merged="merged" in base))
    if held:
        together = {name: {"stream": plan.kernel["B1p"].stream} for name in ("C0", "B1f")}
        return replace(place(plan, **together), order=B1_BEHIND_C0).canonical()
    if base.startswith("early pages"):
        writer = "B1p" if "merged" in base else "B1f"
        return with_kinds(place(plan, E1={"gdc": "prefetch"}), **{f"{writer}_E1": "full"})
    return plan


def _configs(m: int, arch: str, merged: bool) -> dict[str, OpPlan]:
    found = {}
    for name, plan in WORKLOAD.default_ops(WORKLOAD.ops, arch).items():
        config = dict(plan.config)
        if "block_m" in config:
            config |= {"block_m": 16 if m <= 16 else 64, "stages": 2}
        if merged and name == "B1":
            config["finalizer"] = "last_arriver"
        found[name] = OpPlan.of(plan.impl, config)
    return found


def graph_of(case: Case, m: int, device: Device, launches: bool = False, slow: bool = True) -> KernelGraph:
    """The case at `m` rows; slow=False: nobody sleeps. Raises ValueError where an edge that it drops is not there."""
    plan = base_plan(case.base, m, device.arch)
    lowered = lower(plan, GRAPH, plan.shape, device, launches=launches)
    graph = copies_of(lowered, GRAPH, case.copies, case.slow if slow else "", DELAY_NS)
    return with_shared(with_edges(graph, case.dropped, case.added), dict(case.shares))
