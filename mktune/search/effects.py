"""What each option is worth, as far as the spans so far tell: log span as a sum of effects.

One effect for every option, and one for every two options of the same op or kernel: how many stages are best depends on
the tile.

A ridge regression that goes on from the effects of before when spans were added (`search.ridge`). How ops act on each
other is noise to it: a search that changes a good plan in a few places mostly keeps what goes together.
"""

from __future__ import annotations

import itertools
import math
import random
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from mktune.search.ridge import Incidence, ridge
from mktune.space import question_stem

PRIOR = 0.15
"""Spread of effects (of log span) that is expected before anything is known."""
FLOOR = 0.01
"""Of the scatter that the sum of effects leaves, in log span."""
FAILED = 0.3
"""How far above the slowest span a failure counts, in log span."""

REFIT = 200
"""Effects are fitted anew when one more span in so many was told: of a thousand the next one tells little."""

Pair = tuple[str, str]
"""Question and option; in what has an effect, the question by its stem."""
Part = tuple[Pair, ...]
"""What has an effect: an option, or two of the same op or kernel, in order."""


@dataclass
class _Posterior:
    """Mean and standard deviation of each pair that was asked for beside a plan's choices.

    others  those choices, by op or kernel
    """

    others: Mapping[str, Sequence[Pair]]
    of: dict[Pair, tuple[float, float]] = field(default_factory=dict)


class Effects:
    """See the module."""

    def __init__(self) -> None:
        self._spans: list[float | None] = []
        self._number: dict[Part, int] = {}
        # One entry for each part of each plan.
        self._parts, self._plans = array("q"), array("q")
        self._fitted = np.zeros(0)
        self._effect: list[float] = []
        self._variance: list[float] = []
        self._scatter = self._spread = PRIOR
        self._unfitted = 0  # spans told since the last fit
        self._posteriors: dict[tuple[Pair, ...], _Posterior] = {}  # since then, by what stands beside

    def tell(self, choices: Mapping[str, str], span_us: float | None) -> None:
        """A plan took so long; None: it failed."""
        parts = _parts(choices)
        self._parts.extend(self._number.setdefault(part, len(self._number)) for part in parts)
        self._plans.extend([len(self._spans)] * len(parts))
        self._spans.append(None if span_us is None else math.log(span_us))
        self._unfitted += 1

    def drawn(self, pairs: Iterable[Pair], beside: Mapping[str, str], draw: random.Random) -> dict[Pair, float]:
        """An effect for each pair in a plan that is else as `beside`, drawn from what is believed of it: its own, and
        those together with what stands beside it on the same op or kernel.

        Of what was seldom tried little is believed: then draws lie far apart (Thompson sampling).
        """
        if self._unfitted > len(self._spans) // REFIT:
            self._fit()
        key = tuple(beside.items())
        if key not in self._posteriors:
            self._posteriors[key] = _Posterior(_by_place(beside))
        posterior = self._posteriors[key]
        found = {}
        for pair in pairs:
            if pair not in posterior.of:
                posterior.of[pair] = self._belief(*pair, posterior.others)
            found[pair] = draw.gauss(*posterior.of[pair])
        return found

    def _belief(self, name: str, option: str, others: Mapping[str, Sequence[Pair]]) -> tuple[float, float]:
        """Mean and standard deviation."""
        own, fitted = (question_stem(name), option), len(self._effect)
        joints = [_joint(own, other) for other in others.get(_place(own[0]), ()) if other[0] != own[0]]
        effect = variance = 0.0
        for part in ((own,), *joints):
            number = self._number.get(part, fitted)
            if number >= fitted:
                variance += self._spread**2
            else:
                effect += self._effect[number]
                variance += self._variance[number]
        return effect, math.sqrt(variance)

    def _fit(self) -> None:
        self._unfitted, self._posteriors = 0, {}
        plans, parts = np.frombuffer(self._plans, np.int64), np.frombuffer(self._parts, np.int64)
        seen = np.bincount(parts, minlength=len(self._number))
        self._fitted = np.pad(self._fitted, (0, len(seen) - len(self._fitted)))
        known = [value for value in self._spans if value is not None]
        if known:
            worst = max(known) + FAILED
            values = np.array([worst if value is None else value for value in self._spans])
            shrink = (self._scatter / self._spread) ** 2
            self._fitted, left = ridge(Incidence(plans, parts, len(values), seen), values, shrink, self._fitted)
            self._scatter = max(FLOOR, math.sqrt(left @ left / max(1.0, len(values) - 1.0)))
            # One more value at the prior, so that a few early effects do not settle how large effects are.
            squares = np.append(self._fitted, PRIOR) ** 2
            self._spread = max(2 * FLOOR, math.sqrt(squares.mean()))
        variance = (self._spread * self._scatter) ** 2 / (self._scatter**2 + seen * self._spread**2)
        self._effect, self._variance = self._fitted.tolist(), variance.tolist()


def _parts(choices: Mapping[str, str]) -> list[Part]:
    """Every option, and every two of the same op or kernel."""
    places = _by_place(choices)
    singles: list[Part] = [(pair,) for pairs in places.values() for pair in pairs]
    return singles + [_joint(*two) for pairs in places.values() for two in itertools.combinations(pairs, 2)]


def _by_place(choices: Mapping[str, str]) -> dict[str, list[Pair]]:
    found: dict[str, list[Pair]] = defaultdict(list)
    for name, option in choices.items():
        stem = question_stem(name)
        found[_place(stem)].append((stem, option))
    return found


def _joint(one: Pair, other: Pair) -> Part:
    return (one, other) if one < other else (other, one)


@cache
def _place(stem: str) -> str:
    """The op or kernel that a question is about: "E1" of "E1.tile" and of "B1+D1->E1"."""
    return stem.partition("->")[2] or stem.partition(".")[0]
