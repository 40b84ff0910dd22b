"""Who wins a promotion: ties, guards, noise and what is stored when nothing beats a built-in plan."""

import random
from dataclasses import replace

import pytest

from mktune.errors import MktuneError, NothingFoundError
from mktune.graph.builtin import builtin_plans
from mktune.graph.workload import workload
from mktune.measure.promotion import AGAIN, Arm, arms, check_builtins, decide, simplicity, winner
from mktune.plan import OpPlan
from mktune.shape import Shape
from mktune.trial import Fingerprint, Policy, Status

SHAPE = Shape.from_m(16, 8192)
BUILTINS = builtin_plans(workload("glm52_attention_prefix"), None, SHAPE, "sm_90a")
FINGERPRINT = Fingerprint("NVIDIA H200", 132, "9.0", "580", "13.0", "13.0.88", "abc", "0.1.0")


def candidate(number, mode="branches+pdl"):
    """A plan that differs from the built-in of that mode in a config that changes nothing here."""
    plan = BUILTINS[mode]
    ops = {**plan.op, "A0": OpPlan.of("mktune", {"threads": 192 + number})}
    return replace(plan, ops=tuple(ops.items())).canonical()


def measured(found, spans, noise, seed, pairs=32, clock=lambda i: 1.0):
    """Paired samples: each arm's true span, times the clock of its round, times its own noise."""
    draw = random.Random(seed)
    return {arm.name: [spans[arm.name] * clock(i) * draw.gauss(1, noise) for i in range(pairs)] for arm in found}


def spans_of(found, finalists, builtins):
    """True spans by arm name."""
    known = {**builtins, **{name + AGAIN: span for name, span in builtins.items()}, **finalists}
    return {arm.name: known.get(arm.name, builtins["serial"]) for arm in found}


SLOW = {"serial": 60.0, "serial+pdl": 54.0, "branches": 45.0, "branches+pdl": 37.0}


def test_a_faster_finalist_wins_and_its_ratio_is_over_serial():
    found = arms([candidate(1)], BUILTINS)
    finalist = found[-1]
    samples = measured(found, spans_of(found, {finalist.name: 30.0}, SLOW), 0.004, 1)
    decision = decide(found, samples)
    assert decision.ranked[0] is finalist
    assert decision.baseline.name == "branches+pdl"
    row = winner(decision, finalist, samples, policy=Policy("cuda"), fingerprint=FINGERPRINT, validated="300 replays")
    assert row.ratio == pytest.approx(0.5, abs=0.01)
    assert row.ratio_low < row.ratio < row.ratio_high
    assert (row.kept_baseline, row.baseline, row.validated) == (False, "branches+pdl", "300 replays")
    assert dict(row.builtins) == pytest.approx(SLOW, rel=0.01)
    assert row.measurement.samples_us == tuple(samples[finalist.name])
    assert 0 < row.noise_floor < 0.01


def test_the_noise_is_that_of_the_plan_to_beat_and_not_of_a_slower_one():
    found = arms([candidate(1)], BUILTINS)
    true = spans_of(found, {found[-1].name: 36.0}, SLOW)
    samples = measured(found, true, 0.002, 3)
    unsteady = [span * (1.04 if i < 16 else 1.0) for i, span in enumerate(samples["serial again"])]
    decision = decide(found, {**samples, "serial again": unsteady})
    assert decision.noise < 0.005
    assert decision.ranked[0] is found[-1]
    again = [span * (1.04 if i < 16 else 1.0) for i, span in enumerate(samples["branches+pdl again"])]
    decision = decide(found, {**samples, "branches+pdl again": again})
    assert decision.noise > 0.03
    assert decision.ranked[0].name == "branches+pdl"


def test_equal_plans_give_the_same_winner_whatever_the_noise():
    plans = [candidate(i) for i in range(1, 6)]
    chosen = set()
    for seed in range(20):
        found = arms(plans, BUILTINS)
        near = {plan.plan_id[:12]: 30.0 * (1 + 0.0004 * i) for i, plan in enumerate(plans)}  # within 0.2 %
        samples = measured(found, spans_of(found, near, SLOW), 0.01, seed)
        decision = decide(found, samples)
        chosen.add(decision.ranked[0].plan.plan_id)
        assert set(decision.ties) == set(near)
    assert chosen == {min(plan.plan_id for plan in plans)}


