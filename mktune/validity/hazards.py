"""Races: two kernels that use the same bytes, one of them writing, without a known order between them.

Judged over two copies of the graph that share every buffer, the second chained behind the first by full edges from
every sink to every root: what a timing graph of many layers does, and the worst that one graph can meet, since whole
launches of a graph in one stream follow each other completely. A sink's early trigger is harmless here: those chain
edges are full, and no other edge leaves a sink.

The second copy needs no pass of its own. It differs from the first by what its roots know at their start, and that
travels along every edge but launch_order like a kernel of its own: one more bit, `1 << len(kernels)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mktune.access import Access, KernelFacts
from mktune.lowering.closure import Closure, Known, close
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
    copy_before = _known_to_next(graph, closed, chained)
    uses = {closed.bits[kernel.name]: (_USES.get(id(kernel)) or _keep(kernel))[1] for kernel in graph.kernels}
    produced = 0
    for use in uses.values():
        produced |= use.written
    found: list[Violation] = []
    seen = 0
    lost = everyone & ~copy_before
    for kernel, (bit, use), known in zip(graph.kernels, uses.items(), closed.known.values(), strict=True):
        # Where all that it conflicts with are complete behind the wait, and it conflicts with none before, it is safe.
        unknown = seen & ~known[2] | (lost if known[2] & next_copy else everyone)
        if _conflicts(use, unknown, uses) or use.early_writes or use.early_reads & produced:
            of_before = _of_copy_before(known, next_copy, copy_before)
            racing = _racing(use, known, seen, uses), _racing(use, of_before, everyone, uses)
            if racing[0] or racing[1]:
                found += _explain(graph, kernel, closed.bits, (known, of_before), racing, strict)
        seen |= bit
    return found


def _known_to_next(graph: KernelGraph, closed: Closure, chained: tuple[str, ...] | None) -> int:
    """What the chain tells the roots of the next copy."""
    kernels = closed.left.keys()
    tails = kernels - {edge.source for edge in graph.edges} if chained is None else kernels & set(chained)
    mask = 0
    for name in tails:
        mask |= closed.left[name][0]
    return mask


class _Uses(NamedTuple):
    """The buffers of one kernel as masks, by how it uses them."""

    written: int
    all: int
    early_reads: int
    early_writes: int
    late_reads: int
    late_writes: int


def _conflicts(use: _Uses, others: int, uses: Mapping[int, _Uses]) -> bool:
    """Whether a kernel uses what one of `others` writes, or writes what one uses."""
    written, used = use.written, use.all
    while others:
        bit = others & -others
        other = uses[bit]
        if written & other.all or used & other.written:
            return True
        others ^= bit
    return False


def _racing(use: _Uses, known: Known, others: int, uses: Mapping[int, _Uses]) -> int:
    """Those of `others` that a kernel conflicts with before it knows that they are complete."""
    full, launch, wait = known
    reads, writes = use.late_reads, use.late_writes
    early_reads, early_writes = use.early_reads, use.early_writes
    mask = 0
    for bit, other in uses.items():
        if not others & bit:
            continue
        if (
            (not wait & bit and (reads & other.written or writes & other.all))
            or (early_reads & other.written and not full & bit)
            or (early_writes & other.all and not launch & bit)
        ):
            mask |= bit
    return mask


def _keep(kernel: KernelFacts) -> tuple[KernelFacts, _Uses]:
    """Uses are kept by the identity of the facts, which costs no hashing: ops give one object for the same config.

    The facts stand beside them, so that their id stays theirs.
    """
    if len(_USES) >= _MAX_KEPT:
        _USES.clear()
    kept = _USES[id(kernel)] = (kernel, _sort_uses(kernel.accesses))
    return kept


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
    graph: KernelGraph,
    later: KernelFacts,
    bits: dict[str, int],
    known: tuple[Known, Known],
    racing: tuple[int, int],
    strict: bool,
) -> Iterator[Violation]:
    """The races of one kernel with earlier ones of its own copy, then those that only the copy before adds."""
    told: set[tuple[str, str]] = set()
    for crossing in (False, True):
        for earlier in graph.kernels:
            bit = bits[earlier.name]
            if not racing[crossing] & bit:
                continue
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
