"""Intervals of medians: coverage, pairing and the noise floor."""

import math
import random

import pytest

from mktune.measure.stats import (
    bootstrap_median,
    log_ratios,
    median,
    median_interval,
    noise_floor,
    paired_ratio,
)


def test_median_of_odd_and_even_counts():
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5


# Ranks of the usual tables for the median's 95 % interval (1-based: n=10 → 2 and 9, 20 → 6 and 15, 31 → 10 and 22).
@pytest.mark.parametrize(("count", "low", "high"), [(3, 1, 3), (6, 1, 6), (10, 2, 9), (20, 6, 15), (31, 10, 22)])
def test_interval_takes_the_order_statistics_of_the_tables(count, low, high):
    samples = [float(i) for i in range(1, count + 1)]
    random.Random(1).shuffle(samples)
    interval = median_interval(samples)
    assert (interval.low, interval.high) == (low, high)
    assert interval.median == (count + 1) / 2


@pytest.mark.parametrize("count", [8, 31, 100])
def test_interval_holds_the_true_median_95_times_in_100(count):
    draw = random.Random(count)
    held = 0
    for _ in range(2000):
        found = median_interval([draw.expovariate(1.0) for _ in range(count)])
        held += found.low <= math.log(2) <= found.high
    assert held >= 0.945 * 2000


def test_bootstrap_is_repeatable_and_brackets_the_median():
    draw = random.Random(3)
    values = [draw.gauss(0.1, 0.02) for _ in range(40)]
    first, second = bootstrap_median(values), bootstrap_median(values)
    assert first == second
    assert first.low <= first.median <= first.high
    assert first.low < 0.1 < first.high


def test_pairing_cancels_drift_that_both_arms_share():
    drift = [1.0 + 0.5 * i / 40 for i in range(40)]
    draw = random.Random(5)
    ours = [9.0 * d * draw.gauss(1, 0.001) for d in drift]
    theirs = [10.0 * d * draw.gauss(1, 0.001) for d in drift]
    ratio = paired_ratio(ours, theirs)
    assert ratio.median == pytest.approx(0.9, abs=0.002)
    assert ratio.high - ratio.low < 0.003
    assert median_interval(ours).relative_width > 0.05  # unpaired, the drift would hide the difference


def test_pairs_must_be_complete():
    with pytest.raises(ValueError, match="shorter"):
        log_ratios([1.0, 2.0], [1.0])


def test_noise_floor_counts_the_further_end():
    same = [10.0] * 31
    assert noise_floor(same, same) == 0.0
    assert noise_floor([10.1] * 31, same) == pytest.approx(0.01)
    assert noise_floor([9.9] * 31, same) == pytest.approx(0.01)
