"""What a search tries before anything of its own: plans that ship, and winners of other shapes made to fit this one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from mktune.backends.base import Backend
from mktune.gpu_name import normalise_gpu
from mktune.plan import Plan
from mktune.shape import Shape
from mktune.space import Question, SearchSpace, nearest, question_stem
from mktune.trial import NEIGHBOUR, SHIPPED, Winner

if TYPE_CHECKING:
    from mktune.store import Store

NEIGHBOURS = 3
"""Plans of other shapes that a search tries at most."""


def known_plans(
    store: Store, space: SearchSpace, backend: Backend, most: int = NEIGHBOURS, shipped: Iterable[Winner] = ()
) -> list[tuple[str, Plan]]:
    """(source, plan): those of `shipped` at this shape, then `neighbour_plans`; all differ."""
    plans = _of_this_problem(shipped, space, backend)
    own = _adapted([plan for plan in plans if plan.shape == space.shape], space)
    found = {plan.plan_id: (SHIPPED, plan) for plan in own}
    for plan in neighbour_plans(store, space, backend, most, plans):
        found.setdefault(plan.plan_id, (NEIGHBOUR, plan))
    return list(found.values())


def neighbour_plans(
    store: Store, space: SearchSpace, backend: Backend, most: int = NEIGHBOURS, shipped: Sequence[Plan] = ()
) -> list[Plan]:
    """Served winners of the same ops at other shapes on the same GPU, and those of `shipped`, adapted to `space`.

    Nearest first; all differ.
    """
    won = store.winners(
        workload=space.workload.name,
        ops=tuple(space.graph.calls),
        gpu=backend.device.name,
        simulated=backend.simulated,
        scale_format=space.workload.scale_format,
    )
    plans = [*(winner.plan for winner in won), *shipped]
    others = [plan for plan in plans if plan.shape != space.shape]
    others.sort(key=lambda plan: (distance(plan.shape, space.shape), plan.plan_id))
    found: dict[str, Plan] = {}
    for plan in _adapted(others, space):
        if len(found) == most:
            break
        found.setdefault(plan.plan_id, plan)
    return list(found.values())


def _of_this_problem(shipped: Iterable[Winner], space: SearchSpace, backend: Backend) -> list[Plan]:
    """The plans of the same ops for this GPU. A model gets none: they were measured."""
    if backend.simulated:
        return []
    wanted = (space.workload.name, space.workload.scale_format, set(space.graph.calls))
    gpu = normalise_gpu(backend.device.name)
    return [
        winner.plan
        for winner in shipped
        if (winner.plan.workload, winner.plan.scale_format, set(winner.plan.op_names)) == wanted
        and normalise_gpu(winner.fingerprint.gpu) == gpu
    ]


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
