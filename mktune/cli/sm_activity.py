"""How many SMs are in use over a traced layer: at all, and by a CTA that is behind its wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from mktune.trace import Trace


@dataclass(frozen=True)
class Activity:
    """From `time` (µs) on: SMs that hold a CTA, and those of them that hold one behind its wait."""

    time: float
    active: float
    working: float


def sm_activity(trace: Trace) -> list[Activity]:
    """The steps of the curve, from the first begin to the last end, where both are 0.

    Of noted CTAs, SM by SM. Where a model gave the times it gave no SMs: kernels beside each other then add up.
    """
    active, working = Counter[int](), Counter[int]()
    steps: list[Activity] = []
    for time, changes in _by_time(_changes(trace)):
        for sm, residents, past_wait in changes:
            active[sm] += residents
            working[sm] += past_wait
        steps.append(Activity(time, _in_use(trace, active), _in_use(trace, working)))
    return steps


def _in_use(trace: Trace, held: Counter[int]) -> float:
    if any(kernel.ctas for kernel in trace.kernels):
        return sum(count > 0 for count in held.values())
    return min(trace.sms, held[-1] / _SHARES)


def mean(steps: list[Activity]) -> tuple[float, float]:
    """SMs that are active and working, averaged over the layer."""
    length = steps[-1].time - steps[0].time
    if length <= 0:
        return 0.0, 0.0
    spans = [(step, after.time - step.time) for step, after in pairwise(steps)]
    return (
        sum(step.active * lasts for step, lasts in spans) / length,
        sum(step.working * lasts for step, lasts in spans) / length,
    )


_SHARES = 1000  # of an SM: a model lets small kernels have parts of one

Change = tuple[int, int, int]
"""SM (-1: no SM in particular), and what is added to its CTAs and to those behind their wait."""


def _changes(trace: Trace) -> Iterator[tuple[float, Change]]:
    for kernel in trace.kernels:
        for cta in kernel.ctas:
            yield cta.begin, (cta.sm, 1, 0)
            yield cta.ready, (cta.sm, 0, 1)
            yield cta.end, (cta.sm, -1, -1)
        if not kernel.ctas:
            times, share = kernel.times, round(kernel.sms * _SHARES)
            yield times.begin, (-1, share, 0)
            yield times.ready, (-1, 0, share)
            yield times.end, (-1, -share, -share)


def _by_time(changes: Iterator[tuple[float, Change]]) -> Iterator[tuple[float, list[Change]]]:
    together: dict[float, list[Change]] = {}
    for time, change in changes:
        together.setdefault(time, []).append(change)
    yield from sorted(together.items())
