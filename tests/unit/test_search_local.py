"""Which changes the local sampler makes."""

from __future__ import annotations

import random
from collections import Counter
from statistics import mean

import pytest
from fake_bench import space_of

from mktune.search.samplers.base import at_random
from mktune.search.samplers.local import START, LocalSampler
from mktune.space import Choices, question_stem

PROPOSALS = 80
"""Of a search. One that has more without a gain is stuck, and begins elsewhere."""
SEARCHES = 5
FUSED = "B1+C0"
FEW = 4


class OneAtATime(LocalSampler):
    """Changes a single question."""

    steps = (1,)


class ManyAtATime(LocalSampler):
    """Changes whatever promises a gain."""

    steps = (100,)


def told(sampler: LocalSampler, spans: dict[str, float]) -> dict[str, Choices]:
    """Random plans of these fusions and spans, told to the sampler; by fusion."""
    draw, found = random.Random(0), dict[str, Choices]()
    while len(found) < len(spans):
        choices, _ = at_random(sampler.space, draw)
        if choices["fusion"] in spans and choices["fusion"] not in found:
            found[choices["fusion"]] = choices
    for label, span in spans.items():
        for _ in range(START):
            sampler.tell(found[label], span)
    return found


def test_what_was_withdrawn_may_be_proposed_again() -> None:
    sampler = OneAtATime(space_of(None), 0)
    base = told(sampler, {"none": 10.0})["none"]
    question = {"A0.tile": 1.0}
    others = [sampler.fresh(base, question)[0] for _ in range(2)]  # it has three options
    assert {each["A0.tile"] for each in (base, *others)} == set(sampler._options["A0.tile"])
    sampler.withdraw(others[0])
    assert sampler.fresh(base, question)[0] == others[0]
    sampler.withdraw({"never": "proposed"})
    assert sampler.fresh(base, question)[0] not in (base, *others)


def test_a_question_of_few_options_is_changed_as_often_as_one_of_many() -> None:
    changed: Counter[str] = Counter()
    for seed in range(12):
        sampler = OneAtATime(space_of(None), seed)
        base = told(sampler, {"none": 10.0})["none"]
        for _ in range(20):
            choices, _ = sampler.fresh(base, dict.fromkeys(base, 1.0))
            sampler.tell(choices, 20.0)
            first = next(name for name in choices if choices[name] != base.get(name))
            changed[question_stem(first)] += 1
    few = [changed[name] for name in map(question_stem, base) if name.endswith(".finish")]
    many = [changed[name] for name in map(question_stem, base) if name.endswith(".tile")]
    assert mean(few) > 0.4 * mean(many) > 0


def test_plans_of_another_fusion_than_the_best_are_changed_too() -> None:
    of: Counter[str] = Counter()
    for seed in range(SEARCHES):
        sampler = LocalSampler(space_of(None), seed)
        known = told(sampler, {"none": 10.0, FUSED: 10.5})
        for _ in range(PROPOSALS):
            choices, _ = sampler.ask()
            sampler.tell(choices, 20.0)
            of.update(label for label, plan in known.items() if unlike(choices, plan) <= FEW)
    assert of["none"] > of[FUSED] > 0.05 * PROPOSALS * SEARCHES


@pytest.mark.parametrize(
    ("behind", "least", "most"),
    [(0.0, 0.35, 0.65), (0.05, 0.12, 0.32), (0.3, 0.04, 0.1)],
)
def test_a_fusion_has_trials_until_it_is_further_behind_than_they_would_gain(
    behind: float, least: float, most: float
) -> None:
    of: Counter[str] = Counter()
    for seed in range(SEARCHES):
        sampler = LocalSampler(space_of(None), seed)
        told(sampler, {"none": 10.0, FUSED: 10.0 * (1.0 + behind)})
        for _ in range(PROPOSALS):
            choices, _ = sampler.ask()
            sampler.tell(choices, 40.0)
            of[choices["fusion"]] += 1
    assert least <= of[FUSED] / (PROPOSALS * SEARCHES) <= most


def test_what_is_fused_is_never_changed_beside_others_however_much_it_promises() -> None:
    sampler = ManyAtATime(space_of(None), 0)
    base = told(sampler, {"none": 10.0, FUSED: 5.0})["none"]
    found = [sampler._promising(base, dict.fromkeys(base, 1.0), 1) for _ in range(60)]
    assert max(map(len, found)) > 4
    assert not any("fusion" in changes for changes in found)
    alone = OneAtATime(space_of(None), 0)
    told(alone, {"none": 10.0, FUSED: 5.0})
    assert any("fusion" in alone._promising(base, dict.fromkeys(base, 1.0), 1) for _ in range(300))


def unlike(choices: Choices, others: Choices) -> int:
    return sum(others.get(name) != label for name, label in choices.items())
