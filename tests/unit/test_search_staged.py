"""What the staged sampler makes of the ops' own measurements."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from fake_bench import space_of

from mktune.plan import Plan
from mktune.search.samplers.base import at_random
from mktune.search.samplers.staged import GRAPH_ONLY, RANKED, StagedSampler
from mktune.space import Choices

TILE = "A0.tile"


def finalizer(choices: Choices) -> str:
    """How the splits of B0 are added up, as its answer begins."""
    return next((label for name, label in choices.items() if name.startswith("B0.finish")), "").partition(" ")[0]


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
    for _ in range(1440):  # the slow one is known as such from its first trials in context on
        choices, _ = sampler.ask()
        sampler.tell(choices, 30.0)  # in context all are equal
        proposed[choices[TILE]] += 1
    assert len(configs) > 2
    assert (proposed[slow] / proposed.total() < 0.1) == (slow_us > 2.0)


def test_the_best_config_of_each_kind_is_tried_in_context_however_many_of_another_kind_are_better() -> None:
    space, draw = space_of(None), random.Random(1)
    sampler = StagedSampler(space, seed=0)
    drawn = [at_random(space.configs_of("B0"), draw)[0] for _ in range(400)]
    common = [choices for choices in drawn if finalizer(choices) == "finalizer=kernel"][: 3 * RANKED]
    better, worse = [choices for choices in drawn if finalizer(choices) == "finalizer=last_arriver"][:2]
    for place, choices in enumerate([*common, better, worse]):
        sampler.know_op("B0", choices, 5.0 + place)
    ranked = [sampler._ranked() for _ in range(400)]
    assert better in ranked
    assert sum(choices == common[0] for choices in ranked) > 100  # what is best alone comes most often
    assert common[-1] not in ranked


def test_the_graph_alone_is_changed_as_often_whatever_is_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    space = space_of(None)
    sampler = StagedSampler(space, seed=0)
    sampler.know_op("A0", at_random(space.configs_of("A0"), random.Random(0))[0], 2.0)
    told = Counter[str]()
    kind, last, fresh = "", Choices(), sampler.fresh

    def noted(base: Choices, weights: dict[str, float]) -> tuple[Choices, Plan]:
        nonlocal kind
        kind = "all" if any(map(space.is_config, weights)) else "graph"
        return fresh(base, weights)

    monkeypatch.setattr(sampler, "fresh", noted)
    for number in range(4 * GRAPH_ONLY):
        kind = "start or jump"
        choices, _ = sampler.ask()
        if number % 2 and told["graph"] < GRAPH_ONLY:  # a start or a jump, too
            sampler.withdraw(choices)
        else:
            sampler.tell(choices, 20.0)
            told[kind] += 1
            last = choices if kind == "graph" else last
    assert told["graph"] == GRAPH_ONLY
    assert told["all"] > 0
    sampler.withdraw(last)  # what comes after the graph alone goes on
    kind = ""
    for _ in range(GRAPH_ONLY):
        sampler.ask()
        assert kind != "graph"


def test_ops_that_take_long_alone_have_their_turn_more_often() -> None:
    space = space_of(None)
    sampler = StagedSampler(space, seed=0)
    for op, us in (("A0", 1.0), ("D0", 9.0)):
        sampler.know_op(op, at_random(space.configs_of(op), random.Random(0))[0], us)
    turns = Counter(next(iter(sampler._ranked())).partition(".")[0] for _ in range(500))
    assert 0.85 < turns["D0"] / 500 < 0.95
