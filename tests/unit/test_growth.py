"""A workload op by op: its order, its sub-problems, increases, and one bench for all of it."""

from __future__ import annotations

import pytest
from fake_bench import H200, SHAPE, WORKLOAD, FakeBackend, failed, ok

from mktune.backends.sim import SimBackend
from mktune.errors import CandidateError, InputError
from mktune.graph.builtin import make_plan
from mktune.graph.workload import workload, workload_names
from mktune.measure.growth import grow, step_plans
from mktune.measure.stats import difference
from mktune.plan import Plan
from mktune.trial import Outcome, Status
from mktune.validity import check

ORDER = ("A0", "C0", "B1", "B0", "D0", "D1", "D2", "E1")


def by_count(plan: Plan) -> Outcome:
    """3 µs for one op, 2 µs more for each further one."""
    return ok(1.0 + 2.0 * len(plan.ops))


@pytest.mark.parametrize("name", workload_names())
def test_growth_of_every_workload_takes_each_op_once_and_stays_connected(name: str) -> None:
    known = workload(name)
    order = known.growth_of()
    assert sorted(order) == sorted(known.ops)
    assert sorted(known.growth or known.ops) == sorted(known.ops)
    for count in range(1, len(order) + 1):
        assert set(known.subgraph(order[:count]).calls) == set(order[:count])


def test_the_prefix_grows_in_its_own_order() -> None:
    assert WORKLOAD.growth_of() == ORDER
    assert WORKLOAD.growth_of(("B0", "C0", "D1")) == ("C0", "D1", "B0")  # B0 alone would not join C0
    with pytest.raises(InputError, match="not connected"):
        WORKLOAD.growth_of(("C0", "B0"))


@pytest.mark.parametrize("mode", ["serial", "branches+pdl"])
def test_every_step_and_every_op_alone_may_be_built(mode: str) -> None:
    begun, alone = step_plans(WORKLOAD.name, None, SHAPE, mode, H200)
    assert [set(plan.op_names) for plan in begun] == [set(ORDER[: n + 1]) for n in range(8)]
    assert {op: plan.op_names for op, plan in alone.items()} == {op: (op,) for op in ORDER}
    assert all(check(plan, H200) == [] for plan in (*begun, *alone.values()))
    assert begun[-1] == make_plan(WORKLOAD, None, SHAPE, "sm_90a", mode)


def test_steps_add_up_and_one_bench_measures_them_all() -> None:
    backend = FakeBackend(by_count)
    found = grow(backend, WORKLOAD.name, None, SHAPE, "serial")
    assert [step.op for step in found.steps] == list(ORDER)
    assert found.steps[3].ops == ORDER[:4]
    assert [step.span.median for step in found.steps] == [1.0 + 2.0 * n for n in range(1, 9)]
    assert [step.increase.median for step in found.steps] == [3.0] + [2.0] * 7
    assert [step.alone.median for step in found.steps] == [3.0] * 8
    assert found.alone_us == 24.0
    assert set(backend.problem.ops) == set(ORDER)
    measured = [plan for part in backend.bench.parts.values() for plan in part.measured]
    assert len(measured) == 15  # the first step is its op alone
    assert all(part.prepared and part.closed for part in backend.bench.parts.values())
    assert "set-up" in found.seconds


def test_steps_take_the_configs_of_a_plan() -> None:
    from test_ablation import tuned

    plan = tuned()
    begun, alone = step_plans(WORKLOAD.name, ("B0", "D0"), SHAPE, "serial", H200, plan)
    assert [set(each.op_names) for each in begun] == [{"B0"}, {"B0", "D0"}]
    assert alone["D0"].op["D0"] == begun[1].op["D0"] == plan.op["D0"]


@pytest.mark.parametrize("mode", ["serial", "branches+pdl"])
def test_steps_launch_as_one_what_a_plan_does_as_soon_as_its_ops_are_there(mode: str) -> None:
    from test_fused_plans import BOTH, FUSED, KEYS, QUERIES

    begun, alone = step_plans(WORKLOAD.name, None, SHAPE, mode, H200, FUSED)
    first = {kernel: next(n for n, each in enumerate(begun) if kernel in each.kernel) for kernel in (KEYS, QUERIES)}
    assert {ORDER[n]: kernel for kernel, n in first.items()} == {"B1": KEYS, "D1": QUERIES}
    assert all(kernel in each.kernel for kernel, n in first.items() for each in begun[n:])
    assert begun[-1] == make_plan(WORKLOAD, None, SHAPE, "sm_90a", mode, FUSED.op, BOTH)
    assert "C0" in begun[1].kernel
    assert all("+" not in kernel for each in alone.values() for kernel in each.kernel)


def test_a_step_that_fails_is_named() -> None:
    def answer(plan: Plan) -> Outcome:
        return failed(Status.WRONG_RESULT, "g: 3 rows differ") if "C0" in plan.op else by_count(plan)

    with pytest.raises(CandidateError, match=r"A0\+C0: wrong_result: g: 3 rows differ"):
        grow(FakeBackend(answer), WORKLOAD.name, None, SHAPE, "serial")


def test_the_model_hides_time_as_the_graph_grows() -> None:
    found = grow(SimBackend(), WORKLOAD.name, None, SHAPE, "branches+pdl")
    spans = [step.span.median for step in found.steps]
    assert spans == sorted(spans)
    assert found.alone_us > spans[-1]


def test_a_difference_of_medians_has_the_interval_of_both() -> None:
    ours, theirs = [10.0 + 0.1 * (i % 7) for i in range(60)], [7.0 + 0.1 * (i % 5) for i in range(60)]
    found = difference(ours, theirs)
    assert found.median == pytest.approx(3.1)
    assert found.low <= found.median <= found.high
    assert found.high - found.low < 0.5
    assert found == difference(ours, theirs)
