"""A layer's kernels in time, noted CTA by CTA by a diagnostic build that runs beside the plain one, in the same rounds.

Kernels are built with MKTUNE_STAMPS and kernels/common/trace.cuh, and keep their times in their own module; every layer
overwrites the notes of the one before, so a replay tells of its last layer. After each round the notes of its last
replay are read. Whatever the plan's executor, it is traced as the graph that it is lowered to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from mktune.executors.cuda_graph import CudaGraph
from mktune.launch import KernelSpec
from mktune.lowering.kernel_graph import KernelGraph
from mktune.measure.critical_path import typical_path
from mktune.measure.screening import check_finite
from mktune.measure.span import GraphTimer
from mktune.measure.stamps import STAMPS_SYMBOL, read_words, stamped
from mktune.measure.stats import median
from mktune.ops.launch import with_defines
from mktune.plan import EdgeName, Plan
from mktune.trace import Cta, KernelTimes, Trace, TracedKernel

PRELUDE = "common/trace.cuh"
TWIN = "MKTUNE_TWIN"
"""Keeps the modules of kernels apart that are the same one, launched twice."""
NOTES_SYMBOL = "mktune_notes"
JUST_NS = 1_000
"""A CTA that began within this of another's end on its SM took its place."""

Row = list[int]
"""One CTA: SM, begin, ready, trigger (0: none) and end, in ns of the GPU's timer."""
Notes = dict[str, list[Row]]


def traced(graph: KernelGraph) -> KernelGraph:
    """The same graph with every kernel built to note its times, in a module of its own."""
    noted = stamped(graph, [kernel.name for kernel in graph.kernels])
    seen: Counter[KernelSpec] = Counter()
    launches = []
    for name, launch in noted.launches:
        made = replace(launch, kernel=replace(launch.kernel, prelude=PRELUDE))
        if again := seen[made.kernel]:
            launches.append((name, with_defines(made, {TWIN: str(again)})))
        else:
            launches.append((name, made))
        seen[made.kernel] += 1
    return replace(noted, launches=tuple(launches))


def read_notes(built: CudaGraph) -> Notes:
    """What the last layer of the last replay has noted, by kernel. The replay must be over."""
    found: Notes = {}
    for name, _ in built.graph.launches:
        stamps, notes = read_words(built, name, STAMPS_SYMBOL), read_words(built, name, NOTES_SYMBOL)
        columns = (notes[2::3], stamps[::2], notes[::3], notes[1::3], stamps[1::2])
        found[name] = [list(row) for row in zip(*columns, strict=True)]
    return found


def trace_rounds(
    plain: CudaGraph, noting: CudaGraph, timer: GraphTimer, rounds: int
) -> tuple[dict[str, list[float]], list[Notes]]:
    """{"plain": spans, "stamped": spans}, two a round, in µs, and the notes of each round."""
    samples: dict[str, list[float]] = {"plain": [], "stamped": []}
    notes = []
    timer.sample([plain, noting, noting, plain])  # warm-up
    for _ in range(rounds):
        first, second, third, fourth = timer.sample([plain, noting, noting, plain])
        check_finite([first, second, third, fourth])
        samples["plain"] += [first, fourth]
        samples["stamped"] += [second, third]
        notes.append(read_notes(noting))
    return samples, notes


