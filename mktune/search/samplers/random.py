"""Every option of every question equally likely; learns nothing."""

from __future__ import annotations

from mktune.plan import Plan
from mktune.search.samplers.base import Sampler, at_random
from mktune.space import Choices


class RandomSampler(Sampler):
    """See the module."""

    can_withdraw = True

    def ask(self) -> tuple[Choices, Plan]:
        return at_random(self.space, self.draw)

    def tell(self, choices: Choices, span_us: float | None) -> None:
        """Nothing is learnt."""


SAMPLER = RandomSampler
