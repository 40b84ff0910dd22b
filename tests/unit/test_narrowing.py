"""What is surely slower leaves a promotion after its first rounds, and who wins stays as it was."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from mktune.graph.builtin import builtin_plans
from mktune.graph.workload import workload
from mktune.measure.narrowing import FIRST_PAIRS, Compared, compared, may_return, surely_slower
from mktune.measure.promotion import AGAIN, MIN_PAIRS, Arm, Samples, arms, decide
from mktune.measure.stats import log_ratios
from mktune.plan import OpPlan, Plan
from mktune.shape import Shape

BUILTINS = builtin_plans(workload("glm52_attention_prefix"), None, Shape.from_m(16, 8192), "sm_90a")
SLOW = {"serial": 60.0, "serial+pdl": 54.0, "branches": 45.0, "branches+pdl": 37.0}
BLOCKS = (FIRST_PAIRS, 32 - FIRST_PAIRS, 32)
PAIRS = sum(BLOCKS)


def candidate(number: int, mode: str = "branches+pdl") -> Plan:
    """A plan that differs from the built-in of that mode in a config that changes nothing here."""
    plan = BUILTINS[mode]
    ops = {**plan.op, "A0": OpPlan.of("mktune", {"threads": 192 + number})}
    return replace(plan, ops=tuple(ops.items())).canonical()


def field(finalists: Mapping[int, float], structures: Mapping[str, float] | None = None) -> tuple[list[Arm], Samples]:
    """Arms of finalists and of structures, and true spans by name; built-in plans take as long as SLOW says."""
    plans = {candidate(number): span for number, span in finalists.items()}
    others = {mode: candidate(100, mode) for mode in structures or {}}
    found = arms(list(plans), BUILTINS, {f"{mode}, own configs": plan for mode, plan in others.items()})
    known = {plan.short_id: span for plan, span in plans.items()}
    known |= {f"{mode}, own configs": span for mode, span in (structures or {}).items()}
    known |= {name + end: span for name, span in SLOW.items() for end in ("", AGAIN)}
    return found, {arm.name: [known[arm.name]] for arm in found}


class Device:
    """Gives samples of arms, each with noise of its own and that of its round, and notes what it was asked for."""

    def __init__(self, spans: Samples, noise: float, seed: int, clock: Callable[[int], float] = lambda i: 1.0) -> None:
        draw = random.Random(seed)
        self.asked: dict[str, int] = dict.fromkeys(spans, 0)
        self.samples = {
            name: [spans[name][0] * clock(i) * draw.gauss(1, noise) for i in range(PAIRS)] for name in spans
        }
        self._taken = 0

    def block(self, count: int) -> Callable[[Sequence[Arm]], tuple[Samples, Mapping[str, float]]]:
        def take(found: Sequence[Arm]) -> tuple[Samples, Mapping[str, float]]:
            begin = self._taken
            self._taken += count
            for arm in found:
                self.asked[arm.name] += count
            return {arm.name: self.samples[arm.name][begin : self._taken] for arm in found}, {"blocks": count}

        return take

    def compare(self, found: Sequence[Arm], blocks: Sequence[int] = BLOCKS) -> Compared:
        return compared(found, [self.block(count) for count in blocks])


def test_a_surely_slower_arm_leaves_after_the_first_rounds_and_costs_no_further_sample() -> None:
    found, spans = field({1: 30.0, 2: 36.0}, {"serial": 50.0, "branches": 30.1})
    device = Device(spans, 0.004, 1)
    rounds = device.compare(found)
    slow, near = candidate(2).short_id, candidate(1).short_id
    assert set(rounds.left) == {slow, "serial, own configs"}
    assert {device.asked[name] for name in rounds.left} == {FIRST_PAIRS}
    assert {device.asked[arm.name] for arm in rounds.arms} == {PAIRS}
    assert {near, "branches, own configs"} <= {arm.name for arm in rounds.arms}
    assert set(rounds.notes) == {f"span of {slow}", "span of serial, own configs"}
    assert rounds.notes[f"span of {slow}"].endswith(f" us ({FIRST_PAIRS} pairs)")
    assert float(rounds.notes[f"span of {slow}"].split()[0]) == pytest.approx(36.0, rel=0.01)
    assert rounds.state == {"blocks": BLOCKS[-1]}


def test_built_in_arms_take_part_in_all_rounds_however_slow_they_are() -> None:
    found, spans = field({1: 10.0})
    rounds = Device(spans, 0.002, 1).compare(found)
    assert rounds.arms == tuple(found)
    assert all(len(rounds.samples[name + end]) == PAIRS for name in BUILTINS for end in ("", AGAIN))


@pytest.mark.parametrize("noise", [0.002, 0.02])
def test_a_near_tie_never_leaves(noise: float) -> None:
    for seed in range(20):
        found, spans = field({number: 30.0 * (1 + 0.001 * number) for number in range(6)})
        assert not Device(spans, noise, seed).compare(found).left


def test_samples_of_what_stays_are_paired_from_the_first_to_the_last() -> None:
    """Every round has a clock of its own, which moves spans by far more than plans differ."""
    found, spans = field({1: 30.0, 2: 30.6, 3: 40.0})
    device = Device(spans, 0.0, 1, clock=lambda i: 1.0 + 0.5 * random.Random(i).random())
    rounds = device.compare(found)
    assert set(rounds.left) == {candidate(3).short_id}
    first = rounds.samples["serial"]
    for arm in rounds.arms:
        assert len(rounds.samples[arm.name]) == PAIRS >= MIN_PAIRS
        assert {round(log, 9) for log in log_ratios(rounds.samples[arm.name], first)} == {
            round(log_ratios(spans[arm.name], spans["serial"])[0], 9)
        }
    (early,) = rounds.left.values()
    assert len({round(log, 9) for log in log_ratios(early, first[:FIRST_PAIRS])}) == 1


@pytest.mark.parametrize("apart", [0.001, 0.02])
def test_the_same_plan_wins_as_where_nothing_leaves(apart: float) -> None:
    left = 0
    for seed in range(20):
        spans_of = {number: 30.0 * (1 + apart * number) for number in range(4)}
        modes = {mode: 29.99 * (1 + place * 0.07) for place, mode in enumerate(reversed(list(BUILTINS)))}
        found, spans = field(spans_of, modes)
        device = Device(spans, 0.008, seed)
        rounds = device.compare(found)
        narrowed, whole = decide(rounds.arms, rounds.samples), decide(found, device.samples)
        assert narrowed.ranked[0] == whole.ranked[0]
        assert narrowed.ties == whole.ties
        assert (narrowed.baseline, narrowed.noise) == (whole.baseline, whole.noise)
        left += len(rounds.left)
    assert left >= 20


def test_a_candidate_that_is_slower_than_the_baseline_is_not_stored() -> None:
    found, spans = field({1: 101.0, 2: 120.0})
    spans = {arm.name: spans[arm.name] if arm.role == "finalist" else [100.0] for arm in found}
    for seed in range(20):
        rounds = Device(spans, 0.01, seed).compare(found)
        decision = decide(rounds.arms, rounds.samples)
        assert set(rounds.left) == {candidate(2).short_id}
        assert decision.ranked[0].plan == BUILTINS["serial"]


def test_where_the_built_in_plans_are_unsteady_less_is_sure() -> None:
    found, spans = field({1: 30.0, 2: 32.0})
    samples = {arm.name: spans[arm.name] * FIRST_PAIRS for arm in found}
    assert [arm.name for arm in surely_slower(found, samples)] == [candidate(2).short_id]
    torn = [span * factor for span, factor in zip(samples["branches+pdl"], [1.05, 0.95] * 4, strict=True)]
    assert surely_slower(found, {**samples, "branches+pdl" + AGAIN: torn}) == []


def test_one_block_and_no_candidates_leave_everything_as_it_is() -> None:
    found, spans = field({1: 30.0, 2: 40.0})
    assert Device(spans, 0.002, 1).compare(found, (PAIRS,)).left == {}
    found, spans = field({})
    assert Device(spans, 0.002, 1).compare(found).left == {}


def test_what_left_returns_only_where_it_might_be_stored() -> None:
    found, spans = field({1: 30.0, 2: 30.05, 3: 31.8, 4: 32.2})
    rounds = Device(spans, 0.001, 1).compare(found)
    decision = decide(rounds.arms, rounds.samples)
    by_name = {arm.name: arm for arm in found}
    one, other, *_ = (by_name[candidate(number).short_id] for number in range(1, 5))
    assert set(rounds.left) == {candidate(number).short_id for number in (3, 4)}
    assert not may_return(rounds, decision, one)
    assert not may_return(rounds, decision, other)
    assert may_return(rounds, decision, by_name["branches+pdl"])  # both that tie were refuted
    assert may_return(rounds, decision, None)
    faster = {**rounds.samples, "branches+pdl": [30.3] * PAIRS, "branches+pdl" + AGAIN: [30.3] * PAIRS}
    assert not may_return(replace(rounds, samples=faster), decision, by_name["branches+pdl"])
    assert not may_return(replace(rounds, left={}), decision, None)
