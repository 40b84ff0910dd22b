"""Where a winner's gain comes from: what is put back, that it stays valid, what is lost, and how it is kept."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from fake_bench import H200, SHAPE, WORKLOAD, space_of
from stored_values import make_winner

from mktune.backends.base import Problem
from mktune.backends.sim import SimBackend
from mktune.errors import CandidateError, InputError
from mktune.graph.builtin import builtin_plans, make_plan
from mktune.graph.workloads.glm52_attention_prefix import article_plan
from mktune.measure.attribution import GROUPS, SAME, attribute, put_back
from mktune.plan import KernelPlan, OpPlan, Plan
from mktune.records import winner_from_dict, winner_to_dict
from mktune.validity import check

ARTICLE = article_plan(SHAPE)


def random_plan(seed: int) -> Plan:
    """A valid plan of the whole workload."""
    draw = random.Random(seed)
    while True:
        _, plan = space_of(None).walk(lambda question: draw.choice(list(question.options)))
        if not check(plan, H200):
            return plan


def placement(kernel: KernelPlan) -> tuple[str, str, int]:
    return kernel.gdc, kernel.trigger, kernel.l2_prefetch_bytes


def test_each_group_changes_what_it_names_and_nothing_else() -> None:
    back = {group: made.plan for group, made in put_back(ARTICLE, H200).items()}
    assert tuple(back) == GROUPS
    defaults = WORKLOAD.default_ops(WORKLOAD.ops, "sm_90a")
    assert back["tiles"].op == defaults
    assert back["tiles"].kernels == ARTICLE.kernels
    assert {kernel.stream for _, kernel in back["branches"].kernels} == {0}
    assert back["branches"].edges == ARTICLE.edges
    assert {kernel.chain for name, kernel in back["branches"].kernels} <= {"programmatic", "full"}
    assert {kind for _, kind in back["pdl"].edges} == {"full"}
    assert {kernel.chain for _, kernel in back["pdl"].kernels} == {"full"}
    assert [placement(k) for _, k in back["pdl"].kernels] == [placement(k) for _, k in ARTICLE.kernels]
    assert {placement(kernel) for _, kernel in back["placement"].kernels} == {("entry", "exit", 0)}
    assert back["placement"].edges == ARTICLE.edges
    assert back["order"] == ARTICLE
    for group in ("branches", "pdl", "placement"):
        assert back[group].ops == ARTICLE.ops


def test_one_stream_keeps_early_starts() -> None:
    """Chains are programmatic where those of the built-in plan with one stream are."""
    serial = make_plan(WORKLOAD, None, SHAPE, "sm_90a", "serial+pdl", ARTICLE.op)
    back = put_back(ARTICLE, H200)["branches"].plan
    assert (back.order, back.edges) == (serial.order, serial.edges)
    assert {n: k.chain for n, k in back.kernels} == {n: k.chain for n, k in serial.kernels}


@pytest.mark.parametrize("seed", range(12))
def test_what_is_put_back_may_be_built_whatever_the_plan(seed: int) -> None:
    for group, back in put_back(random_plan(seed), H200).items():
        assert check(back.plan, H200) == [], group


def test_a_default_config_with_another_kernel_gets_its_place() -> None:
    """The default has a finalizer kernel where the plan lets the last CTA finish."""
    b0 = WORKLOAD.graph.calls["B0"].op.default("sm_90a")
    last = OpPlan.of(b0.impl, {**dict(b0.config), "finalizer": "last_arriver"})
    plan = make_plan(WORKLOAD, ("A0", "B0", "D0"), SHAPE, "sm_90a", "serial+pdl", {"B0": last})
    assert plan.order == ("A0", "B0p", "D0")
    back = put_back(plan, H200)["tiles"].plan
    assert back.order == ("A0", "B0p", "B0f", "D0")
    assert back.edge == {("A0", "B0p"): "programmatic", ("B0p", "B0f"): "programmatic", ("B0f", "D0"): "programmatic"}
    assert check(back, H200) == []


def test_waits_that_a_default_config_does_not_know_are_put_back_with_it_and_said() -> None:
    said = [put_back(random_plan(seed), H200)["tiles"].note for seed in range(30)]
    assert any(note.startswith("with waits and triggers of ") for note in said)


class Rounds:
    """Paired spans by plan: 20 µs, and what was told of some."""

    def __init__(self, spans: Mapping[str, float]) -> None:
        self.spans, self.asked = spans, list[list[str]]()

    def __call__(self, plans: Mapping[str, Plan]) -> Mapping[str, Sequence[float]]:
        self.asked.append(list(plans))
        return {name: [self.spans.get(p.plan_id, 20.0) + i for i in range(32)] for name, p in plans.items()}


def test_losses_are_paired_differences_and_equal_plans_are_not_measured_twice() -> None:
    back = put_back(ARTICLE, H200)
    rounds = Rounds({back["pdl"].plan.plan_id: 26.0, back["tiles"].plan.plan_id: 19.5})
    found, missing = attribute(ARTICLE, H200, lambda plan: "", rounds)
    losses = dict(found)
    assert missing == {}
    assert {group: loss.loss_us for group, loss in losses.items()} == {
        "branches": 0.0,
        "order": 0.0,
        "pdl": 6.0,
        "placement": 0.0,
        "tiles": -0.5,
    }
    assert (losses["pdl"].low_us, losses["pdl"].high_us) == (6.0, 6.0)  # drift that both share is no uncertainty
    assert losses["order"].note == SAME
    assert losses["branches"].note == ""
    (asked,) = rounds.asked
    assert "order" not in asked
    assert len(asked) == 5


def test_a_group_that_is_wrong_is_left_out_and_rounds_that_fail_leave_none() -> None:
    bad = put_back(ARTICLE, H200)["pdl"].plan
    found, missing = attribute(ARTICLE, H200, lambda plan: "hang" if plan == bad else "", Rounds({}))
    assert set(dict(found)) == set(GROUPS) - {"pdl"}
    assert missing == {"pdl": "hang"}

    def noisy(plans: Mapping[str, Plan]) -> Mapping[str, Sequence[float]]:
        raise CandidateError("noisy", "the clock moved")

    assert attribute(ARTICLE, H200, lambda plan: "", noisy) == ((), dict.fromkeys(GROUPS, "the clock moved"))


def test_a_simulated_winner_has_it_too() -> None:
    builtins = builtin_plans(WORKLOAD, None, SHAPE, "sm_90a")
    default = WORKLOAD.graph.calls["C0"].op.default("sm_90a")
    other = OpPlan.of(default.impl, {**dict(default.config), "finalizer": "last_arriver"})  # the model likes it better
    fast = make_plan(WORKLOAD, None, SHAPE, "sm_90a", "branches+pdl", {"C0": other})
    with SimBackend().open(Problem(WORKLOAD.name, WORKLOAD.ops, SHAPE)) as bench:
        winner = bench.promote([fast], builtins)
    losses = dict(winner.attribution)
    assert winner.plan == fast
    assert losses["branches"].loss_us > 1
    assert losses["pdl"].loss_us > 1
    assert losses["pdl"].span_us == pytest.approx(winner.measurement.span_us + losses["pdl"].loss_us)


def test_it_is_kept_with_the_winner_and_earlier_documents_are_read() -> None:
    winner = make_winner()
    data = json.loads(json.dumps(winner_to_dict(winner)))
    assert data["attribution"]["tiles"] == {
        "span_us": 10.2,
        "loss_us": 0.2,
        "low_us": -0.1,
        "high_us": 0.3,
        "note": "with waits of B0",
    }
    assert winner_from_dict(data) == winner
    del data["attribution"]
    assert winner_from_dict(data) == replace(winner, attribution=())
    loss = {"span_us": 1.0, "loss_us": 0.1, "low_us": 0.0, "high_us": 0.2}
    with pytest.raises(InputError, match=r"winner.attribution.pdl: missing note"):
        winner_from_dict({**data, "attribution": {"pdl": loss}})
    with pytest.raises(InputError, match="must be an object"):
        winner_from_dict(["attribution"])
