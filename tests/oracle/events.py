"""An operational model of kernels in a CUDA graph, to judge the closure rule by. It shares no code with it.

A kernel is a grid of two CTAs. Events, and what each comes after:

    start(K, c)     full edge P→K: complete(P). Programmatic edge: trigger(P, c') of every CTA c'.
                    Launch order: nothing, since CUDA calls "all blocks have begun" a best effort
    wait(K, c)      start(K, c), and complete(P) of every in-edge; only in the CTAs whose path waits
    trigger(K, c)   before_wait: start(K, c). after_wait: wait(K, c), on a path without it exit(K, c). exit: exit(K, c)
    exit(K, c)      start(K, c), and wait(K, c) where the path has it
    complete(K)     exit of both CTAs, and every access of K: a write is there once its grid is complete and flushed,
                    which an exit (the implicit trigger) does not say

A path choice says which CTAs of each kernel wait: some CTA where the kernel always waits, any set of them where not. A
graph is unsafe if under some choice two conflicting accesses have no path from the earlier one's end, at
complete(earlier), to the later one's begin, at start or wait of its CTA.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from mktune.access import Access, KernelFacts
from mktune.lowering.kernel_graph import KernelGraph

CTAS = (0, 1)
Choice = Mapping[str, frozenset[int]]
Event = tuple[str, str, int]
WAIT_SETS = tuple(map(frozenset, ((), (0,), (1,), (0, 1))))


@dataclass(frozen=True)
class Race:
    """`later` uses `buffer` while `earlier` may not have finished with it."""

    earlier: str
    later: str
    buffer: str


@dataclass(frozen=True)
class Instances:
    """Kernels of all copies in order, and edges (source, target, kind) between them."""

    kernels: dict[str, KernelFacts]
    edges: tuple[tuple[str, str, str], ...]


def instances(graph: KernelGraph, copies: int = 2, chained: tuple[str, ...] | None = None) -> Instances:
    """Copies that share every buffer, chained by full edges from every sink (or from `chained`) to the next roots."""
    sources = {edge.source for edge in graph.edges}
    targets = {edge.target for edge in graph.edges}
    tails = [k.name for k in graph.kernels if k.name not in sources] if chained is None else list(chained)
    heads = [k.name for k in graph.kernels if k.name not in targets]
    kernels = {f"{k.name}#{copy}": k for copy in range(copies) for k in graph.kernels}
    edges = [(f"{e.source}#{c}", f"{e.target}#{c}", e.kind) for c in range(copies) for e in graph.edges]
    edges += [(f"{t}#{c - 1}", f"{h}#{c}", "full") for c in range(1, copies) for t in tails for h in heads]
    return Instances(kernels, tuple(edges))


def race(graph: KernelGraph, copies: int = 2, chained: tuple[str, ...] | None = None) -> Race | None:
    """A race under the worst path choice, or None.

    Waits only add paths, so the worst choice is the one with the fewest: no CTA where the kernel may skip the wait,
    CTA 0 alone where it may not (which one is the same by symmetry). The later access's own CTA waits if the access
    stands after the wait, which is nothing that the paths into it depend on. `race_by_enumeration` tries them all.
    """
    laid_out = instances(graph, copies, chained)
    fewest = {name: frozenset((0,) if kernel.waits else ()) for name, kernel in laid_out.kernels.items()}
    return _race_under(laid_out, fewest, every_cta_may_wait=True)


def race_by_enumeration(graph: KernelGraph, copies: int = 2, chained: tuple[str, ...] | None = None) -> Race | None:
    """A race under any path choice at all, trying every one of them: exponential in the number of kernels."""
    laid_out = instances(graph, copies, chained)
    found = (_race_under(laid_out, choice, every_cta_may_wait=False) for choice in choices(laid_out.kernels))
    return next((race for race in found if race is not None), None)


def choices(kernels: Mapping[str, KernelFacts]) -> Iterator[Choice]:
    """Every path choice."""
    per_kernel = [[waits for waits in WAIT_SETS if waits or not kernel.waits] for kernel in kernels.values()]
    for picked in product(*per_kernel):
        yield dict(zip(kernels, picked, strict=True))


def predecessors(laid_out: Instances, choice: Choice) -> dict[Event, list[Event]]:
    """The event graph under one choice: event → the events it directly comes after."""
    after: dict[Event, list[Event]] = {}
    into: dict[str, list[tuple[str, str]]] = {name: [] for name in laid_out.kernels}
    for source, target, kind in laid_out.edges:
        into[target].append((source, kind))
    for name, kernel in laid_out.kernels.items():
        prerequisites = [("complete", source, 0) for source, _ in into[name]]
        gates = [("complete", source, 0) for source, kind in into[name] if kind == "full"]
        gates += [("trigger", source, c) for source, kind in into[name] if kind == "programmatic" for c in CTAS]
        for c in CTAS:
            start, wait, leave = ("start", name, c), ("wait", name, c), ("exit", name, c)
            waited = c in choice[name]
            after[start] = gates
            after[wait] = [start, *prerequisites]
            after[leave] = [start, wait] if waited else [start]
            after["trigger", name, c] = [_trigger_point(kernel.trigger, waited, start, wait, leave)]
        after["complete", name, 0] = [("exit", name, c) for c in CTAS]
    return after


def _trigger_point(trigger: str, waited: bool, start: Event, wait: Event, leave: Event) -> Event:
    if trigger == "before_wait":
        return start
    return wait if trigger == "after_wait" and waited else leave


def _race_under(laid_out: Instances, choice: Choice, every_cta_may_wait: bool) -> Race | None:
    complete_before = _completed(laid_out, predecessors(laid_out, choice))
    names = list(laid_out.kernels)
    for place, later in enumerate(names):
        for use in laid_out.kernels[later].accesses:
            for c in CTAS:
                if use.after_wait and not every_cta_may_wait and c not in choice[later]:
                    continue
                done = complete_before["wait" if use.after_wait else "start", later, c]
                for bit, earlier in enumerate(names[:place]):
                    if not done >> bit & 1 and conflict(laid_out.kernels[earlier], use):
                        return Race(earlier, later, use.buffer)
    return None


def conflict(earlier: KernelFacts, use: Access) -> bool:
    """Both touch the buffer and one of them writes."""
    return any(a.buffer == use.buffer and (a.writes or use.writes) for a in earlier.accesses)


def _completed(laid_out: Instances, after: dict[Event, list[Event]]) -> dict[Event, int]:
    """Event → the kernels (bits in order) whose completion has a path to it. Depth first; the graph has no cycle."""
    bit = {name: 1 << index for index, name in enumerate(laid_out.kernels)}
    found: dict[Event, int] = {}

    def visit(event: Event) -> int:
        if event not in found:
            mask = bit[event[1]] if event[0] == "complete" else 0
            for before in after[event]:
                mask |= visit(before)
            found[event] = mask
        return found[event]

    for event in after:
        visit(event)
    return found
