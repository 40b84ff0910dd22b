"""How many plans of the whole workload `mktune.validity.check` judges per second, on one core. Prints JSON.

    python -m tests.benchmarks.validity_rate [--plans N] [--seed N] [--unfused]

Plans are distinct random walks through the shipped search space, each checked once; three in four have kernels of two
ops in one launch, unless `--unfused` leaves those out:

cold    the first N in a process that has judged nothing: most of their configs were never asked about before
search  the N after them, as deep in a search: many configs are known, no plan is
again   the same N once more: every config is known
rule    the closure rule alone (two copies, every conflict) over the lowered graphs of the same N

CPU seconds of this process count, so that neighbours on the machine do not, but for the clock they leave us. The plans
are made in another process, whose walks would have the ops keep answers.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from random import Random
from typing import TypeVar

from mktune.device import Device
from mktune.graph.workload import workload
from mktune.lowering.graph import lower
from mktune.ops.base import Violation
from mktune.plan import Plan
from mktune.shape import Shape
from mktune.space import Question, SearchSpace
from mktune.validity import check
from mktune.validity.hazards import hazards

Item = TypeVar("Item")

SHAPE = Shape(2, 8, 8192)
H200 = Device("NVIDIA H200", "sm_90a", 132, 232448, 60 << 20, 4.8e12)


def random_plans(count: int, seed: int, unfused: bool = False) -> list[Plan]:
    """Distinct plans of the whole workload, as a search makes them."""
    space = SearchSpace.load(workload("glm52_attention_prefix"), None, SHAPE, H200)
    random = Random(seed)
    plans: dict[Plan, None] = {}

    def pick(question: Question) -> str:
        return "none" if unfused and question.name == "fusion" else random.choice(list(question.options))

    while len(plans) < count:
        plans[space.walk(pick)[1]] = None
    return list(plans)


def rate(items: Sequence[Item], judge: Callable[[Item], list[Violation]]) -> float:
    """Items judged per CPU second. What already lies in memory is kept out of garbage collections."""
    gc.collect()
    gc.freeze()
    start = time.process_time()
    for item in items:
        judge(item)
    return len(items) / (time.process_time() - start)


def measure(count: int, seed: int, unfused: bool = False) -> dict[str, object]:
    """Rates, and how the plans were judged."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as another:
        plans = another.submit(random_plans, 2 * count, seed, unfused).result()
    cold = rate(plans[:count], lambda plan: check(plan, H200))
    search = rate(plans[count:], lambda plan: check(plan, H200))
    again = rate(plans[count:], lambda plan: check(plan, H200))
    graph = workload("glm52_attention_prefix").graph
    rule = rate([lower(plan, graph, SHAPE) for plan in plans[count:]], hazards)
    judged = [check(plan, H200) for plan in plans[count:]]
    return {
        "plans": count,
        "fused": sum("+" in "".join(plan.kernel) for plan in plans[count:]),
        "cold_plans_per_s": round(cold),
        "search_plans_per_s": round(search),
        "again_plans_per_s": round(again),
        "rule_plans_per_s": round(rule),
        "refused": sum(1 for violations in judged if violations),
        "rules": dict(Counter(violation.rule for violations in judged for violation in violations)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Rate of the validity check, as JSON.")
    parser.add_argument("--plans", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--unfused", action="store_true")
    given = parser.parse_args()
    print(json.dumps(measure(given.plans, given.seed, given.unfused)))


if __name__ == "__main__":
    main()
