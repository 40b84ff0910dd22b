"""What the staged sampler makes of the ops' own measurements."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from fake_bench import space_of

from mktune.search.samplers.base import at_random
from mktune.search.samplers.staged import StagedSampler

TILE = "A0.tile"


@pytest.mark.parametrize("slow_us", [90.0, 2.0])
def test_configs_that_were_slow_alone_are_seldom_tried_in_context(slow_us: float) -> None:
    space, draw = space_of(None), random.Random(0)
    sampler = StagedSampler(space, seed=0)
    drawn = [at_random(space.configs_of("A0"), draw)[0] for _ in range(60)]
    configs = {choices[TILE]: choices for choices in drawn}
    slow = min(configs)
    for option, choices in configs.items():
        sampler.know_op("A0", choices, slow_us if option == slow else 2.0)
    proposed: Counter[str] = Counter()
    for _ in range(120):
        choices, _ = sampler.ask()
        sampler.tell(choices, 30.0)  # in context all are equal
        proposed[choices[TILE]] += 1
    assert len(configs) > 2
    assert (proposed[slow] / proposed.total() < 0.1) == (slow_us > 2.0)
