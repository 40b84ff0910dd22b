"""Changes the incumbent only where its trace says that time goes: the kernels on its critical path.

What the path consists of decides what is worth a change: configs of the ops on it, edges into its kernels, where those
wait and trigger, and which streams all run on. The more of the span a kernel adds to the path, the more often it is
changed. Where everything near was tried, more is changed at once.
"""

from __future__ import annotations

from collections.abc import Iterable

from mktune.graph.fused import parts_of
from mktune.plan import Plan
from mktune.search.samplers.base import at_random
from mktune.search.samplers.local import JUMPS, LocalSampler
from mktune.space import Choices, question_stem
from mktune.trace import CriticalPath

PLACEMENT = ("fusion", "streams", "order", "priority")
PLACEMENT_SHARE = 0.15
"""Weight of the questions that place all kernels, those of the path among them."""
LEAST_SHARE = 0.03
"""Weight of a kernel that is on the path and adds next to nothing to it: it may hide what another adds."""


class TraceGuidedSampler(LocalSampler):
    """See the module."""

    wants_path = True

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._shares: dict[str, float] = {}
        self._traced: Choices = {}

    def know_path(self, choices: Choices, path: CriticalPath) -> None:
        whole = sum(step.after_us + step.held_us for step in path.steps) or 1.0
        self._traced = dict(choices)
        self._shares = {step.kernel: (step.after_us + step.held_us) / whole for step in path.steps}

    def ask(self) -> tuple[Choices, Plan]:
        if not self._shares:
            return super().ask()
        if self.draw.random() < JUMPS:
            return self._noted(*at_random(self.space, self.draw))
        return self.fresh(self._traced, self._weights(self._traced))

    def _weights(self, names: Iterable[str]) -> dict[str, float]:
        """Question → how often to change it; those that no kernel of the path depends on are left out."""
        found: dict[str, float] = {}
        for kernel, share in self._shares.items():
            about = [name for name in names if self._is_about(question_stem(name), kernel)]
            for name in about:
                found[name] = found.get(name, 0.0) + max(LEAST_SHARE, share) / len(about)
        placed = [name for name in names if question_stem(name) in PLACEMENT]
        return found | {name: PLACEMENT_SHARE / len(placed) for name in placed}

    def _is_about(self, stem: str, kernel: str) -> bool:
        of, _, field = stem.partition(".")
        if field:
            return kernel == of or (
                self.space.is_config(stem) and not self._kernels_of(of).isdisjoint(parts_of(kernel))
            )
        _, arrow, target = stem.partition("->")
        return bool(arrow) and target == kernel

    def _kernels_of(self, op: str) -> set[str]:
        return {op, op + "p", op + "f"}


SAMPLER = TraceGuidedSampler
