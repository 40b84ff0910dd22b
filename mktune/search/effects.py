"""What each option is worth, as far as the spans so far tell: log span as a sum of effects.

One effect for every option, and one for every two options of the same op or kernel: how many stages are best depends on
the tile.

A ridge regression, fitted by going over the options (Gauss-Seidel on its normal equations): every span that is added
moves the effects of its own options most, and a few sweeps bring the others after. How ops act on each other is noise
to it: a search that changes a good plan in a few places mostly keeps what goes together.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Mapping
from functools import cache

from mktune.space import question_stem

SWEEPS = 3
PRIOR = 0.15
"""Spread of effects (of log span) that is expected before anything is known."""
FLOOR = 0.01
"""Of the scatter that the sum of effects leaves, in log span."""
FAILED = 0.3
"""How far above the slowest span a failure counts, in log span."""

Pair = tuple[str, str]
"""Question, by its stem, and option."""


class Effects:
    """See the module."""

    def __init__(self) -> None:
        self._rows: list[tuple[tuple[Pair, ...], float | None]] = []
        self._with: dict[Pair, list[int]] = {}
        self._effect: dict[Pair, float] = {}
        self._mean = 0.0
        self._left: list[float] = []
        self._scatter = self._spread = PRIOR
        self._stale = False

    def tell(self, choices: Mapping[str, str], span_us: float | None) -> None:
        """A plan took so long; None: it failed."""
        number = len(self._rows)
        pairs = tuple(_singles(choices) + _joints(choices))
        self._rows.append((pairs, None if span_us is None else math.log(span_us)))
        for pair in pairs:
            self._with.setdefault(pair, []).append(number)
        self._stale = True

    def drawn(self, pairs: Iterable[Pair], beside: Mapping[str, str], draw: random.Random) -> dict[Pair, float]:
        """An effect for each pair in a plan that is else as `beside`, drawn from what is believed of it.

        Of what was seldom tried little is believed: then draws lie far apart.
        """
        if self._stale:
            self._fit()
        known: dict[Pair, float] = {}
        others = {question_stem(name): option for name, option in beside.items()}
        return {(name, option): self._whole(question_stem(name), option, others, known, draw) for name, option in pairs}

    def _whole(
        self, stem: str, option: str, beside: Mapping[str, str], known: dict[Pair, float], draw: random.Random
    ) -> float:
        """Of the option itself, and of it together with what stands beside it on the same op or kernel."""
        parts = [(stem, option)]
        for other, taken in beside.items():
            if other != stem and _place(other) == _place(stem):
                parts.append(_joint((stem, option), (other, taken)))
        for part in parts:
            if part not in known:
                known[part] = self._drawn(part, draw)
        return sum(known[part] for part in parts)

    def _drawn(self, pair: Pair, draw: random.Random) -> float:
        seen = len(self._with.get(pair, ()))
        doubt = self._spread * self._scatter / math.sqrt(self._scatter**2 + seen * self._spread**2)
        return draw.gauss(self._effect.get(pair, 0.0), doubt)

    def _fit(self) -> None:
        self._stale = False
        known = [value for _, value in self._rows if value is not None]
        if not known:
            return
        worst = max(known) + FAILED
        values = [worst if value is None else value for _, value in self._rows]
        self._left = [
            value - self._mean - sum(self._effect.get(pair, 0.0) for pair in pairs)
            for value, (pairs, _) in zip(values, self._rows, strict=True)
        ]
        shrink = (self._scatter / self._spread) ** 2
        for _ in range(SWEEPS):
            self._sweep(shrink)
        freedom = max(1.0, len(values) - 1.0)
        self._scatter = max(FLOOR, math.sqrt(sum(left**2 for left in self._left) / freedom))
        # One more value at the prior, so that a few early effects do not settle how large effects are.
        squares = [effect**2 for effect in self._effect.values()] + [PRIOR**2]
        self._spread = max(2 * FLOOR, math.sqrt(sum(squares) / len(squares)))

    def _sweep(self, shrink: float) -> None:
        left = self._left
        shift = sum(left) / len(left)
        self._mean += shift
        left[:] = [value - shift for value in left]
        for pair, rows in self._with.items():
            old = self._effect.get(pair, 0.0)
            new = (sum(left[row] for row in rows) + len(rows) * old) / (len(rows) + shrink)
            self._effect[pair] = new
            for row in rows:
                left[row] -= new - old


def _singles(choices: Mapping[str, str]) -> list[Pair]:
    return [(question_stem(name), option) for name, option in choices.items()]


def _joints(choices: Mapping[str, str]) -> list[Pair]:
    pairs = itertools.combinations(_singles(choices), 2)
    return [_joint(one, other) for one, other in pairs if _place(one[0]) == _place(other[0])]


def _joint(one: Pair, other: Pair) -> Pair:
    first, second = sorted((one, other))
    return f"{first[0]} {second[0]}", f"{first[1]} | {second[1]}"


@cache
def _place(stem: str) -> str:
    """The op or kernel that a question is about: "E1" of "E1.tile" and of "B1+D1->E1"."""
    return stem.partition("->")[2] or stem.partition(".")[0]