def reply(samples: Mapping[str, Sequence[float]], notes: Sequence[Notes]) -> dict[str, Any]:
    """What the worker sends: spans, each round's times of every kernel, and the CTAs of the round in the middle."""
    rounds = [layer_times(each) for each in notes]
    ends = [max(times.end for times in each.values()) for each in rounds]
    middle = sorted(range(len(notes)), key=ends.__getitem__)[len(notes) // 2]
    times = [{name: asdict(times) for name, times in each.items()} for each in rounds]
    return {"samples": samples, "times": times, "ctas": notes[middle]}


def layer_times(notes: Notes) -> dict[str, KernelTimes]:
    """Each kernel's times in µs from the layer's first begin."""
    origin, left = _origin(notes), _left(notes)
    return {name: _times(rows, origin, left) for name, rows in notes.items()}


def trace_of(plan: Plan, lowered: KernelGraph, gpu: str, sms: int, answer: Mapping[str, Any]) -> Trace:
    """The trace that the worker's `reply` tells of."""
    rounds = [{name: KernelTimes(**values) for name, values in round.items()} for round in answer["times"]]
    names = [kernel.name for kernel in lowered.kernels]
    medians = {name: _median([round[name] for round in rounds]) for name in names}
    edges: tuple[tuple[EdgeName, str], ...] = tuple(((e.source, e.target), e.kind) for e in lowered.edges)
    return Trace(
        plan_id=plan.plan_id,
        simulated=False,
        gpu=gpu,
        sms=sms,
        kernels=tuple(_kernel(name, plan, medians[name], answer["ctas"]) for name in names),
        edges=edges,
        path=typical_path(medians, rounds, edges),
        plain_us=tuple(answer["samples"]["plain"]),
        stamped_us=tuple(answer["samples"]["stamped"]),
        replays=len(rounds),
    )


def _kernel(name: str, plan: Plan, times: KernelTimes, notes: Notes) -> TracedKernel:
    origin, rows = _origin(notes), notes[name]
    ctas = tuple(
        Cta(sm, (begin - origin) / 1e3, (ready - origin) / 1e3, _us(trigger, origin), (end - origin) / 1e3)
        for sm, begin, ready, trigger, end in rows
    )
    return TracedKernel(name, plan.kernel[name].stream, len(rows), len({cta.sm for cta in ctas}), times, ctas)


def _origin(notes: Notes) -> int:
    return min(row[1] for rows in notes.values() for row in rows)


def _left(notes: Notes) -> dict[int, list[tuple[int, str]]]:
    """SM → when CTAs left it, and whose they were, in order."""
    found: dict[int, list[tuple[int, str]]] = {}
    for name, rows in notes.items():
        for sm, *_, end in rows:
            found.setdefault(sm, []).append((end, name))
    return {sm: sorted(each) for sm, each in found.items()}


def _room(row: Row, left: Mapping[int, Sequence[tuple[int, str]]]) -> str:
    """The kernel whose CTA left the SM of this one last before it began, if that was right before."""
    sm, begin = row[:2]
    before = [(end, name) for end, name in left[sm] if begin - JUST_NS <= end <= begin]
    return before[-1][1] if before else ""


def _times(rows: Sequence[Row], origin: int, left: Mapping[int, Sequence[tuple[int, str]]]) -> KernelTimes:
    _, begins, readies, triggers, ends = zip(*rows, strict=True)
    values = (min(begins), max(begins), min(readies), max(ends))
    begin, placed, ready, end = ((value - origin) / 1e3 for value in values)
    first, last = min(rows, key=lambda row: row[1]), max(rows, key=lambda row: row[-1])
    # A CTA that exits without a trigger counts as one that triggered then.
    triggered = max(trigger or end for trigger, end in zip(triggers, ends, strict=True)) if any(triggers) else 0
    late, rooms = (last[1] - origin) / 1e3, (_room(first, left), _room(last, left))
    return KernelTimes(begin, placed, ready, _us(triggered, origin), end, late, *rooms)


def _us(stamp: int, origin: int) -> float | None:
    return (stamp - origin) / 1e3 if stamp else None


def _median(rounds: Sequence[KernelTimes]) -> KernelTimes:
    triggers = [each.triggered for each in rounds if each.triggered is not None]
    begin, placed, ready, end, late = (
        median([getattr(each, field) for each in rounds]) for field in ("begin", "placed", "ready", "end", "late")
    )
    rooms = (Counter(getattr(each, field) for each in rounds) for field in ("begin_room", "late_room"))
    usual = [room.most_common(1)[0][0] for room in rooms]
    return KernelTimes(begin, placed, ready, median(triggers) if triggers else None, end, late, *usual)
