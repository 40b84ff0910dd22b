"""A product part of a search space: some choices are free, within a few options each; the rest is as a plan has it.

    free = choose_free(space, plan, 3000)         or name them: {"B0.ring": ("split_k=4 stages=6", …), …}
    part = SubSpace(space, plan, free)            asked and walked as the whole space is

What is fixed and does not exist beside a free choice (more stages than another tile leaves room for) is replaced by
what is nearest to it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mktune.errors import SpaceError
from mktune.graph.fused import fused_among, kernel_ops
from mktune.lowering.graph import runs_as
from mktune.plan import Plan
from mktune.space.dimensions import Dimension, OpFields, Question, named, question_stem
from mktune.space.draft import Draft
from mktune.space.space import Choices, SearchSpace

Free = Mapping[str, Sequence[str]]
"""Question, by its stem → labels of the options that may be taken."""

OPTIONS = {"config": 4, "streams": 4, "wait": 3, "trigger": 3, "->": 3}
"""Options of a free choice, by its kind."""
ROOM = 1.5
"""Combinations for each plan that is wanted: some are invalid, and some run the same."""


class SubSpace(SearchSpace):
    """See the module. Raises SpaceError for a free choice without an option."""

    def __init__(self, space: SearchSpace, base: Plan, free: Free, configs_only: bool = False) -> None:
        self.base, self.free = base, {name: tuple(labels) for name, labels in free.items()}
        if empty := [name for name, labels in self.free.items() if not labels]:
            raise SpaceError(f"no option for {', '.join(empty)}")
        self._whole = space
        super().__init__(space.workload, tuple(space.graph.calls), space.shape, space.device, space.file, configs_only)

    def configs_of(self, op: str) -> SubSpace:
        return SubSpace(self._whole.configs_of(op), self.base, self.free, configs_only=True)

    def to_choices(self, plan: Plan) -> Choices | None:
        choices = super().to_choices(plan)
        inside = choices is not None and runs_as(plan, self.graph) == runs_as(self.to_plan(choices), self.graph)
        return choices if inside else None

    def free_configs(self) -> tuple[str, ...]:
        """Ops of whose config something is free."""
        return tuple(op for op in self.graph.calls if any(name.startswith(f"{op}.") for name in self._free_fields()))

    def _free_fields(self) -> list[str]:
        return [name for name in self.free if self.is_config(name)]

    def _offered(self, dimension: Dimension, draft: Draft) -> Question | None:
        question = dimension.question(draft)
        if question is None or not question.options:
            return question
        if self._configs_only and not isinstance(dimension, OpFields):
            return question
        stem = question_stem(question.name)
        options = {label: question.options[label] for label in self.free.get(stem, ()) if label in question.options}
        if options:
            return named(stem, options, self.free[stem])
        label = _nearest(question, _taken(dimension, draft, self.base))
        return Question(question.name, {label: question.options[label]})


def choose_free(space: SearchSpace, base: Plan, plans: int, skip: int = 0) -> dict[str, tuple[str, ...]]:
    """Choices that leave room for about `plans` valid plans: configs of the ops that read most, the edges, waits and
    triggers of their kernels, and streams. `skip` counts how many more are wanted than would do at first.

    Which options: what `base` takes, and others drawn from all (the same ones each time). Raises SpaceError where
    `base` lies outside the space.
    """
    asked = _asked(space, base)
    free: dict[str, tuple[str, ...]] = {}
    for name in _in_turn(space, base, asked):
        free[name] = _some(name, *asked[name], OPTIONS[_kind(space, name)])
        if math.prod(len(labels) for labels in free.values()) >= ROOM * plans:
            if skip == 0:
                break
            skip -= 1
    return free


def few_options(space: SearchSpace, base: Plan, wanted: Mapping[str, int | None]) -> dict[str, tuple[str, ...]]:
    """So many options (None: all) of each of the choices named. Raises SpaceError for one that `base` does not make."""
    asked = _asked(space, base)
    if unknown := [name for name in wanted if name not in asked]:
        raise SpaceError(f"no choice named {', '.join(unknown)}; there are {', '.join(asked)}")
    return {name: _some(name, *asked[name], count or len(asked[name][0])) for name, count in wanted.items()}


def _asked(space: SearchSpace, base: Plan) -> dict[str, tuple[tuple[str, ...], str]]:
    """Stem of each choice that `base` makes → every label, and that which it takes."""
    choices = space.to_choices(base)
    if choices is None:
        raise SpaceError(f"plan {base.short_id} lies outside the search space at M = {space.shape.m}")
    found: dict[str, tuple[tuple[str, ...], str]] = {}

    def pick(question: Question) -> str:
        label = choices[question.name]
        found[question_stem(question.name)] = tuple(question.options), label
        return label

    space.walk(pick)
    return found


def _in_turn(space: SearchSpace, base: Plan, asked: Mapping[str, object]) -> Iterator[str]:
    """Streams, then for one op after the other, what reads most first: config, edges, wait and trigger."""
    kernels = {kernel: ops[0] for kernel, ops in kernel_ops(space.graph, base.op, fused_among(base.kernel)).items()}
    weights = {op: call.op.bytes_read(space.shape) for op, call in space.graph.calls.items()}
    if "streams" in asked:
        yield "streams"
    for op in sorted(weights, key=lambda op: -weights[op]):
        for name in asked:
            if _kind(space, name) in OPTIONS and name != "streams" and _op_of(name, kernels) == op:
                yield name


def _op_of(name: str, kernels: Mapping[str, str]) -> str:
    of = name.partition("->")[2] or name.partition(".")[0]
    return kernels.get(of, of)


def _kind(space: SearchSpace, name: str) -> str:
    if space.is_config(name):
        return "config"
    return "->" if "->" in name else name.rpartition(".")[2]


def _some(name: str, labels: Sequence[str], taken: str, count: int) -> tuple[str, ...]:
    others = [label for label in labels if label != taken]
    drawn = random.Random(name).sample(others, min(len(others), count - 1))
    return tuple(label for label in labels if label == taken or label in drawn)


def _taken(dimension: Dimension, draft: Draft, base: Plan) -> Any:
    try:
        return dimension.read(base, draft)
    except KeyError:  # `base` has no such kernel
        return None


def _nearest(question: Question, taken: Any) -> str:
    """The option that is equal to `taken`, or else differs from it in the fewest places; the first of several."""
    return min(question.options, key=lambda label: _differing(question.options[label], taken))


def _differing(option: Any, taken: Any) -> int:
    if option == taken:
        return -1
    if not (isinstance(option, tuple) and isinstance(taken, tuple)) or len(option) != len(taken):
        return 0
    return sum(one != other for one, other in zip(option, taken, strict=True))
