"""Races: two kernels that use the same bytes, one of them writing, without a known order between them.

Judged over two copies of the graph that share every buffer, the second chained behind the first by full edges from
every sink to every root: what a timing graph of many layers does, and the worst that one graph can meet, since whole
launches of a graph in one stream follow each other completely. A sink's early trigger is harmless here: those chain
edges are full, and no other edge leaves a sink.

The second copy needs no pass of its own. It differs from the first by what its roots know at their start, and that
travels along every edge but launch_order like a kernel of its own: one more bit, `1 << len(kernels)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mktune.access import Access, KernelFacts
from mktune.lowering.closure import Closure, close
from mktune.lowering.kernel_graph import KernelGraph
from mktune.ops.base import Violation

_MAX_INDEXED = 4096


@dataclass(frozen=True)
class ConflictIndex:
    """Per kernel, masks of the kernels that it conflicts with, itself included (its copy before).

    early_reads   by what it reads before its wait
    early_writes  by what it writes before its wait
    late          by what it uses after its wait
    """

    kernels: tuple[KernelFacts, ...]
    early_reads: tuple[int, ...]
    early_writes: tuple[int, ...]
    late: tuple[int, ...]


def hazards(
    graph: KernelGraph, chained: tuple[str, ...] | None = None, transitive: bool = True, rule: str = ""
) -> list[Violation]:
    """Every race of a graph whose kernels stand in topological order, one per pair of kernels and kind.

    chained     the kernels whose copies the next copy's roots follow (default: every sink)
    transitive  False: what a prerequisite's own wait knew does not count (`strict`)
    rule        the violations' rule, where it is not the kind of the race
    """
    index = conflict_index(graph.kernels)
    count = len(graph.kernels)
    next_copy = 1 << count
    known = close(graph, base=next_copy, transitive=transitive)
    tails = graph.sinks if chained is None else chained
    before = 0
    for name, mask in zip(known.names, known.completes, strict=True):
        if name in tails:
            before |= mask & (next_copy - 1)
    found: list[Violation] = []
    for i in range(count):
        reads, writes, late = index.early_reads[i], index.early_writes[i], index.late[i]
        full, launch, wait = known.full[i], known.launch[i], known.wait[i]
        here = (1 << i) - 1
        missing = (reads & ~full | writes & ~launch | late & ~wait) & here
        carried = [before if mask & next_copy else 0 for mask in (full, launch, wait)]
        across = reads & ~carried[0] | writes & ~carried[1] | late & ~carried[2]
        if missing | across:
            found += _explain(graph, known, before, i, rule)
    return found


def conflict_index(kernels: tuple[KernelFacts, ...]) -> ConflictIndex:
    """The index of these kernels, kept: lowering hands out the same facts objects for the same configs."""
    key = tuple(map(id, kernels))
    index = _INDEXED.get(key)
    if index is None:
        if len(_INDEXED) >= _MAX_INDEXED:
            _INDEXED.clear()
        # The index holds the kernels, so that their ids stay theirs while the entry lives.
        index = _INDEXED[key] = _index(kernels)
    return index


_INDEXED: dict[tuple[int, ...], ConflictIndex] = {}


def _index(kernels: tuple[KernelFacts, ...]) -> ConflictIndex:
    users: dict[str, int] = {}
    writers: dict[str, int] = {}
    for bit, kernel in enumerate(kernels):
        for access in kernel.accesses:
            users[access.buffer] = users.get(access.buffer, 0) | 1 << bit
            if access.writes:
                writers[access.buffer] = writers.get(access.buffer, 0) | 1 << bit

    def conflicts(kernel: KernelFacts, chosen: Callable[[Access], bool]) -> int:
        mask = 0
        for access in filter(chosen, kernel.accesses):
            mask |= (users if access.writes else writers).get(access.buffer, 0)
        return mask

    return ConflictIndex(
        kernels,
        tuple(conflicts(kernel, lambda a: not a.after_wait and not a.writes) for kernel in kernels),
        tuple(conflicts(kernel, lambda a: not a.after_wait and a.writes) for kernel in kernels),
        tuple(conflicts(kernel, lambda a: a.after_wait) for kernel in kernels),
    )


def _explain(graph: KernelGraph, known: Closure, before: int, i: int, rule: str) -> Iterator[Violation]:
    """The races of kernel `i` with kernels of its own copy, then those that only the copy before adds."""
    later, next_copy = graph.kernels[i], 1 << len(graph.kernels)
    told: set[tuple[str, str]] = set()
    for crossing in (False, True):
        for bit, earlier in enumerate(graph.kernels if crossing else graph.kernels[:i]):
            buffers: dict[tuple[str, bool], list[str]] = {}
            for access in later.accesses:
                mask = _relevant(known, i, access)
                mask = (before if mask & next_copy else 0) if crossing else mask
                if mask >> bit & 1:
                    continue
                for kind in _kinds(earlier, access):
                    buffers.setdefault((kind, access.after_wait), []).append(access.buffer)
            for (kind, after_wait), names in buffers.items():
                if (earlier.name, kind) not in told:
                    told.add((earlier.name, kind))
                    yield _violation(kind, earlier, later, names, after_wait, crossing, rule)


def _relevant(known: Closure, i: int, access: Access) -> int:
    if access.after_wait:
        return known.wait[i]
    return known.launch[i] if access.writes else known.full[i]


def _kinds(earlier: KernelFacts, access: Access) -> Iterator[str]:
    uses = {other.writes for other in earlier.accesses if other.buffer == access.buffer}
    if True in uses:
        yield "write_after_write" if access.writes else "read_after_write"
    if False in uses and access.writes:
        yield "write_after_read"


def _violation(
    kind: str, earlier: KernelFacts, later: KernelFacts, buffers: list[str], after_wait: bool, crossing: bool, rule: str
) -> Violation:
    does, did = {"write_after_write": ("writes", "write"), "read_after_write": ("reads", "write")}.get(
        kind, ("writes", "read")
    )
    place = "after" if after_wait else "before"
    copy = " of the copy before" if crossing else ""
    names = ", ".join(dict.fromkeys(buffers))
    return Violation(
        rule or kind,
        f"{earlier.name}->{later.name}",
        f"{later.name} {does} {names} {place} its wait while {earlier.name}{copy} may still {did} it: "
        + _remedy(earlier.name, later.name, after_wait, crossing),
    )


def _remedy(earlier: str, later: str, after_wait: bool, crossing: bool) -> str:
    if crossing:
        return f"let every kernel on a path from {earlier} to a sink wait, and chain every sink to the next root"
    if after_wait:
        return f"add an edge {earlier}->{later}, or let every kernel on a path between them wait on a data edge"
    return f"make {earlier}->{later} a full edge, or set gdc of {later} so that it waits first"
