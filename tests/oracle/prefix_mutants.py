"""Twenty unsafe graphs of A0 → B0 that an H200 can be made to show: which edges they have and which kernel is slow.

One graph holds one or two copies of the layer; how they and the slow kernel are made is in `unsafe`:

- an edge is missing inside the only copy: the consumer reads poison while its producer sleeps
- the second copy is chained behind too little: the first one's late results lie over those of the second
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from mktune.device import Device
from mktune.graph.builtin import make_plan
from mktune.lowering.graph import lower
from mktune.lowering.kernel_graph import KernelGraph
from mktune.plan import OpPlan, Plan
from tests.oracle.plans import SHAPE, WORKLOAD
from tests.oracle.unsafe import copies_of, with_edges

OPS = ("A0", "B0")
GRAPH = WORKLOAD.subgraph(OPS)
DELAY_NS = 200_000

BASES: dict[str, tuple[str, dict[str, int | str]]] = {
    "serial": ("serial", {}),
    "pdl": ("branches+pdl", {}),
    "pdl, no split": ("branches+pdl", {"split_k": 1}),
    "pdl, merged": ("branches+pdl", {"finalizer": "last_arriver", "stages": 2}),
    "serial, merged": ("serial", {"finalizer": "last_arriver", "stages": 2}),
}
"""Built-in plan and changes to B0's default config, by name. Few stages leave room beside a CTA that sleeps: a copy
that cannot even start has no race to show."""


@dataclass(frozen=True)
class Unsafe:
    """A base plan with `dropped` edges less and `added` ones more; edges are "source->target" or "source->target kind"
    and name kernels of copy c as "A0@c". `slow` is the kernel that sleeps."""

    base: str
    copies: int
    dropped: tuple[str, ...]
    slow: str
    added: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        changes = [f"without {edge}" for edge in self.dropped] + [f"with {edge}" for edge in self.added]
        return f"{self.base}: {', '.join(changes)}; {self.slow} slow"


_JOIN = "B0f@0->A0@1"
_MERGED_JOIN = "B0p@0->A0@1"

UNSAFE: tuple[Unsafe, ...] = (
    *(Unsafe(base, 1, ("A0@0->B0p@0",), "A0@0") for base in BASES),
    *(Unsafe(base, 1, ("B0p@0->B0f@0",), "B0p@0") for base in ("serial", "pdl", "pdl, no split")),
    Unsafe("pdl", 1, ("B0p@0->B0f@0",), "B0p@0", ("A0@0->B0f@0 programmatic",)),
    Unsafe("serial", 1, ("B0p@0->B0f@0",), "B0p@0", ("A0@0->B0f@0 full",)),
    Unsafe("serial", 2, (_JOIN,), "B0f@0", ("A0@0->A0@1 full",)),
    Unsafe("serial", 2, (_JOIN,), "B0f@0", ("B0p@0->A0@1 full",)),
    Unsafe("serial", 2, (_JOIN,), "A0@0"),
    Unsafe("pdl", 2, (_JOIN,), "B0f@0", ("A0@0->A0@1 full",)),
    Unsafe("pdl", 2, (_JOIN,), "B0f@0", ("B0p@0->A0@1 programmatic",)),
    Unsafe("pdl", 2, (_JOIN,), "A0@0"),
    Unsafe("pdl, no split", 2, (_JOIN,), "B0f@0", ("B0p@0->A0@1 launch_order",)),
    Unsafe("pdl, no split", 2, (_JOIN,), "B0f@0"),
    Unsafe("pdl, merged", 2, (_MERGED_JOIN,), "B0p@0", ("A0@0->A0@1 programmatic",)),
    Unsafe("serial, merged", 2, (_MERGED_JOIN,), "A0@0"),
)


@cache
def base_plan(base: str, arch: str) -> Plan:
    """The plan that a mutant starts from."""
    mode, changes = BASES[base]
    default = GRAPH.calls["B0"].op.default(arch)
    b0 = OpPlan.of(default.impl, {**dict(default.config), **changes})
    return make_plan(WORKLOAD, OPS, SHAPE, arch, mode, {"B0": b0})


def safe_graph(base: str, copies: int, device: Device, slow: str = "", launches: bool = False) -> KernelGraph:
    """The base plan's own graph, its copies chained as they should be, with `slow` asleep before its results."""
    lowered = lower(base_plan(base, device.arch), GRAPH, SHAPE, device, launches=launches)
    return copies_of(lowered, GRAPH, copies, slow, DELAY_NS)


def unsafe_graph(mutant: Unsafe, device: Device, launches: bool = False) -> KernelGraph:
    """The mutant. Raises ValueError where an edge that it drops is not there."""
    graph = safe_graph(mutant.base, mutant.copies, device, mutant.slow, launches)
    return with_edges(graph, mutant.dropped, mutant.added)
