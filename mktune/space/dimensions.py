"""What a dimension is, and those of ops and placement: fields, issue order, streams, priority.

One class per kind of dimension. Each looks at the draft, offers options, applies one and reads one off a plan. What
decides nothing is not asked: the priority of a single stream, a wait that waits for nothing.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from mktune.graph.fused import parts_of
from mktune.graph.kernel_edges import topological_order
from mktune.ops.sharing import COMMON, apart
from mktune.plan import Plan
from mktune.space.draft import Draft
from mktune.space.groups import Group
from mktune.space.source import Scalar


@dataclass(frozen=True)
class Question:
    """What is asked at one place of the walk. The same name always offers the same labels.

    like  names of questions, asked where other kernels are fused, whose answers are a good guess here
    """

    name: str
    options: Mapping[str, Any]
    like: tuple[str, ...] = ()


def named(name: str, options: Mapping[str, Any], usual: Collection[str], like: tuple[str, ...] = ()) -> Question:
    """A question whose options earlier choices may have narrowed: then its name ends in a code of what is left.

    A sampler learns per name, and needs the same options under the same name.
    """
    if len(options) == len(usual):
        return Question(name, options, like)
    return Question(f"{name}~{zlib.crc32('|'.join(options).encode()):08x}", options, like)


def question_stem(name: str) -> str:
    """The name of a question without the code of what earlier choices left of it."""
    return name.partition("~")[0]


def nearest(label: str, options: Collection[str]) -> str:
    """The option that shares most words with `label`; the first of several."""
    words = set(label.split())
    return max(options, key=lambda option: (option == label, len(words.intersection(option.split()))))


class Dimension(ABC):
    """One kind of choice."""

    @abstractmethod
    def question(self, draft: Draft) -> Question | None:
        """What to choose here, or None where there is nothing to choose."""

    @abstractmethod
    def apply(self, draft: Draft, option: Any) -> None:
        """Write the chosen option into the draft."""

    @abstractmethod
    def read(self, plan: Plan, draft: Draft) -> Any:
        """The option that `plan` took; one that was not offered means that the plan lies outside the space."""


@dataclass(frozen=True)
class OpFields(Dimension):
    """Fields of one op's config (and `impl`).

    accepts  whether the op takes a config with these fields, whatever the groups that follow are

    Of an op that shares a launch only what goes together with the other ops is offered.
    """

    op: str
    group: Group
    accepts: Callable[[str, Mapping[str, Scalar]], bool]
    _asked: dict[tuple[Scalar | None, ...], Question] = field(default_factory=dict, compare=False, repr=False)

    @property
    def name(self) -> str:
        return f"{self.op}.{self.group.name}"

    def question(self, draft: Draft) -> Question | None:
        before = draft.configs.get(self.op, {})
        beside = draft.beside(self.op)
        key: tuple[Scalar | None, ...] = tuple(before.values())
        for fields in beside:
            key = (*key, None, *(fields.get(name) for name in COMMON))
        if key not in self._asked:
            self._asked[key] = self._offer(draft.facts, before, beside)
        return self._asked[key]

    def _offer(
        self, facts: Mapping[str, Scalar], before: Mapping[str, Scalar], beside: Sequence[Mapping[str, Scalar]]
    ) -> Question:
        options = self.group.options({**facts, **before})
        taken = {name: values for name, values in options.items() if self.accepts(self.op, {**before, **dict(values)})}
        options = taken or options  # where nothing is right, the check says what is wrong
        if beside:
            fit = {label: one for label, one in options.items() if not apart([{**before, **dict(one)}, *beside])}
            options = fit or options
        return named(self.name, options, self.group.options(facts))

    def apply(self, draft: Draft, option: Any) -> None:
        draft.configs.setdefault(self.op, {}).update(option)

    def read(self, plan: Plan, draft: Draft) -> Any:
        op = plan.op[self.op]
        fields: dict[str, Scalar] = {"impl": op.impl, **draft.implied.get(self.op, {}), **dict(op.config)}
        lacks = dict(self.group.lacks).get(op.impl, frozenset())
        return tuple(sorted((name, fields[name]) for name in self.group.field_names if name in fields.keys() - lacks))


@dataclass(frozen=True)
class Order(Dimension):
    """Issue order of the kernels, by named rankings; rankings that come out as the same order are one option."""

    rankings: tuple[tuple[str, tuple[str, ...]], ...]
    _orders: dict[tuple[str, ...], dict[str, tuple[str, ...]]] = field(default_factory=dict, compare=False, repr=False)

    def question(self, draft: Draft) -> Question | None:
        key = tuple(draft.kernels)
        if key not in self._orders:
            self._orders[key] = self._distinct(draft)
        options = self._orders[key]
        return named("order", options, dict(self.rankings))

    def _distinct(self, draft: Draft) -> dict[str, tuple[str, ...]]:
        names: dict[tuple[str, ...], str] = {}
        for name, ranking in self.rankings:
            place = {item: index for index, item in enumerate(ranking)}
            rank = {kernel: _rank(place, kernel, ops) for kernel, ops in draft.kernels.items()}
            names.setdefault(topological_order(tuple(draft.kernels), draft.edges, rank.__getitem__), name)
        return {name: order for order, name in names.items()}

    def apply(self, draft: Draft, option: Any) -> None:
        draft.order = option

    def read(self, plan: Plan, draft: Draft) -> Any:
        return plan.order


def _rank(place: Mapping[str, int], kernel: str, ops: tuple[str, ...]) -> int:
    """A fused kernel stands where it is named itself, else where the first of its parts would."""
    parts = zip(parts_of(kernel), ops, strict=True)
    return place.get(kernel, min(place.get(part, place.get(op, len(place))) for part, op in parts))


@dataclass(frozen=True)
class Streams(Dimension):
    """Which branches share a stream: every way to split those that have a kernel into at most so many streams."""

    branches: tuple[tuple[str, tuple[str, ...]], ...]
    at_most: int
    _splittings: dict[tuple[str, ...], dict[str, tuple[int, ...]]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def question(self, draft: Draft) -> Question | None:
        return named("streams", self._options(self._present(draft)), self._options(self._names), like=("streams",))

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.branches)

    def _present(self, draft: Draft) -> tuple[str, ...]:
        """Branches that have a kernel: a finalizer or a fused op's kernel may be all that one was for."""
        return tuple([name for name, kernels in self.branches if not draft.kernels.keys().isdisjoint(kernels)])

    def _options(self, names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
        if names not in self._splittings:
            self._splittings[names] = {_label(names, split): split for split in self._splits(len(names))}
        return self._splittings[names]

    def _splits(self, branches: int) -> list[tuple[int, ...]]:
        splits: list[tuple[int, ...]] = [()]
        for _ in range(branches):
            splits = [
                (*split, stream) for split in splits for stream in range(min(self.at_most, max(split, default=-1) + 2))
            ]
        return splits

    def apply(self, draft: Draft, option: Any) -> None:
        chosen = dict(zip(self._present(draft), option, strict=True))
        stream = {kernel: chosen[name] for name, kernels in self.branches if name in chosen for kernel in kernels}
        draft.streams = {kernel: stream[kernel] for kernel in draft.kernels}

    def read(self, plan: Plan, draft: Draft) -> Any:
        numbers: dict[int, int] = {}
        split = []
        for _, kernels in self.branches:
            used = {plan.kernel[kernel].stream for kernel in kernels if kernel in draft.kernels}
            if len(used) > 1:
                return None
            if used:
                split.append(numbers.setdefault(used.pop(), len(numbers)))
        return tuple(split)


def _label(names: tuple[str, ...], split: tuple[int, ...]) -> str:
    streams = [[n for n, s in zip(names, split, strict=True) if s == stream] for stream in range(max(split) + 1)]
    return " | ".join("+".join(together) for together in streams)


@dataclass(frozen=True)
class Priority(Dimension):
    """Whose stream goes first where kernels compete; asked only where there is more than one stream."""

    branches: tuple[tuple[str, tuple[str, ...]], ...]
    raised: tuple[str, ...]

    def question(self, draft: Draft) -> Question | None:
        if len(set(draft.streams.values())) < 2:
            return None
        options: dict[str, tuple[int, ...]] = {"none": (0,) * len(draft.kernels)}
        for name, kernels in self.branches:
            streams = {draft.streams[kernel] for kernel in kernels if kernel in draft.kernels}
            raised = tuple(int(stream in streams) for stream in draft.streams.values())
            if name in self.raised and raised not in options.values():
                options[name] = raised
        return named("priority", options, ("none", *self.raised))

    def apply(self, draft: Draft, option: Any) -> None:
        draft.priorities = dict(zip(draft.kernels, option, strict=True))

    def read(self, plan: Plan, draft: Draft) -> Any:
        return tuple(plan.kernel[kernel].priority for kernel in draft.kernels)
