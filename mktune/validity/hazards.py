"""Races: two kernels that use the same bytes, one of them writing, without a known order between them.

Judged over two copies of the graph that share every buffer, the second chained behind the first by full edges from
every sink to every root: what a timing graph of many layers does, and the worst that one graph can meet, since whole
launches of a graph in one stream follow each other completely. A sink's early trigger is harmless here: those chain
edges are full, and no other edge leaves a sink.

The second copy needs no pass of its own. It differs from the first by what its roots know at their start, and that
travels along every edge but launch_order like a kernel of its own: one more bit, `1 << len(kernels)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mktune.access import Access, KernelFacts
from mktune.lowering.closure import Known, close
from mktune.lowering.kernel_graph import KernelGraph
from mktune.ops.base import Violation


def hazards(graph: KernelGraph, chained: tuple[str, ...] | None = None, strict: bool = False) -> list[Violation]:
    """Every race of a graph whose kernels stand in topological order, one per pair of kernels and kind.

    chained  the kernels that the next copy's roots follow (default: every sink)
    strict   what a prerequisite's own wait knew does not count; what is found is reported under "transitive"
    """
    everyone = (1 << len(graph.kernels)) - 1
    next_copy = everyone + 1
    closed = close(graph, base=next_copy, transitive=not strict)
    copy_before = 0
    for name in graph.sinks if chained is None else chained:
        copy_before |= closed.completes[name]
    uses = [(closed.bits[kernel.name], _uses_of(kernel)) for kernel in graph.kernels]
    found: list[Violation] = []
    seen = 0
    for kernel, (bit, use) in zip(graph.kernels, uses, strict=True):
        known = closed.known[kernel.name]
        of_before = _of_copy_before(known, next_copy, copy_before)
        if _races(use, known, seen, uses) or _races(use, of_before, everyone, uses):
            found += _explain(graph, kernel, (known, of_before), closed.bits, strict)
        seen |= bit
    return found


class _Uses(NamedTuple):
    """The buffers of one kernel as masks, by how it uses them."""

    written: int
    all: int
    early_reads: int
    early_writes: int
    late_reads: int
    late_writes: int


def _races(use: _Uses, known: Known, others: int, uses: Sequence[tuple[int, _Uses]]) -> bool:
    """Does a kernel conflict with one of `others` that it does not know to be complete?

    Only those that it does not know are looked at: few in any plan that is worth running.
    """
    full, launch, wait = known
    unknown = others & ~wait
    if unknown:
        reads, writes = use.late_reads, use.late_writes
        for bit, other in uses:
            if unknown & bit and (reads & other.written or writes & other.all):
                return True
    unknown = others & ~full if use.early_reads else 0
    if unknown:
        reads = use.early_reads
        for bit, other in uses:
            if unknown & bit and reads & other.written:
                return True
    unknown = others & ~launch if use.early_writes else 0
    return any(unknown & bit and use.early_writes & other.all for bit, other in uses) if unknown else False


def _uses_of(kernel: KernelFacts) -> _Uses:
    """Kept by the identity of the facts, which costs no hashing: ops hand out the same object for the same config.

    The facts are kept beside the answer, so that their id stays theirs.
    """
    kept = _USES.get(id(kernel))
    if kept is None:
        if len(_USES) >= _MAX_KEPT:
            _USES.clear()
        kept = _USES[id(kernel)] = (kernel, _sort_uses(kernel.accesses))
    return kept[1]


_MAX_KEPT = 1 << 15
_USES: dict[int, tuple[KernelFacts, _Uses]] = {}
_BUFFER_BITS: dict[str, int] = {}


def _sort_uses(accesses: tuple[Access, ...]) -> _Uses:
    masks = {(writes, after_wait): 0 for after_wait in (False, True) for writes in (False, True)}
    for access in accesses:
        bit = _BUFFER_BITS.setdefault(access.buffer, 1 << len(_BUFFER_BITS))
        masks[access.writes, access.after_wait] |= bit
    early_reads, early_writes, late_reads, late_writes = masks.values()
    written = early_writes | late_writes
    return _Uses(written, written | early_reads | late_reads, early_reads, early_writes, late_reads, late_writes)


def _of_copy_before(known: Known, next_copy: int, copy_before: int) -> Known:
    """What a kernel of the second copy knows of the first: all that the chain told, wherever the word got through."""
    full, launch, wait = known
    return (
        copy_before if full & next_copy else 0,
        copy_before if launch & next_copy else 0,
        copy_before if wait & next_copy else 0,
    )


def _explain(
    graph: KernelGraph, later: KernelFacts, known: tuple[Known, Known], bits: dict[str, int], strict: bool
) -> Iterator[Violation]:
    """The races of one kernel with earlier ones of its own copy, then those that only the copy before adds."""
    told: set[tuple[str, str]] = set()
    for crossing in (False, True):
        for earlier in graph.kernels:
            if earlier is later and not crossing:
                break
            bit = bits[earlier.name]
            buffers: dict[tuple[str, bool], list[str]] = {}
            for access in later.accesses:
                if not _mask(known[crossing], access) & bit:
                    for kind in _kinds(earlier, access):
                        buffers.setdefault((kind, access.after_wait), []).append(access.buffer)
            for (kind, after_wait), used in buffers.items():
                if (earlier.name, kind) not in told:
                    told.add((earlier.name, kind))
                    yield _violation(kind, earlier, later, used, (after_wait, crossing, strict))


def _mask(known: Known, access: Access) -> int:
    if access.after_wait:
        return known[2]
    return known[1] if access.writes else known[0]


def _kinds(earlier: KernelFacts, access: Access) -> Iterator[str]:
    uses = {other.writes for other in earlier.accesses if other.buffer == access.buffer}
    if True in uses:
        yield "write_after_write" if access.writes else "read_after_write"
    if False in uses and access.writes:
        yield "write_after_read"


_DOES = {"read_after_write": ("reads", "write"), "write_after_read": ("writes", "read")}


def _violation(
    kind: str, earlier: KernelFacts, later: KernelFacts, buffers: list[str], when: tuple[bool, bool, bool]
) -> Violation:
    after_wait, crossing, strict = when
    does, did = _DOES.get(kind, ("writes", "write"))
    use = f"{later.name} {does} {', '.join(dict.fromkeys(buffers))} {'after' if after_wait else 'before'} its wait"
    other = f"{earlier.name} of the copy before" if crossing else earlier.name
    where = f"{earlier.name}->{later.name}"
    if strict:
        return Violation("transitive", where, f"{use}; that {other} is complete then, only waits in between say")
    return Violation(
        kind, where, f"{use} while {other} may still {did} it: {_remedy(where, later, after_wait, crossing)}"
    )


def _remedy(where: str, later: KernelFacts, after_wait: bool, crossing: bool) -> str:
    if crossing:
        return "let every kernel on a path to a sink wait, and chain every sink to the next root"
    if after_wait:
        return f"add an edge {where}, or let every kernel on a path between them wait"
    return f"make {where} a full edge, or let {later.name} wait first (gdc = entry)"
