"""What single options are worth, as a sampler learns it."""

from __future__ import annotations

import random
from statistics import mean

from mktune.search.effects import PRIOR, REFIT, Effects

BASE = {"A.tile": "small", "B.tile": "small"}
PAIRS = [("A.tile", "small"), ("A.tile", "large")]


def believed(effects: Effects, beside: dict[str, str] = BASE, draws: int = 400) -> float:
    """By how much more the large tile of A is believed to take, in log span."""
    draw = random.Random(0)
    drawn = [effects.drawn(PAIRS, beside, draw) for _ in range(draws)]
    return mean(each["A.tile", "large"] - each["A.tile", "small"] for each in drawn)


def told(count: int, slower: float) -> Effects:
    effects, draw = Effects(), random.Random(1)
    for number in range(count):
        large = number % 2 == 1
        choices = {"A.tile": "large" if large else "small", "B.tile": draw.choice(["small", "large"])}
        effects.tell(choices, 10.0 * (slower if large else 1.0))
    return effects


def test_an_option_that_makes_plans_slower_is_believed_to() -> None:
    standard_error = (2 * PRIOR**2 / 400) ** 0.5  # of a mean of 400 differences of two draws
    assert abs(believed(Effects())) < 3 * standard_error
    assert believed(told(40, slower=1.5)) > 0.2
    assert believed(told(40, slower=1 / 1.5)) < -0.2


def test_an_option_is_believed_to_be_worth_something_else_beside_another_plan() -> None:
    effects = Effects()
    for _ in range(30):
        for stages, span in (("2", 10.0), ("8", 20.0)):
            effects.tell({"A.tile": "large", "A.ring": stages}, span)
            effects.tell({"A.tile": "small", "A.ring": stages}, 14.0)
    few, many = ({"A.tile": "small", "A.ring": stages} for stages in ("2", "8"))
    assert believed(effects, few) < -0.1 < 0.1 < believed(effects, many)
    assert believed(effects, few) < -0.1  # again, as it was kept


def test_a_span_more_counts_at_once_among_few_and_later_among_many() -> None:
    few, many = told(40, slower=1.0), told(2 * REFIT, slower=1.0)
    before = believed(few), believed(many)
    for effects in (few, many):
        effects.tell({"A.tile": "large", "B.tile": "small"}, 20.0)
    assert believed(few) != before[0]
    assert believed(many) == before[1]
    for _ in range(2):
        many.tell({"A.tile": "large", "B.tile": "small"}, 20.0)
    assert believed(many) > before[1]


def test_an_option_that_came_since_the_last_fit_is_drawn_from_what_nothing_is_known_of() -> None:
    effects = told(2 * REFIT, slower=1.0)
    believed(effects)
    effects.tell({"A.tile": "huge", "B.tile": "small"}, 10.0)
    draw = random.Random(0)
    drawn = [effects.drawn([("A.tile", "huge")], BASE, draw)["A.tile", "huge"] for _ in range(100)]
    assert min(drawn) < 0 < max(drawn)
