"""The whole prefix is right under random plans of its search space: any configs, streams, edges, waits and triggers."""

import functools
from random import Random

import pytest
from whole import KV_OF, WORKLOAD, assert_holds, assert_right, compiling, wanted

from mktune.shape import Shape
from mktune.space import SearchSpace
from mktune.validity import check

pytestmark = pytest.mark.gpu

RANDOM = [(m, kv, seed) for seed, (m, kv) in enumerate([*KV_OF.items(), (16, 8192), (64, 100)])]
VALIDATED = [case for case in RANDOM if case[1] <= 100][:3]


@functools.cache
def random_plan(m, kv, seed, device):
    space = SearchSpace.load(WORKLOAD, None, Shape.from_m(m, kv), device)
    draw = Random(seed)
    plans = (space.walk(lambda question: draw.choice(list(question.options)))[1] for _ in range(100))
    return next(plan for plan in plans if check(plan, device) == [])


def all_wanted(device):
    plans = [random_plan(*case, device) for case in RANDOM]
    return wanted(plans, [random_plan(*case, device) for case in VALIDATED], device)


@pytest.fixture(scope="module", autouse=True)
def compiled_ahead(device):
    with compiling(all_wanted(device), device):
        yield


@pytest.mark.parametrize(("m", "kv", "seed"), RANDOM)
def test_results_equal_the_reference(device, m, kv, seed):
    assert_right(random_plan(m, kv, seed, device), device, ragged=seed % 2 == 1)


@pytest.mark.parametrize(("m", "kv", "seed"), VALIDATED)
def test_early_starts_survive_slow_producers(device, m, kv, seed):
    assert_holds(random_plan(m, kv, seed, device), device)
