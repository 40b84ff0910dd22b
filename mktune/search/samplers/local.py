"""Changes a few choices of one of the best plans so far.

A space of forty questions is mostly made of bad plans, and good ones differ from the built-in plans in a few places:
a step from what is known to be good is worth more than a jump.
"""

from __future__ import annotations

from collections.abc import Mapping

from mktune.plan import Plan
from mktune.search.samplers.base import Sampler, at_random
from mktune.space import Choices, Question

ELITE = 4
"""Plans that may be changed."""
JUMPS = 0.05
"""Share of proposals that start from nothing."""
STEPS = (1, 1, 2, 2, 3, 4)
"""How many questions are answered anew, each entry equally likely."""


class LocalSampler(Sampler):
    """See the module."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]  # same arguments as the base
        self._elite: list[tuple[float, Choices]] = []

    def ask(self) -> tuple[Choices, Plan]:
        if not self._elite or self.draw.random() < JUMPS:
            return at_random(self.space, self.draw)
        # The better of two: the best plan is changed most often.
        first, second = self.draw.randrange(len(self._elite)), self.draw.randrange(len(self._elite))
        _, base = self._elite[min(first, second)]
        return self._changed(base, set(self.draw.sample(sorted(base), min(len(base), self.draw.choice(STEPS)))))

    def _changed(self, base: Mapping[str, str], changed: set[str]) -> tuple[Choices, Plan]:
        def pick(question: Question) -> str:
            options = list(question.options)
            before = base.get(question.name)
            if before is None or before not in question.options:
                return self.draw.choice(options)
            if question.name not in changed:
                return before
            return self.draw.choice([option for option in options if option != before])

        return self.space.walk(pick)

    def tell(self, choices: Choices, span_us: float | None) -> None:
        if span_us is not None:
            self._elite = sorted([*self._elite, (span_us, choices)], key=lambda pair: pair[0])[:ELITE]


SAMPLER = LocalSampler
