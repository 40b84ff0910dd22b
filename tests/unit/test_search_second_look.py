"""A plan that seems to be the best is measured once more: luck does not decide, and no other plan costs more for it."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from statistics import mean

import pytest
from fake_bench import Answer, FakeBackend, failed, ok, search, spans
from test_search_driver import is_builtin

from mktune.plan import Plan
from mktune.store import Store
from mktune.trial import Outcome, Status

TRIALS = 60


def differing(answer: Answer) -> FakeBackend:
    """A back end whose plans, built again, may be faster or slower."""
    backend = FakeBackend(answer)
    backend.bench.builds_differ = True
    return backend


def test_only_what_beats_the_best_so_far_is_measured_twice(tmp_path: Path) -> None:
    backend = differing(lambda plan: ok(spans(plan)))
    with Store.open(tmp_path / "x.db") as store:
        result = search(store, backend, TRIALS)
    times = Counter(plan.plan_id for plan in backend.bench.measured)
    best = float("inf")
    for trial in result.trials:
        span = spans(trial.plan)
        expected = 2 if span < best and not is_builtin(trial.plan) else 1
        assert times[trial.plan.plan_id] == expected, trial.number
        best = min(best, span)
    assert set(times.values()) == {1, 2}


@pytest.mark.parametrize("seed", range(5))
def test_the_best_of_many_equal_plans_is_not_taken_for_what_one_lucky_build_gave(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    drawn: list[float] = []

    def answer(plan: Plan) -> Outcome:
        drawn.append(draw.gauss(100.0, 1.0))
        return ok(drawn[-1])

    with Store.open(tmp_path / "x.db") as store:
        backend = differing(answer)
        result = search(store, backend, TRIALS)
    looks = drawn[: len(backend.bench.measured)]  # the others are promotion's
    found = [trial.outcome.measurement.span_us for trial in result.trials if trial.outcome.measurement]
    assert len(found) == TRIALS
    lucky, best = 100.0 - min(looks), 100.0 - min(found)
    assert best < 0.85 * lucky
    assert TRIALS < len(looks) < 1.35 * TRIALS
    assert 99.0 < mean(found) < 101.0


@pytest.mark.parametrize("status", [Status.HANG, Status.WRONG_RESULT, Status.NOISY])
def test_a_plan_that_fails_at_the_second_look_has_failed(tmp_path: Path, status: Status) -> None:
    seen: set[str] = set()

    def answer(plan: Plan) -> Outcome:
        if is_builtin(plan):
            return ok(100.0)
        again = plan.plan_id in seen
        seen.add(plan.plan_id)
        return failed(status, "the second time") if again else ok(50.0)

    with Store.open(tmp_path / "x.db") as store:
        result = search(store, differing(answer), 12)
    others = [trial.outcome for trial in result.trials if not is_builtin(trial.plan)]
    assert {(outcome.status, outcome.reason) for outcome in others} == {(status, "the second time")}
    assert result.winner is not None
    assert is_builtin(result.winner.plan)


def test_the_slower_time_counts_and_both_looks_are_in_the_trials_seconds(tmp_path: Path) -> None:
    times: Counter[str] = Counter()

    def answer(plan: Plan) -> Outcome:
        if is_builtin(plan):
            return ok(100.0)
        times[plan.plan_id] += 1
        made = ok(50.0 if times[plan.plan_id] == 1 else 60.0 if plan.plan_id > "8" else 40.0)
        return Outcome(made.status, made.reason, made.measurement, (("build", 1.0), ("total", 2.0)))

    with Store.open(tmp_path / "x.db") as store:
        result = search(store, differing(answer), 5)
    first = next(trial for trial in result.trials if not is_builtin(trial.plan))
    assert first.outcome.measurement is not None
    assert first.outcome.measurement.span_us == (60.0 if first.plan.plan_id > "8" else 50.0)
    assert dict(first.outcome.seconds) == {"build": 2.0, "total": 4.0}


def test_where_builds_do_not_differ_nothing_is_measured_twice(tmp_path: Path) -> None:
    backend = FakeBackend()
    with Store.open(tmp_path / "x.db") as store:
        search(store, backend, TRIALS)
    assert max(Counter(plan.plan_id for plan in backend.bench.measured).values()) == 1
