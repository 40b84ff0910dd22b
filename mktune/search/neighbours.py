"""Winners of other shapes, nearest first, made to fit this one: what a search tries before anything of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mktune.backends.base import Backend
from mktune.plan import Plan
from mktune.shape import Shape
from mktune.space import Question, SearchSpace, nearest, question_stem

if TYPE_CHECKING:
    from mktune.store import Store

NEIGHBOURS = 3
"""Plans of other shapes that a search tries at most."""


def neighbour_plans(store: Store, space: SearchSpace, backend: Backend, most: int = NEIGHBOURS) -> list[Plan]:
    """Served winners of the same ops at other shapes on the same GPU, adapted to `space`: nearest first, all differ."""
    won = store.winners(
        workload=space.workload.name,
        ops=tuple(space.graph.calls),
        gpu=backend.device.name,
        simulated=backend.simulated,
        scale_format=space.workload.scale_format,
    )
    others = [winner.plan for winner in won if winner.plan.shape != space.shape]
    others.sort(key=lambda plan: (distance(plan.shape, space.shape), plan.plan_id))
    found: dict[str, Plan] = {}
    for plan in _adapted(others, space):
        found.setdefault(plan.plan_id, plan)
        if len(found) == most:
            break
    return list(found.values())


def distance(one: Shape, other: Shape) -> float:
    """How many times M, KV and the tokens of a request must be doubled or halved to get from one to the other."""
    ratios = (one.m / other.m, one.kv / other.kv, one.tokens_per_request / other.tokens_per_request)
    return sum(abs(math.log2(ratio)) for ratio in ratios)


def _adapted(plans: list[Plan], space: SearchSpace) -> Iterator[Plan]:
    for plan in plans:
        fitted = adapt(plan, space)
        if fitted is not None:
            yield fitted


def adapt(plan: Plan, space: SearchSpace) -> Plan | None:
    """The plan of `space` that takes what `plan` took at its own shape, and what is nearest to it where that does not
    exist; None where `plan` lies outside the space of its own shape."""
    own = SearchSpace(space.workload, tuple(space.graph.calls), plan.shape, space.device, space.file)
    choices = own.to_choices(plan)
    if choices is None:
        return None
    taken = {question_stem(name): label for name, label in choices.items()}

    def pick(question: Question) -> str:
        return nearest(taken.get(question_stem(question.name), ""), question.options)

    return space.walk(pick)[1]
