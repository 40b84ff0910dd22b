"""The 2 × 2: equal kernels in all cells, paired savings, and their interaction."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from fake_bench import H200, SHAPE, WORKLOAD, FakeBackend, FakeBench, failed, ok

from mktune.errors import CandidateError, InputError, PlanError
from mktune.graph.builtin import MODES, make_plan
from mktune.measure.ablation import PLAN, ablate, cell_plans, fused_of
from mktune.plan import OpPlan, Plan
from mktune.shape import Shape
from mktune.trial import Outcome, Status
from mktune.validity import check

SPANS = {"serial": 60.0, "serial+pdl": 50.0, "branches": 45.0, "branches+pdl": 40.0}


def mode_of(plan: Plan) -> str:
    streams = {kernel.stream for _, kernel in plan.kernels}
    return ("serial" if streams == {0} else "branches") + ("+pdl" if "programmatic" in plan.edge.values() else "")


def tuned(mode: str = "branches+pdl") -> Plan:
    """The whole workload with other tiles in D0."""
    d0 = WORKLOAD.graph.calls["D0"].op.default("sm_90a")
    return make_plan(
        WORKLOAD, None, SHAPE, "sm_90a", mode, {"D0": OpPlan.of(d0.impl, {**dict(d0.config), "stages": 6})}
    )


class DriftingBench(FakeBench):
    """Every round is slower than the one before, for all plans alike."""

    def paired(self, plans: Mapping[str, Plan]) -> tuple[dict[str, list[float]], dict[str, float]]:
        draw = random.Random(3)
        spans = {name: SPANS[mode_of(plan)] for name, plan in plans.items()}
        return {
            name: [span * (1 + i / 50) + draw.gauss(0, 0.02) for i in range(64)] for name, span in spans.items()
        }, {}


def by_mode(plan: Plan) -> Outcome:
    return ok(SPANS[mode_of(plan)])


def test_cells_have_the_same_kernels_and_only_their_structure_differs() -> None:
    cells = cell_plans(WORKLOAD.name, None, SHAPE, H200)
    assert list(cells) == list(MODES)
    assert [mode_of(plan) for plan in cells.values()] == list(MODES)
    assert len({plan.ops for plan in cells.values()}) == 1
    assert all(check(plan, H200) == [] for plan in cells.values())


def test_cells_take_the_configs_of_a_plan_which_is_a_row_itself() -> None:
    plan = tuned()
    cells = cell_plans(WORKLOAD.name, None, SHAPE, H200, plan)
    assert list(cells) == [*MODES, PLAN]
    assert {each.op["D0"] for each in cells.values()} == {plan.op["D0"]}
    assert cells[PLAN] is plan
    other = Shape.from_m(64, 4096)
    moved = cell_plans(WORKLOAD.name, None, other, H200, plan)
    assert {each.shape for each in moved.values()} == {other}
    assert moved[PLAN].kernels == plan.kernels
    part = cell_plans(WORKLOAD.name, ("B0", "D0"), SHAPE, H200, plan)
    assert list(part) == list(MODES)  # the plan computes more
    assert part["serial"].op == {"B0": plan.op["B0"], "D0": plan.op["D0"]}


def test_cells_launch_as_one_what_the_plan_launches_as_one() -> None:
    from test_fused_plans import BOTH, FUSED, KEYS

    cells = cell_plans(WORKLOAD.name, None, SHAPE, H200, FUSED)
    assert list(cells) == [*MODES, PLAN]
    assert [set(BOTH) - set(each.kernel) for each in cells.values()] == [set()] * 5
    assert {each.ops for each in cells.values()} == {FUSED.ops}
    assert cells["branches+pdl"] == cells[PLAN] == FUSED
    assert [mode_of(cells[mode]) for mode in MODES] == list(MODES)
    part = cell_plans(WORKLOAD.name, ("A0", "C0", "B1", "D1"), SHAPE, H200, FUSED)  # D1 has nobody to share with
    assert all(KEYS in each.kernel and "D1p" in each.kernel for each in part.values())
    assert fused_of(FUSED, ("C0", "B1")) == (KEYS,)
    assert fused_of(FUSED) == BOTH
    assert fused_of(tuned()) == ()


def test_a_plan_that_does_not_fit_is_refused() -> None:
    small = make_plan(WORKLOAD, ("A0", "B0"), SHAPE, "sm_90a", "serial")
    with pytest.raises(PlanError, match="has no D0; it computes A0, B0"):
        cell_plans(WORKLOAD.name, ("B0", "D0"), SHAPE, H200, small)
    with pytest.raises(PlanError, match="is one of other, not of glm52"):
        cell_plans(WORKLOAD.name, None, SHAPE, H200, replace(small, workload="other"))
    b0 = small.op["B0"]
    huge = replace(
        small,
        ops=(("A0", small.op["A0"]), ("B0", OpPlan.of(b0.impl, {**dict(b0.config), "stages": 12, "block_m": 128}))),
    )
    with pytest.raises(PlanError, match="must not run at M 16"):
        cell_plans(WORKLOAD.name, None, SHAPE, H200, huge)
    with pytest.raises(InputError, match="unknown op"):
        cell_plans(WORKLOAD.name, ("Z9",), SHAPE, H200)


def test_savings_and_interaction_add_up() -> None:
    found = ablate(FakeBackend(by_mode), WORKLOAD.name, None, SHAPE)
    assert {mode: span.median for mode, span in found.spans.items()} == SPANS
    assert {mode: saving.us.median for mode, saving in found.savings.items()} == {
        "serial+pdl": 10.0,
        "branches": 15.0,
        "branches+pdl": 20.0,
    }
    assert found.savings["branches"].fraction.median == pytest.approx(0.25)
    assert found.interaction.us.median == -5.0
    assert found.interaction.fraction.median == pytest.approx(-5 / 60)
    assert found.seconds.keys() == {"verify", "measure"}


def test_pairing_cancels_drift_that_all_cells_share() -> None:
    backend = FakeBackend(by_mode)
    backend.bench = DriftingBench(by_mode)
    found = ablate(backend, WORKLOAD.name, None, SHAPE)
    wide = found.spans["serial"].high - found.spans["serial"].low
    fraction = found.savings["branches+pdl"].fraction
    assert wide > 10
    assert fraction.high - fraction.low < 0.001
    assert fraction.low < 1 / 3 < fraction.high
    assert found.interaction.us.low < found.interaction.us.median < found.interaction.us.high < 0


def test_a_wrong_cell_stops_it_before_anything_is_timed() -> None:
    def answer(plan: Plan) -> Outcome:
        return failed(Status.WRONG_RESULT, "q: 3 rows differ") if mode_of(plan) == "branches" else by_mode(plan)

    with pytest.raises(CandidateError, match="branches: wrong_result: q: 3 rows differ"):
        ablate(FakeBackend(answer), WORKLOAD.name, None, SHAPE)
