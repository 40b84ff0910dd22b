"""The rule against an operational model that shares nothing with it: no unsafe graph passes, few safe ones fail."""

from __future__ import annotations

from collections import Counter
from random import Random

from mktune.graph.builtin import builtin_plans
from mktune.lowering.graph import lower, plan_edges
from mktune.lowering.kernel_graph import KernelGraph
from mktune.validity.hazards import hazards
from mktune.validity.waits import unheld
from tests.oracle.events import race, race_by_enumeration
from tests.oracle.graphs import random_graph
from tests.oracle.mutants import Mutant, mutants
from tests.oracle.plans import H200, SHAPE, SUBGRAPHS, WORKLOAD, random_plan

COUNT = 8000
FUSED = 1200


def refused(graph: KernelGraph, chained: tuple[str, ...] | None = None) -> bool:
    return bool(unheld(graph) or hazards(graph, chained))


def test_no_unsafe_mutant_is_accepted_and_few_safe_ones_are_refused() -> None:
    table: Counter[tuple[bool, bool]] = Counter()
    whole: Counter[bool] = Counter()
    accepted: list[tuple[Mutant, object]] = []
    for mutant in mutants(seed=20, count=COUNT):
        found = race(mutant.graph, copies=2, chained=mutant.chained)
        unsafe, judged = found is not None, refused(mutant.graph, mutant.chained)
        table[unsafe, judged] += 1
        if len(mutant.graph.kernels) >= len(WORKLOAD.ops):
            whole[unsafe] += 1
        if unsafe and not judged:
            accepted.append((mutant, found))
    unsafe, safe = table[True, True] + table[True, False], table[False, True] + table[False, False]
    print(
        f"\nmutants {COUNT}: unsafe {unsafe} (refused {table[True, True]}, accepted {table[True, False]}); "
        f"safe {safe} (accepted {table[False, False]}, refused {table[False, True]}, "
        f"{100 * table[False, True] / safe:.1f} %); whole workload {whole[True]} unsafe, {whole[False]} safe"
    )
    assert not accepted, (accepted[0][0].done, accepted[0][1])
    assert min(unsafe, safe) >= 500
    assert min(whole.values()) >= 200
    assert table[False, True] <= 0.1 * safe


def test_no_unsafe_mutant_of_a_plan_that_fuses_is_accepted_either() -> None:
    table: Counter[tuple[bool, bool]] = Counter()
    for mutant in mutants(seed=21, count=FUSED, fuse=True):
        assert any("+" in kernel.name for kernel in mutant.graph.kernels)
        found = race(mutant.graph, copies=2, chained=mutant.chained)
        table[found is not None, refused(mutant.graph, mutant.chained)] += 1
        assert not table[True, False], (mutant.done, found)
    print(f"\nmutants of fused plans {FUSED}: {dict(table)} as (unsafe, refused)")
    assert min(table[True, True], table[False, False]) >= 250
    assert table[False, True] <= 0.1 * (table[False, True] + table[False, False])


def test_no_unsafe_graph_of_random_accesses_and_edges_is_accepted() -> None:
    """Small graphs without any structure reach corners that mutants of sensible plans do not."""
    random = Random(7)
    table: Counter[tuple[bool, bool]] = Counter()
    for _ in range(3000):
        graph = random_graph(random, kernels=random.randint(2, 6))
        table[race(graph) is not None, refused(graph)] += 1
    assert table[True, False] == 0
    assert min(table[True, True], table[False, False]) >= 500


def test_more_copies_than_two_change_no_verdict() -> None:
    random = Random(11)
    for _ in range(400):
        graph = random_graph(random, kernels=random.randint(2, 5))
        assert (race(graph, copies=2) is None) == (race(graph, copies=4) is None)


def test_the_models_worst_path_choice_is_the_worst_of_all() -> None:
    random = Random(3)
    verdicts: Counter[bool] = Counter()
    for number in range(300):
        copies, kernels = (2, 2) if number % 3 else (1, 4)
        graph = random_graph(random, kernels=kernels)
        worst = race(graph, copies) is not None
        assert worst == (race_by_enumeration(graph, copies) is not None)
        verdicts[worst] += 1
    assert min(verdicts.values()) >= 50


def test_the_model_agrees_that_the_builtin_plans_are_safe() -> None:
    for ops in SUBGRAPHS:
        graph = WORKLOAD.subgraph(ops)
        for mode, plan in builtin_plans(WORKLOAD, ops, SHAPE, H200.arch).items():
            assert race(lower(plan, graph, SHAPE)) is None, (ops, mode)


def test_dropping_edges_changes_no_verdict_of_the_model() -> None:
    random = Random(5)
    dropped = 0
    for number in range(300):
        ops = SUBGRAPHS[number % len(SUBGRAPHS)]
        plan = random_plan(random, ops)
        lowered = lower(plan, WORKLOAD.subgraph(ops), SHAPE)
        asked = KernelGraph(lowered.kernels, plan_edges(plan))
        dropped += len(asked.edges) - len(lowered.edges)
        assert (race(lowered) is None) == (race(asked) is None)
    assert dropped > 100
