"""The critical path of a traced layer: from the kernel that ended last, back along what each kernel waited for.

An edge gates its target twice: it may begin when a source of a full edge has ended, when one of a programmatic edge has
triggered (or ended, where it never triggers), when all CTAs of one of a launch_order edge have begun; and its wait
returns when every source has ended. A kernel that had begun before its last source ended was held by its wait, and
that source is next on the path; else it was held at its begin, and the source that let it begin last is.

Room holds kernels too, without any edge: one that began, or whose last CTA began, much later than a launch takes, on
an SM that another kernel's CTA had just left, was held by that other kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mktune.plan import EdgeName
from mktune.trace import CriticalPath, KernelTimes, PathStep

Times = Mapping[str, KernelTimes]
Edges = Sequence[tuple[EdgeName, str]]

LAUNCH_US = 2.5
"""Longer than any launch into free SMs takes, after the event that allows it: 0.7 to 2.3 µs on an H200."""


@dataclass(frozen=True)
class _Gate:
    """What held a kernel until `went`: the event of `source` at `time` (µs). See `PathStep` for the words."""

    source: str
    edge: str
    event: str
    at: str
    time: float
    went: float


def critical_path(times: Times, edges: Edges) -> CriticalPath:
    """The path of one layer, or of medians over layers. `times` must not be empty; `edges` must have no cycle."""
    last = max(times, key=lambda name: times[name].end)
    steps = _steps(times, edges, last)
    slack = _slack(times, edges) | {step.kernel: 0.0 for step in steps}
    return CriticalPath(tuple(steps), times[last].end, tuple((name, slack[name]) for name in times))


def typical_path(medians: Times, replays: Sequence[Times], edges: Edges) -> CriticalPath:
    """The path of `medians`, with the share of `replays` whose own path visits the same kernels."""
    path = critical_path(medians, edges)
    seen = Counter(critical_path(times, edges).kernels for times in replays)
    return replace(path, agreement=seen[path.kernels] / len(replays) if replays else 1.0)


def begins_after(times: KernelTimes, kind: str) -> tuple[str, float]:
    """The event of a source, and when it was, that lets the target of an edge of that kind begin."""
    if kind == "launch_order":
        return "placed", times.placed
    if kind == "programmatic" and times.triggered is not None:
        return "trigger", min(times.triggered, times.end)
    return "end", times.end


def _steps(times: Times, edges: Edges, last: str) -> list[PathStep]:
    """Backwards: `until` is the moment of `kernel` that what follows hung on. No kernel comes twice."""
    steps: list[PathStep] = []
    kernel, until, passed = last, times[last].end, {last}
    while gate := _gate(times, edges, kernel, until, passed):
        after, held = gate.went - gate.time, until - gate.went
        steps.append(PathStep(kernel, gate.source, gate.event, gate.at, gate.edge, after, held))
        kernel, until = gate.source, gate.time
        passed.add(kernel)
    begin = times[kernel].begin
    steps.append(PathStep(kernel, None, "layer", "begin", "", begin, until - begin))
    return steps[::-1]


def _gate(times: Times, edges: Edges, kernel: str, until: float, passed: set[str]) -> _Gate | None:
    """What held `kernel` last before `until`; None where nothing did."""
    own = times[kernel]
    into = [(source, kind) for (source, target), kind in edges if target == kernel and source not in passed]
    wait = max((_wait(times, kernel, *edge) for edge in into if edge[1] != "full"), key=_time, default=None)
    begin = max((_begin(times, kernel, *edge) for edge in into), key=_time, default=None)
    if own.late <= until and own.late - own.ready > LAUNCH_US and _free(own.late_room, passed):
        return _room(times, own.late_room, "late", own.late)
    if wait is not None and own.begin < wait.time and own.ready <= until:
        return wait
    if begin is not None and own.begin - begin.time > LAUNCH_US and _free(own.begin_room, passed):
        return _room(times, own.begin_room, "begin", own.begin)
    return begin


def _wait(times: Times, kernel: str, source: str, kind: str) -> _Gate:
    return _Gate(source, kind, "end", "wait", times[source].end, times[kernel].ready)


def _begin(times: Times, kernel: str, source: str, kind: str) -> _Gate:
    event, time = begins_after(times[source], kind)
    return _Gate(source, kind, event, "begin", time, times[kernel].begin)


def _room(times: Times, source: str, at: str, went: float) -> _Gate:
    """Some CTA of `source` left its SM right before; all of them had by its end."""
    return _Gate(source, "", "room", at, min(times[source].end, went), went)


def _free(source: str, passed: set[str]) -> bool:
    return bool(source) and source not in passed


def _time(gate: _Gate) -> float:
    return gate.time


def _slack(times: Times, edges: Edges) -> dict[str, float]:
    """How much later each kernel could have been as a whole: the least over its targets of how much later than its
    own event came what really let the target go, plus the target's own slack."""
    end = max(each.end for each in times.values())
    found: dict[str, float] = {}

    def slack(kernel: str) -> float:
        if kernel not in found:
            out = [(target, kind) for (source, target), kind in edges if source == kernel]
            rest = [slack(target) + _spare(times, edges, kernel, target, kind) for target, kind in out]
            found[kernel] = min(rest, default=end - times[kernel].end)
        return found[kernel]

    return {name: slack(name) for name in times}


def _spare(times: Times, edges: Edges, source: str, target: str, kind: str) -> float:
    gate = _gate(times, edges, target, times[target].end, {target})
    assert gate is not None, "a target has a source"
    by_end = (gate.time if gate.at == "wait" else gate.went) - times[source].end
    if gate.at != "begin":
        return max(0.0, by_end)
    _, let_begin = begins_after(times[source], kind)
    by_begin = gate.time - let_begin
    return max(0.0, by_begin if kind == "full" else min(by_begin, times[target].ready - times[source].end))
