"""How a lowered graph is issued on streams: which stream, which launch may start early, which events. No CUDA here.

A lane is one CUDA stream. Lane 0 is the caller's; every other stream of the plan gets a lane of its own. In a lane a
kernel follows the one before it

    by stream order                where the plan's edge between the two is full
    by stream serialization        where that edge is programmatic, or where lowering dropped it, since others tell more
    in a new lane, by an event     where it is launch_order: a lane knows no start of a block

and edges between lanes are events: recorded behind the producer (full), by its trigger (programmatic), or by the
start of its blocks (launch_order).

Streams order more than edges do, so this may only ever be stricter than the plan, and whether it is strict enough is
not argued but computed: what every kernel then knows to be complete (`lowering.closure`) must hold all that it knows
in the plan's graph. A launch that would start too early by that measure takes stream order instead. What is stricter
than planned is listed in `IssueOrder.stricter`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mktune.lowering.closure import Known, Left, arrive, close, leave
from mktune.lowering.kernel_graph import Edge, KernelGraph

CALLERS_LANE = 0

Stricter = tuple[str, str, str, str]
"""(producer, consumer, planned kind, kind as issued)."""


@dataclass(frozen=True)
class Step:
    """One kernel as it is issued.

    serialized  may start before the kernel before it in its lane has ended (programmatic stream serialization)
    forks       first waits for what the caller's stream held before the graph
    waits       (producer, kind) of the events that its lane waits for before it
    signals     kind of the event that its launch records: "programmatic", "launch_order" or "" for none
    records     an event is recorded behind it: a lane waits for its end, or the caller's stream does
    """

    kernel: str
    lane: int
    serialized: bool = False
    forks: bool = False
    waits: tuple[tuple[str, str], ...] = ()
    signals: str = ""
    records: bool = False


@dataclass(frozen=True)
class IssueOrder:
    """Steps in issue order; the lanes they use; kernels whose end the caller's stream waits for at last."""

    steps: tuple[Step, ...]
    lanes: int
    joins: tuple[str, ...]
    stricter: tuple[Stricter, ...]

    @property
    def forks(self) -> bool:
        """Some lane waits for what the caller's stream held before the graph."""
        return any(step.forks for step in self.steps)


def issue_order(graph: KernelGraph) -> IssueOrder:
    """`graph`, whose kernels stand in issue order, as steps."""
    lane, count = _lanes(graph)
    signals = _signals(graph, lane)
    steps = _Steps(graph, lane, signals)
    for kernel in graph.kernels:
        steps.add(kernel.name)
    joins = tuple(tail for number, (*_, tail) in steps.members.items() if number != CALLERS_LANE)
    recorded = {name for step in steps.done for name, kind in step.waits if kind == "full"}
    done = tuple(replace(step, records=step.kernel in recorded | set(joins)) for step in steps.done)
    return IssueOrder(done, count, joins, tuple(steps.stricter))


def _lanes(graph: KernelGraph) -> tuple[dict[str, int], int]:
    """The lane of every kernel, and how many there are."""
    streams = dict(graph.streams)
    kinds = {(edge.source, edge.target): edge.kind for edge in graph.edges}
    current: dict[int, tuple[int, str]] = {}
    found: dict[str, int] = {}
    count = 0
    for kernel in graph.kernels:
        name, stream = kernel.name, streams.get(kernel.name, 0)
        lane, before = current.get(stream, (-1, ""))
        if lane < 0 or kinds.get((before, name)) == "launch_order":
            lane, count = count, count + 1
        found[name] = lane
        current[stream] = lane, name
    return found, count


def _signals(graph: KernelGraph, lane: Mapping[str, int]) -> dict[str, str]:
    """Producer → kind of the event its launch records. A launch records one: the later of two kinds serves both."""
    found: dict[str, str] = {}
    for edge in graph.edges:
        if edge.kind != "full" and lane[edge.source] != lane[edge.target]:
            both = {found.get(edge.source, edge.kind), edge.kind}
            found[edge.source] = "programmatic" if "programmatic" in both else "launch_order"
    return found


@dataclass
class _Steps:
    """Steps made so far, and what each kernel of them knows and leaves as issued."""

    graph: KernelGraph
    lane: Mapping[str, int]
    signals: Mapping[str, str]
    done: list[Step] = field(default_factory=list)
    stricter: list[Stricter] = field(default_factory=list)
    members: dict[int, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._base = 1 << len(self.graph.kernels)
        self._planned = close(self.graph, self._base)
        self._facts = {kernel.name: kernel for kernel in self.graph.kernels}
        self._left: dict[str, Left] = {}

    def add(self, name: str) -> None:
        lane = self.lane[name]
        earlier = self.members.setdefault(lane, [])
        inward = [edge for edge in self.graph.edges if edge.target == name]
        across = [self._issued(edge) for edge in inward if self.lane[edge.source] != lane]
        direct = next((edge.kind for edge in inward if earlier and edge.source == earlier[-1]), "")
        early = [*across, *([Edge(earlier[-1], name, "programmatic")] if earlier else [])]
        late = [*across, *(Edge(before, name, "full") for before in earlier)]
        serialized = bool(earlier) and direct != "full" and self._suffices(name, early)
        known = arrive(early if serialized else late, self._left)
        forks = lane != CALLERS_LANE and not known[1] & self._base
        known = self._with_base(known) if forks or not earlier else known
        assert _holds(known, self._planned.known[name]), f"{name} is issued with less than its edges"
        self._left[name] = leave(self._facts[name], self._planned.bits[name], known[1], known[2])
        self._note(inward, across, "programmatic" if serialized else "full")
        waits = tuple((edge.source, edge.kind) for edge in across)
        self.done.append(Step(name, lane, serialized, forks, waits, self.signals.get(name, "")))
        earlier.append(name)

    def _issued(self, edge: Edge) -> Edge:
        """An edge between lanes with the kind that its event has."""
        return edge if edge.kind == "full" else replace(edge, kind=self.signals[edge.source])

    def _suffices(self, name: str, edges: list[Edge]) -> bool:
        return _holds(arrive(edges, self._left), self._planned.known[name])

    def _with_base(self, known: Known) -> Known:
        full, launch, wait = known
        return full | self._base, launch | self._base, wait | self._base

    def _note(self, inward: list[Edge], across: list[Edge], in_lane: str) -> None:
        issued = {edge.source: edge.kind for edge in across}
        for edge in inward:
            kind = issued.get(edge.source, in_lane)
            if kind != edge.kind:
                self.stricter.append((edge.source, edge.target, edge.kind, kind))


def _holds(known: Known, wanted: Known) -> bool:
    return all(not want & ~have for have, want in zip(known, wanted, strict=True))
