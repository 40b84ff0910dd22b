"""A trace as the JSON that Perfetto and chrome://tracing open.

Three groups of tracks: the critical path; the kernels, one track each, with an arrow for what each edge let happen; and
the SMs, a track for each CTA that one holds at a time, beside the number of SMs in use. A CTA whose kernel is waiting
is a slice of its own ("B0p waits"), before the one in which it works.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from mktune.cli.sm_activity import sm_activity
from mktune.measure.critical_path import begins_after
from mktune.trace import Cta, KernelTimes, Trace

PATH, KERNELS, SMS = 1, 2, 3
_LANES = 64  # an SM holds at most 32 CTAs
_INSIDE = 1e-3  # µs: an arrow belongs to the slice that it points into

Event = dict[str, Any]


def chrome_json(trace: Trace) -> str:
    """The document. Times in it are µs from the layer's first begin."""
    events = [*_names(trace), *_path(trace), *_kernels(trace), *_arrows(trace), *_ctas(trace), *_counter(trace)]
    about = {"plan": trace.plan_id, "gpu": trace.gpu, "simulated": trace.simulated}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}, indent=None)


def _slice(group: int, track: int, name: str, begin: float, end: float, **args: Any) -> Event:
    return {
        "ph": "X",
        "pid": group,
        "tid": track,
        "name": name,
        "ts": begin,
        "dur": max(0.0, end - begin),
        "args": args,
    }


def _names(trace: Trace) -> Iterator[Event]:
    mark = ", simulated" if trace.simulated else ""
    for group, name in ((PATH, "critical path"), (KERNELS, "kernels"), (SMS, f"SMs of {trace.gpu}{mark}")):
        yield {"ph": "M", "pid": group, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": group, "name": "process_sort_index", "args": {"sort_index": group}}
    for number, kernel in enumerate(trace.kernels):
        yield {"ph": "M", "pid": KERNELS, "tid": number, "name": "thread_name", "args": {"name": kernel.name}}
        yield {"ph": "M", "pid": KERNELS, "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}}


def _path(trace: Trace) -> Iterator[Event]:
    now = 0.0
    for step in trace.path.steps:
        begin, now = now + step.after_us, now + step.after_us + step.held_us
        held_by = f"{step.source} {step.event}" if step.source else step.event
        yield _slice(PATH, 0, step.kernel, begin, now, held_by=held_by, at=step.at, edge=step.edge)


def _kernels(trace: Trace) -> Iterator[Event]:
    for number, kernel in enumerate(trace.kernels):
        times = kernel.times
        facts = {"ctas": kernel.grid, "stream": kernel.stream, "slack_us": trace.path.slack[kernel.name]}
        yield _slice(KERNELS, number, f"{kernel.name} waits", times.begin, times.ready, **facts)
        yield _slice(KERNELS, number, kernel.name, times.ready, times.end, placed_us=times.placed, **facts)


def _arrows(trace: Trace) -> Iterator[Event]:
    """What lets a kernel begin, and the end that its wait waits for."""
    tracks = {kernel.name: number for number, kernel in enumerate(trace.kernels)}
    times, count = trace.times, 0
    for (source, target), kind in trace.edges:
        event, at = begins_after(times[source], kind)
        arrows = [(event, at, times[target].begin)]
        if kind != "full":
            arrows.append(("end", times[source].end, times[target].ready))
        for name, leaves, enters in arrows:
            count += 1
            common = {"cat": "edge", "id": count, "name": f"{kind}: {name}", "pid": KERNELS}
            yield {**common, "ph": "s", "tid": tracks[source], "ts": _within(leaves, times[source])}
            yield {**common, "ph": "f", "bp": "e", "tid": tracks[target], "ts": _within(enters, times[target])}


def _within(time: float, times: KernelTimes) -> float:
    return min(max(time, times.begin + _INSIDE), times.end - _INSIDE)


def _ctas(trace: Trace) -> Iterator[Event]:
    found = [(cta.begin, k.name, number, cta) for k in trace.kernels for number, cta in enumerate(k.ctas)]
    lanes: dict[int, list[float]] = {}
    for _, name, number, cta in sorted(found, key=lambda each: each[0]):
        track = _LANES * cta.sm + _lane(lanes.setdefault(cta.sm, []), cta)
        yield {"ph": "M", "pid": SMS, "tid": track, "name": "thread_name", "args": {"name": f"SM {cta.sm}"}}
        yield {"ph": "M", "pid": SMS, "tid": track, "name": "thread_sort_index", "args": {"sort_index": track}}
        yield _slice(SMS, track, f"{name} waits", cta.begin, cta.ready, cta=number)
        yield _slice(SMS, track, name, cta.ready, cta.end, cta=number, triggered_us=cta.triggered)


def _lane(ends: list[float], cta: Cta) -> int:
    """The first lane that is free; `ends`: until when each one is taken."""
    for lane, end in enumerate(ends):
        if end <= cta.begin:
            ends[lane] = cta.end
            return lane
    ends.append(cta.end)
    return len(ends) - 1


def _counter(trace: Trace) -> Iterator[Event]:
    for step in sm_activity(trace):
        held = {"working": step.working, "waiting": step.active - step.working}
        yield {"ph": "C", "pid": SMS, "name": "SMs in use", "ts": step.time, "args": held}