@pytest.mark.parametrize("apart", [0.0002, 0.02])
def test_the_order_in_which_candidates_are_given_decides_nothing(apart):
    """Ten orders of six candidates; those that are measured later find caches, clocks and power as they are then."""
    plans, chosen = [candidate(i) for i in range(1, 7)], set()
    for seed in range(10):
        order = random.Random(seed).sample(plans, len(plans))
        found = arms(order, BUILTINS)
        spans = {plan.plan_id[:12]: 30.0 * (1 + apart * i) for i, plan in enumerate(plans)}
        decision = decide(found, measured(found, spans_of(found, spans, SLOW), 0.004, seed))
        chosen.add(decision.ranked[0].plan.plan_id)
    assert chosen == {min(plan.plan_id for plan in plans) if apart < 0.001 else plans[0].plan_id}


def test_a_tie_with_the_baseline_keeps_the_baseline():
    plans = [candidate(i) for i in range(1, 6)]
    for seed in range(10):
        found = arms(plans, BUILTINS)
        near = {plan.plan_id[:12]: 37.0 * (0.999 + 0.0004 * i) for i, plan in enumerate(plans)}
        samples = measured(found, spans_of(found, near, SLOW), 0.01, seed)
        decision = decide(found, samples)
        assert decision.ranked[0].name == "branches+pdl"


def test_a_tuned_plan_slower_than_the_default_is_never_stored():
    found = arms([candidate(1)], BUILTINS)
    flat = dict.fromkeys(SLOW, 100.0)
    samples = measured(found, spans_of(found, {found[-1].name: 101.0}, flat), 0.01, 4)
    decision = decide(found, samples)
    row = winner(decision, decision.ranked[0], samples, policy=Policy("cuda"), fingerprint=FINGERPRINT)
    assert row.kept_baseline
    assert row.plan == BUILTINS["serial"]  # the simplest of four that tie
    assert row.ratio == 1.0
    assert all(arm.role == "builtin" for arm in decision.ranked)


def test_what_is_surely_slower_by_more_than_the_band_is_no_tie_however_noisy_the_built_in_plans_are():
    found = arms([candidate(1), candidate(2)], BUILTINS)
    near = {candidate(1).plan_id[:12]: 30.0, candidate(2).plan_id[:12]: 30.3}
    samples = measured(found, spans_of(found, near, SLOW), 0.002, 5)
    again = [span * (1.04 if i < 16 else 1.0) for i, span in enumerate(samples["branches+pdl again"])]
    decision = decide(found, {**samples, "branches+pdl again": again})
    assert decision.noise > 0.03
    assert decision.ties == (candidate(1).plan_id[:12],)


def test_in_a_tie_the_simpler_plan_wins():
    simple, complicated = candidate(1, "serial"), candidate(2, "branches+pdl")
    assert simplicity(simple) < simplicity(complicated)
    found = arms([complicated, simple], BUILTINS)
    near = {simple.plan_id[:12]: 30.05, complicated.plan_id[:12]: 30.0}
    decision = decide(found, measured(found, spans_of(found, near, SLOW), 0.002, 7))
    assert decision.ranked[0].plan == simple
    assert decision.ranked[1].plan == complicated


def test_edges_that_do_nothing_lose_to_the_built_in_structure_with_the_same_configs():
    finalist = candidate(1)
    own = {f"{mode}, own configs": candidate(1, mode) for mode in BUILTINS}
    found = arms([finalist], BUILTINS, own)
    assert [arm.role for arm in found].count("structure") == 3  # the fourth is the finalist itself
    near = {arm.name: 30.0 for arm in found if arm.role != "builtin" and arm.role != "noise"}
    decision = decide(found, measured(found, spans_of(found, near, SLOW), 0.002, 7))
    assert decision.ranked[0].name == "serial, own configs"


def test_a_clock_that_moves_between_rounds_changes_nothing():
    found = arms([candidate(1)], BUILTINS)
    equal = spans_of(found, {found[-1].name: 40.0}, dict.fromkeys(SLOW, 40.0))
    samples = measured(found, equal, 0.003, 5, clock=lambda i: 1980 / 1200 if i < 16 else 1.0)
    decision = decide(found, samples)
    assert decision.noise < 0.01
    assert decision.ranked[0].plan == BUILTINS["serial"]
    assert dict(decision.spans)[found[-1].name] > 40.0


