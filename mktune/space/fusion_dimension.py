"""The first choice of all: which kernels are one launch. Configs, edges and placement follow from it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mktune.plan import Plan
from mktune.space.dimensions import Dimension, Question
from mktune.space.draft import Draft

NAME = "fusion"
NONE = "none"


@dataclass(frozen=True)
class Fusion(Dimension):
    """Any of the fusions (fused kernel → its ops), or several that have no op in common."""

    fusions: Mapping[str, tuple[str, ...]]

    def question(self, draft: Draft) -> Question | None:
        return Question(NAME, self._options) if self.fusions else None

    @cached_property
    def _options(self) -> dict[str, tuple[bool, ...]]:
        """Label → for each fusion, whether it is made: "none", "B1+C0", "B1+C0 D0+D1"."""
        return {self._label(flags): flags for flags in sorted(self._sets(), key=sum)}

    def _sets(self) -> Iterator[tuple[bool, ...]]:
        for flags in itertools.product((True, False), repeat=len(self.fusions)):
            ops = [op for ops in itertools.compress(self.fusions.values(), flags) for op in ops]
            if len(ops) == len(set(ops)):
                yield flags

    def _label(self, flags: tuple[bool, ...]) -> str:
        return " ".join("+".join(ops) for ops in itertools.compress(self.fusions.values(), flags)) or NONE

    def apply(self, draft: Draft, option: Any) -> None:
        draft.fusions = {name: self.fusions[name] for name in itertools.compress(self.fusions, option)}

    def read(self, plan: Plan, draft: Draft) -> Any:
        return tuple(name in plan.kernel for name in self.fusions)
