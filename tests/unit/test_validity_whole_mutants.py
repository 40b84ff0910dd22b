"""The unsafe graphs of the whole prefix: rule and model refuse each, for its reason, and pass what it was made from."""

from __future__ import annotations

import pytest

from mktune.validity import check
from mktune.validity.hazards import hazards
from tests.oracle.events import race
from tests.oracle.plans import H200, with_edges
from tests.oracle.whole_mutants import BASES, ROWS, SAFE, UNSAFE, Case, base_plan, graph_of, shape_of


def test_every_kind_of_mistake_is_there_and_no_two_are_the_same() -> None:
    assert len(UNSAFE) == len(set(UNSAFE)) >= 20
    assert {case.base for case in UNSAFE} == set(BASES)
    assert {case.copies for case in UNSAFE} == {1, 2}
    assert sum(bool(case.shares) for case in UNSAFE) == 3


@pytest.mark.parametrize("m", ROWS)
@pytest.mark.parametrize("base", BASES)
def test_the_bases_are_plans_that_may_be_built(base: str, m: int) -> None:
    assert check(base_plan(base, m, H200.arch), H200) == []


@pytest.mark.parametrize("case", UNSAFE, ids=lambda case: case.name)
def test_rule_and_model_refuse_the_mutant_for_its_reason(case: Case) -> None:
    for m in ROWS:
        graph = graph_of(case, m, H200)
        found = hazards(graph)
        assert case.reason in {f"{violation.rule} {violation.where}" for violation in found}
        assert race(graph, copies=1) is not None


@pytest.mark.parametrize("case", SAFE, ids=lambda case: case.name)
def test_rule_and_model_pass_the_safe_graph(case: Case) -> None:
    for m in ROWS:
        graph = graph_of(case, m, H200)
        assert hazards(graph) == []
        assert race(graph, copies=2) is None


@pytest.mark.parametrize("case", [*UNSAFE, *SAFE], ids=lambda case: case.name)
def test_one_kernel_sleeps_and_launches_use_their_copys_and_shared_memory(case: Case) -> None:
    launches = dict(graph_of(case, 16, H200, launches=True).launches)
    asleep = [name for name, launch in launches.items() if "MKTUNE_DELAY_NS" in dict(launch.kernel.defines)]
    assert asleep == [case.slow]
    for copy in range(case.copies):
        buffers = {arg.buffer for arg in launches[f"B0p@{copy}"].args if hasattr(arg, "buffer")}
        assert {f"W_a@{copy}", "h_q"} <= buffers
    used = {arg.buffer for launch in launches.values() for arg in launch.args if hasattr(arg, "buffer")}
    assert used.isdisjoint(gone for gone, _ in case.shares)


@pytest.mark.parametrize("kind", ["programmatic", "launch_order"])
def test_a_plan_that_reads_pages_too_early_is_refused(kind: str) -> None:
    (found,) = check(with_edges(base_plan("early pages", 16, H200.arch), B1f_E1=kind), H200)
    assert (found.rule, found.where) == ("read_after_write", "B1f->E1")


@pytest.mark.parametrize("m", ROWS)
@pytest.mark.parametrize("base", [base for base in BASES if base.startswith("early pages")])
def test_pages_that_come_too_early_are_those_that_are_written(base: str, m: int) -> None:
    config = dict(dict(base_plan(base, m, "sm_90a").ops)["E1"].config)
    pages = -(-shape_of(m).kv // 64)
    assert pages <= min(int(config["stages"]), int(config["kv_split"]) // 64)
