"""Changes a few choices of one of the best plans so far.

A space of forty questions is mostly made of bad plans, and good ones differ from the built-in plans in a few places:
a step from what is known to be good is worth more than a jump.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from mktune.plan import Plan
from mktune.search.samplers.base import Sampler, at_random
from mktune.space import Choices, Question, question_stem

ELITE = 4
"""Plans that may be changed."""
JUMPS = 0.05
"""Share of proposals that start from nothing."""
STEPS = (1, 1, 2, 2, 3, 4)
"""How many questions are answered anew, each entry equally likely."""

TRIES, WIDER = 12, 3
"""Tries for a proposal that is new, and after how many of them one more question is answered anew."""

NEAR = 0.05
"""A change is likelier by e for each such fraction that the best plan with it is nearer to the best of all."""
UNTRIED, LEAST = 0.5, 0.05
"""Weights of what no plan had yet, and of what only slow or failing plans had; that of the best plan's is 1."""


class LocalSampler(Sampler):
    """See the module."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]  # same arguments as the base
        self._best_with: dict[tuple[str, str], float] = {}
        self._elite: list[tuple[float, Choices]] = []
        self._proposed: set[tuple[tuple[str, str], ...]] = set()

    def ask(self) -> tuple[Choices, Plan]:
        if not self._elite or self.draw.random() < JUMPS:
            return at_random(self.space, self.draw)
        base = self._base()
        return self.fresh(base, dict.fromkeys(base, 1.0), STEPS)

    def fresh(
        self, base: Mapping[str, str], weights: Mapping[str, float], steps: Sequence[int]
    ) -> tuple[Choices, Plan]:
        """`base` with a few of the questions in `weights` answered anew, as nobody proposed yet.

        steps  how many, each entry equally likely; where all near was proposed, one more every few tries
        """
        for tries in range(TRIES):
            choices, plan = self._changed(base, self._some(weights, steps, tries // WIDER))
            if _name_of(choices) not in self._proposed:
                break
        self._proposed.add(_name_of(choices))
        return choices, plan

    def _base(self) -> Choices:
        """One of the best plans; the better of two, so that the best is changed most often."""
        first, second = self.draw.randrange(len(self._elite)), self.draw.randrange(len(self._elite))
        return self._elite[min(first, second)][1]

    def _some(self, weights: Mapping[str, float], steps: Sequence[int], more: int = 0) -> frozenset[str]:
        """A few questions, the heavier the likelier; how many is one of `steps`, and `more`."""
        count = min(len(weights), self.draw.choice(steps) + more)
        # The largest of draw ** (1 / weight): a sample without replacement by weight (Efraimidis and Spirakis).
        ranks = {name: self.draw.random() ** (1.0 / weights[name]) for name in sorted(weights)}
        return frozenset(sorted(ranks, key=lambda name: -ranks[name])[:count])

    def _changed(self, base: Mapping[str, str], changed: Collection[str]) -> tuple[Choices, Plan]:
        """`base` with the questions of `changed` answered anew, and those that it has no answer to."""
        stems = {question_stem(name): label for name, label in base.items()}

        def pick(question: Question) -> str:
            options = list(question.options)
            before = base.get(question.name, stems.get(question_stem(question.name)))
            if before is None or before not in question.options:
                return self.draw.choice(options)
            if question.name not in changed:
                return before
            return self._another(question.name, [option for option in options if option != before])

        return self.space.walk(pick)

    def _another(self, name: str, options: Sequence[str]) -> str:
        """One of `options`: the nearer the best plan that took it to the best of all, the likelier."""
        best = self._elite[0][0]
        weights = [self._weight(self._best_with.get((name, option)), best) for option in options]
        return self.draw.choices(options, weights)[0]

    def _weight(self, span_us: float | None, best_us: float) -> float:
        return UNTRIED if span_us is None else max(LEAST, math.exp(-(span_us / best_us - 1.0) / NEAR))

    def tell(self, choices: Choices, span_us: float | None) -> None:
        self._proposed.add(_name_of(choices))
        for pair in choices.items():
            known = self._best_with.get(pair, math.inf)
            self._best_with[pair] = min(known, math.inf if span_us is None else span_us)
        if span_us is not None:
            self._elite = sorted([*self._elite, (span_us, choices)], key=lambda pair: pair[0])[:ELITE]


def _name_of(choices: Choices) -> tuple[tuple[str, str], ...]:
    return tuple(choices.items())


SAMPLER = LocalSampler