def test_a_candidate_that_clearly_beats_the_baseline_stays_a_second_choice():
    fast, slow = candidate(1), candidate(2)
    found = arms([slow, fast], BUILTINS)
    samples = measured(found, spans_of(found, {fast.plan_id[:12]: 25.0, slow.plan_id[:12]: 30.0}, SLOW), 0.003, 2)
    decision = decide(found, samples)
    assert [arm.plan for arm in decision.ranked[:3]] == [fast, slow, BUILTINS["branches+pdl"]]
    assert decision.ties == (fast.plan_id[:12],)


def test_finalists_that_are_built_ins_are_measured_once():
    found = arms([BUILTINS["branches+pdl"], candidate(1), candidate(1)], BUILTINS)
    assert [arm.name for arm in found] == [*BUILTINS, *(name + AGAIN for name in BUILTINS), candidate(1).plan_id[:12]]


def test_without_finalists_the_best_built_in_is_kept():
    found = arms([], BUILTINS)
    decision = decide(found, measured(found, spans_of(found, {}, SLOW), 0.003, 1))
    assert decision.ranked[0].name == "branches+pdl"
    assert decision.ties == ()


def test_arms_that_failed_take_no_part():
    found = arms([candidate(1)], BUILTINS)
    samples = measured(found, spans_of(found, {found[-1].name: 20.0}, SLOW), 0.003, 1)
    del samples[found[-1].name], samples["branches+pdl"]
    decision = decide(found, samples)
    assert decision.baseline.name == "branches"
    assert [arm.role for arm in decision.ranked] == ["builtin"] * 3


def test_a_wrong_baseline_stops_everything():
    found = [Arm(name, plan, "builtin") for name, plan in BUILTINS.items()]
    fine = dict.fromkeys(BUILTINS, (Status.OK, ""))
    check_builtins(fine, found)
    check_builtins({**fine, "serial+pdl": (Status.HANG, "no answer")}, found)
    with pytest.raises(MktuneError, match="baseline wrong") as caught:
        check_builtins({**fine, "branches": (Status.WRONG_RESULT, "h_q: 3 codes differ")}, found)
    assert caught.value.exit_code == 1
    with pytest.raises(NothingFoundError, match="no built-in plan could be run"):
        check_builtins(dict.fromkeys(BUILTINS, (Status.COMPILE_ERROR, "no compiler")), found)
    with pytest.raises(NothingFoundError):
        decide(arms([candidate(1)], {}), {candidate(1).plan_id[:12]: [1.0] * 32})


def decided(spans_of_one, baseline=(37.0,) * 31):
    """The decision over one finalist with these spans; every built-in plan takes `baseline` without any noise."""
    found = arms([candidate(1)], BUILTINS)
    return decide(found, {arm.name: spans_of_one if arm.role == "finalist" else baseline for arm in found})


def test_a_gain_inside_the_tie_band_is_none_however_quiet_the_gpu():
    assert decided([37.0 * 0.996] * 31).noise == 0.0
    assert decided([37.0 * 0.996] * 31).ranked[0].role == "builtin"
    assert decided([37.0 * 0.994] * 31).ranked[0].role == "finalist"


def test_a_gain_that_the_pairs_do_not_agree_on_is_none():
    torn = [37.0 * 0.97] * 16 + [37.0 * 1.05] * 15  # the median gains 3 %, its interval reaches beyond 1
    assert decided(torn).ranked[0].role == "builtin"
    assert decided([37.0 * 0.97] * 31).ranked[0].role == "finalist"


def test_simplicity_decides_a_tie_before_the_plan_id_does():
    simple = max((candidate(i, "serial") for i in range(1, 30)), key=lambda plan: plan.plan_id)
    plans = [plan for plan in map(candidate, range(30, 60)) if plan.plan_id < simple.plan_id]
    assert plans
    found = arms([plans[0], simple], BUILTINS)
    decision = decide(found, {arm.name: [30.0 if arm.role == "finalist" else 37.0] * 31 for arm in found})
    assert decision.ranked[0].plan == simple
