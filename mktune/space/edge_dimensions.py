"""Dimensions of edges and of what they make matter: kinds of edges, chains, and where kernels wait and trigger."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from mktune.access import FUSED
from mktune.graph.fused import parts_of
from mktune.plan import Plan
from mktune.space.dimensions import Dimension, Question, named
from mktune.space.draft import Draft
from mktune.space.groups import Group, Values


@dataclass(frozen=True)
class EdgeKinds(Dimension):
    """Kinds of the data edges into one kernel, together. Named by the ops they come from."""

    kernel: str
    kinds: tuple[str, ...]

    def question(self, draft: Draft) -> Question | None:
        sources = draft.sources(self.kernel)
        if not sources:
            return None
        name = _named_after([op for source in sources for op in draft.kernels[source]], self.kernel)
        combinations = itertools.product(self.kinds, repeat=len(sources))
        options = {
            " ".join(combination): tuple(
                ((source, self.kernel), kind) for source, kind in zip(sources, combination, strict=True)
            )
            for combination in combinations
        }
        return Question(name, options, tuple(self._unfused(draft, sources)))

    def _unfused(self, draft: Draft, sources: tuple[str, ...]) -> Iterator[str]:
        """What the question is called where each kernel is one of its parts."""
        if FUSED in "".join((*sources, self.kernel)):
            for ops in itertools.product(*(draft.kernels[source] for source in sources)):
                for part in parts_of(self.kernel):
                    yield _named_after(ops, part)

    def apply(self, draft: Draft, option: Any) -> None:
        draft.kinds.update(option)

    def read(self, plan: Plan, draft: Draft) -> Any:
        edges = [(source, self.kernel) for source in draft.sources(self.kernel)]
        return tuple((edge, plan.edge.get(edge)) for edge in edges)


def _named_after(ops: Iterable[str], kernel: str) -> str:
    return f"{'+'.join(sorted(set(ops)))}->{kernel}"


@dataclass(frozen=True)
class Chain(Dimension):
    """Kind of the edge from the kernel before on the stream, where no data edge orders the two already."""

    kernel: str
    kinds: tuple[str, ...]

    def question(self, draft: Draft) -> Question | None:
        if self.kernel not in draft.predecessors:
            return None
        return Question(f"{self.kernel}.chain", {kind: kind for kind in self.kinds}, _of_parts(self.kernel, "chain"))

    def apply(self, draft: Draft, option: Any) -> None:
        draft.chains[self.kernel] = option

    def read(self, plan: Plan, draft: Draft) -> Any:
        return plan.kernel[self.kernel].chain


def _of_parts(kernel: str, what: str) -> tuple[str, ...]:
    """The same question of each part of a fused kernel."""
    return tuple(f"{part}.{what}" for part in parts_of(kernel)) if FUSED in kernel else ()


@dataclass(frozen=True)
class LaunchFields(Dimension):
    """Fields of one kernel's launch: where it waits (`gdc`, `l2_prefetch_bytes`), or where it triggers.

    relevant  whether the draft's edges make the choice matter
    fits      whether the op, as configured, knows these values for this kernel, and the draft's edges allow them
    """

    kernel: str
    group: Group
    relevant: Callable[[Draft, str], bool]
    fits: Callable[[Draft, str, Values], bool]

    def question(self, draft: Draft) -> Question | None:
        if self.kernel not in draft.kernels or not self.relevant(draft, self.kernel):
            return None
        offered = self.group.options({**draft.facts, **draft.fields_of(self.kernel)})
        options = {label: values for label, values in offered.items() if self.fits(draft, self.kernel, values)}
        like = _of_parts(self.kernel, self.group.name)
        return named(f"{self.kernel}.{self.group.name}", options, self.group.options(draft.facts), like)

    def apply(self, draft: Draft, option: Any) -> None:
        draft.launch.setdefault(self.kernel, {}).update(option)

    def read(self, plan: Plan, draft: Draft) -> Any:
        kernel = vars(plan.kernel[self.kernel])
        return tuple(sorted((name, kernel[name]) for name in self.group.field_names))
