"""Where a local search is stuck: searches of their own, each from a disturbed copy of a good plan.

A search that changes its best plans in a few places ends at one that no few changes improve, and goes on trying them.
An excursion is judged by its own best plan, so it may first be slower: that is how it gets elsewhere (iterated local
search: Lourenço, Martin and Stützle 2003). It ends when it gains nothing more.
"""

from __future__ import annotations

import math

from mktune.space import Choices

STUCK = 100
"""Trials without a gain after which the first excursion begins, and whichever follows until there is one."""
PATIENCE = 60
"""Trials of its own without a gain after which an excursion ends."""
GAIN = 0.001
"""Of the span: less is noise."""
KEPT = 4
"""Best plans of an excursion, which are changed further."""
BEGINNINGS = 4
"""Disturbed copies that are on their way before one of them was told."""

Name = tuple[tuple[str, str], ...]
"""Of a plan's choices."""


class Excursions:
    """When one is due, which proposals are its own, and the best of them."""

    def __init__(self) -> None:
        self._best, self._stale = math.inf, 0
        self._number, self._of = 0, dict[Name, int]()
        self._own_stale, self._on_their_way = 0, 0
        self.best: list[tuple[float, Choices]] = []
        """Of the excursion that is under way: what was told of it, the fastest first."""

    def wants_next(self) -> bool:
        """Whether the next proposal should be an excursion's: a change of one of its `best`, or where there is none yet
        a beginning."""
        return self._stale >= STUCK and (bool(self.best) or self._on_their_way < BEGINNINGS)

    def propose(self, name: Name) -> None:
        """That proposal is this one."""
        self._of[name] = self._number
        self._on_their_way += 1

    def withdraw(self, name: Name) -> None:
        """It is not measured."""
        self._on_their_way -= self._of.pop(name, None) == self._number

    def tell(self, name: Name, choices: Choices, span_us: float | None) -> None:
        """A plan, of an excursion or not, took so long; None: it failed."""
        gains = span_us is not None and span_us < self._best * (1.0 - GAIN)
        self._stale = 0 if gains else self._stale + 1
        if span_us is not None:
            self._best = min(self._best, span_us)
        if self._of.get(name) != self._number:
            return
        self._on_their_way -= 1
        self._own_stale += 1
        if span_us is not None:
            if not self.best or span_us < self.best[0][0] * (1.0 - GAIN):
                self._own_stale = 0
            self.best = sorted([*self.best, (span_us, choices)], key=lambda pair: pair[0])[:KEPT]
        if self._own_stale >= PATIENCE:
            self._number += 1
            self._own_stale, self._on_their_way, self.best = 0, 0, []
