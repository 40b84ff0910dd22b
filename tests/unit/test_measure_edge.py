"""The graphs of the edge table: one thing changes at a time."""

import pytest
from fake_bench import FakeBackend, FakeBench, ok

from mktune.backends.base import Stamps
from mktune.backends.models import KNOWN
from mktune.backends.sim import SimBackend
from mktune.errors import InputError
from mktune.graph.workload import workload
from mktune.measure.edge import MS, OFF, edge_plans, edge_table
from mktune.plan import GDC, OpPlan
from mktune.shape import Shape
from mktune.validity import check

PREFIX = workload("glm52_attention_prefix")


@pytest.mark.parametrize("m", MS)
def test_every_graph_may_be_built_and_only_the_edge_and_the_wait_change(m):
    plans = edge_plans(PREFIX, "A0", "B0", Shape.from_m(m, 8192), "sm_90a")
    assert {wait for wait, _ in plans} == set(GDC)
    assert {trigger for _, trigger in plans} == {OFF, "start", "after_wait", "before_epilogue"}
    first = next(iter(plans.values()))
    for (wait, trigger), plan in plans.items():
        assert check(plan, KNOWN["h200"]) == []
        assert plan.ops == first.ops
        assert plan.edge["A0", "B0p"] == ("full" if trigger == OFF else "programmatic")
        assert plan.edge["B0p", "B0f"] == "full"
        assert plan.kernel["A0"].trigger == ("exit" if trigger == OFF else trigger)
        assert plan.kernel["B0p"].gdc == wait
        assert plan.kernel["B0f"] == first.kernel["B0f"]


def test_row_blocks_fit_m_and_given_configs_are_kept():
    blocks = {}
    for m in (1, 16, 17, 64, 256):
        plan = next(iter(edge_plans(PREFIX, "A0", "B0", Shape.from_m(m, 8192), "sm_90a").values()))
        blocks[m] = dict(plan.op["B0"].config)["block_m"]
    assert blocks[1] <= 16 == blocks[16] < blocks[17] <= blocks[64] == 64 <= blocks[256]
    base = PREFIX.graph.calls["B0"].op.default("sm_90a")
    mine = OpPlan.of(base.impl, {**dict(base.config), "block_m": 16})
    plans = edge_plans(PREFIX, "A0", "B0", Shape.from_m(64, 8192), "sm_90a", {"B0": mine})
    assert all(plan.op["B0"] == mine for plan in plans.values())


class EdgeBench(FakeBench):
    """Spans and producer times that follow from wait and trigger; `saved` is what PDL saves when its best is measured
    beside the best without."""

    def __init__(self, saved):
        super().__init__(lambda plan: ok(1.0))
        self.saved = saved

    def rounds(self, plans, rounds):
        if set(plans) == {"full", "programmatic"}:
            full, early = plans["full"], plans["programmatic"]
            assert full.edge["A0", "B0p"] == "full"
            assert early.edge["A0", "B0p"] == "programmatic"
            assert early.kernel["B0p"].gdc == "prefetch"
            return {"full": [10.0 + self.saved] * 32, "programmatic": [10.0 + 0.1 * (i % 2) for i in range(32)]}, {}
        gains = {"entry": 0.5, "prologue": 0.75, "prefetch": 1.5}
        early = {OFF: 0.0, "start": 0.8, "after_wait": 1.0, "before_epilogue": 0.9}
        spans = {name: 13.0 - gains[name.split()[0]] * early[name.split()[1]] for name in plans}
        return {name: [span + 0.01 * i for i in range(2 * rounds)] for name, span in spans.items()}, {}

    def stamps(self, plan, kernels):
        ran = 1.5 if plan.kernel["A0"].trigger == "exit" else 1.7
        return Stamps({"A0": (0.0, ran)}, 13.5)


class EdgeBackend(FakeBackend):
    def __init__(self, saved=0.5):
        super().__init__()
        self.saved = saved

    def open(self, problem):
        assert problem.ops == ("A0", "B0")
        return EdgeBench(self.saved)


def test_rows_take_the_best_trigger_and_paired_differences():
    rows = edge_table(EdgeBackend(), PREFIX.name, "A0", "B0", (16,)).rows
    assert [(row.wait, row.trigger) for row in rows] == [(wait, "after_wait") for wait in GDC]
    assert [row.saved_us for row in rows] == pytest.approx([0.5, 0.75, 1.5])
    assert [row.step_us for row in rows] == pytest.approx([0.0, 0.25, 0.75])
    assert [row.slowdown_us for row in rows] == pytest.approx([0.2, 0.2, 0.2])


@pytest.mark.parametrize(("saved", "kind"), [(0.5, "programmatic"), (-0.3, "full"), (0.05, "either")])
def test_the_best_of_each_kind_decide_in_rounds_of_their_own(saved, kind):
    (choice,) = edge_table(EdgeBackend(saved), PREFIX.name, "A0", "B0", (16,)).choices
    assert (choice.m, choice.kind) == (16, kind)
    assert (choice.full, choice.programmatic) == ("entry", ("prefetch", "after_wait"))
    assert choice.saved.low <= saved <= choice.saved.high + 0.05


@pytest.mark.parametrize(("name", "producer", "consumer"), [(PREFIX.name, "A0", "B0"), ("gemm_rmsnorm", "G", "N")])
def test_a_model_answers_too(name, producer, consumer):
    """Its spans have no noise: what it says of the edge is what its rows say."""
    table = edge_table(SimBackend("h200"), name, producer, consumer)
    assert [choice.m for choice in table.choices] == list(MS)
    for choice in table.choices:
        rows = [row for row in table.rows if row.m == choice.m]
        assert choice.saved.median == pytest.approx(min(r.off_us for r in rows) - min(r.on_us for r in rows))
        assert choice.kind == (
            "programmatic" if choice.saved.median > 0 else "full" if choice.saved.median else "either"
        )
        assert all(0 < row.producer_off_us < row.off_us for row in rows)
        assert all(row.stamp_cost_us == 0 for row in rows)


def test_ops_without_an_edge_are_refused():
    with pytest.raises(InputError):
        edge_plans(PREFIX, "B0", "A0", Shape.from_m(16, 8192), "sm_90a")
