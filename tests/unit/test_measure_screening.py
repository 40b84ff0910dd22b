"""When screening stops, what it drops, and times that cannot be."""

import math
import random

import pytest

from mktune.errors import CandidateError
from mktune.measure.screening import ScreeningBudget, check_finite, check_span, of_layers, screen
from mktune.trial import Status


class FakePlan:
    """Spans around `span_us` with relative spread `noise`; counts launches."""

    def __init__(self, span_us, noise=0.01, seed=0):
        self._span, self._noise, self._draw = span_us, noise, random.Random(seed)
        self.launches = 0

    def __call__(self, count):
        self.launches += count
        return [self._span * (1 + abs(self._draw.gauss(0, self._noise))) for _ in range(count)]


BUDGET = ScreeningBudget(warmup=2, batch=10, least=10, launches=200, seconds=60)


def test_a_clearly_slower_plan_is_dropped_after_one_batch():
    plan = FakePlan(20.0)
    found = screen(plan, 12.0, BUDGET)
    assert found.status == Status.PRUNED
    assert plan.launches == 12
    assert "slower" in found.reason


def test_a_clearly_faster_plan_stops_as_soon_as_the_gap_is_wider_than_the_interval():
    plan = FakePlan(9.0)
    found = screen(plan, 12.0, BUDGET)
    assert found.status == Status.OK
    assert len(found.samples) == 10


def test_a_close_plan_gets_the_whole_budget():
    plan = FakePlan(12.0, noise=0.02)
    found = screen(plan, 12.0 * 1.0135, BUDGET)
    assert found.status == Status.OK
    assert len(found.samples) > 100


def test_slightly_slower_is_measured_not_dropped():
    found = screen(FakePlan(12.1, noise=0.001), 12.0, BUDGET)
    assert found.status == Status.OK


def test_a_plan_is_dropped_only_when_its_whole_interval_is_slower():
    def two_speeds(count):
        return [11.0 if i % 2 else 14.0 for i in range(count)]

    found = screen(two_speeds, 12.0, BUDGET)
    assert (found.interval.low, found.interval.high) == (11.0, 14.0)
    assert found.status == Status.NOISY
    assert len(found.samples) == BUDGET.launches


def test_without_an_incumbent_sampling_stops_at_the_resolution():
    quiet, loud = FakePlan(12.0, noise=0.0005), FakePlan(12.0, noise=0.02)
    assert len(screen(quiet, None, BUDGET).samples) == 10
    assert len(screen(loud, None, BUDGET).samples) == 200


def test_a_plan_that_stays_gets_its_least_number_of_launches():
    found = screen(FakePlan(9.0), 12.0, ScreeningBudget(batch=10, least=60))
    assert len(found.samples) == 60
    assert len(screen(FakePlan(20.0), 12.0, ScreeningBudget(batch=10, least=60)).samples) == 10


def test_time_ends_a_screening_too():
    now = iter(range(100))
    found = screen(
        FakePlan(12.0, noise=0.02),
        None,
        ScreeningBudget(batch=10, least=10, launches=10_000, seconds=5),
        lambda: next(now),
    )
    assert len(found.samples) == 50


def test_a_median_that_stays_unknown_is_noisy():
    found = screen(FakePlan(12.0, noise=0.5), None, BUDGET)
    assert found.status == Status.NOISY
    assert found.interval.low < found.interval.median < found.interval.high


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_times_that_cannot_be_fail_the_trial(bad):
    with pytest.raises(CandidateError) as caught:
        screen(lambda count: [12.0] * (count - 1) + [bad], None, BUDGET)
    assert caught.value.status == Status.LAUNCH_ERROR
    with pytest.raises(CandidateError):
        check_finite([1.0, bad])


def test_a_span_above_the_cards_peak_means_that_the_work_was_not_done():
    check_span(12.0, 16_100_000, 4.8e12)
    with pytest.raises(CandidateError, match=r"8\.05 TB/s") as caught:
        check_span(2.0, 16_100_000, 4.8e12)
    assert caught.value.status == Status.WRONG_RESULT


def test_every_batch_is_of_launches_from_a_builds_first_on_and_begins_with_warm_ups():
    def cold(count):
        return [30.0, 20.0, *[9.0] * (count - 2)]

    found = screen(cold, 12.0, ScreeningBudget(warmup=2, batch=10, least=30))
    assert found.samples == (9.0,) * 30


def test_graphs_of_many_layers_are_launched_less_often():
    budget = ScreeningBudget()
    assert of_layers(budget, 8) == of_layers(budget, 64) == budget
    few = of_layers(budget, 640)
    assert (few.batch, few.least, few.launches) == (6, 12, 12)
    assert (few.warmup, few.seconds, few.prune) == (budget.warmup, budget.seconds, budget.prune)
