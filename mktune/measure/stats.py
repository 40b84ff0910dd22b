"""Order statistics and bootstrap for spans, in plain Python: no assumption about how a span is distributed."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

BOOTSTRAP_ROUNDS = 2000


@dataclass(frozen=True)
class Interval:
    """A median and its 95 % confidence interval, in the unit of the samples."""

    median: float
    low: float
    high: float

    @property
    def relative_width(self) -> float:
        return (self.high - self.low) / self.median


def median(values: Sequence[float]) -> float:
    """The middle value; the mean of the two middle ones where their number is even. `values` must not be empty."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def median_interval(samples: Sequence[float]) -> Interval:
    """The median of `samples` and its distribution-free interval: two order statistics that hold it at 95 %."""
    ordered = sorted(samples)
    low = _rank(len(ordered))
    return Interval(median(ordered), ordered[low], ordered[len(ordered) - 1 - low])


@cache
def _rank(count: int) -> int:
    """The largest rank r (from 0) with P(fewer than r + 1 of `count` samples lie below the median) ≤ 2.5 %.

    Below six samples no rank is that safe: 0, the whole range.
    """
    tail, rank = 0.0, 0
    for below in range(count // 2):
        tail += math.comb(count, below) / 2**count
        if tail > 0.025:
            break
        rank = below
    return rank


def log_ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """ln(ours / theirs) of each pair. The two must be equally long: values at one index were measured together."""
    return [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]


@lru_cache(maxsize=4)
def _drawn(count: int, seed: int) -> list[list[int]]:
    """Places of `count` values, drawn with replacement; once for all pairs of arms, which have equally many samples."""
    draw = random.Random(seed)
    return [draw.choices(range(count), k=count) for _ in range(BOOTSTRAP_ROUNDS)]


def bootstrap_median(values: Sequence[float], seed: int = 0) -> Interval:
    """The median of `values` with its percentile bootstrap interval; the same seed gives the same interval."""
    take = values.__getitem__
    medians = sorted(median([*map(take, places)]) for places in _drawn(len(values), seed))
    cut = int(0.025 * BOOTSTRAP_ROUNDS)
    return Interval(median(values), medians[cut], medians[BOOTSTRAP_ROUNDS - 1 - cut])


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Span of ours over span of theirs: median of the paired log ratios, as a ratio, with a bootstrap interval."""
    logs = bootstrap_median(log_ratios(ours, theirs))
    return Interval(math.exp(logs.median), math.exp(logs.low), math.exp(logs.high))


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """ours - theirs, in their unit: median of the differences of the pairs, with a bootstrap interval."""
    return bootstrap_median([a - b for a, b in zip(ours, theirs, strict=True)])


def difference(ours: Sequence[float], theirs: Sequence[float], seed: int = 0) -> Interval:
    """Median of ours - median of theirs, for samples that were not taken together, with a bootstrap interval."""
    draw = random.Random(seed)
    found = sorted(
        median(draw.choices(ours, k=len(ours))) - median(draw.choices(theirs, k=len(theirs)))
        for _ in range(BOOTSTRAP_ROUNDS)
    )
    cut = int(0.025 * BOOTSTRAP_ROUNDS)
    return Interval(median(ours) - median(theirs), found[cut], found[BOOTSTRAP_ROUNDS - 1 - cut])


def noise_floor(once: Sequence[float], again: Sequence[float]) -> float:
    """How far from 1 the ratio of one plan to itself may be taken to lie, as a fraction (0.004 is 0.4 %).

    `once` and `again` are paired samples of the same plan as both arms; the further end of the interval counts.
    """
    ratio = paired_ratio(once, again)
    return max(abs(ratio.low - 1.0), abs(ratio.high - 1.0))
