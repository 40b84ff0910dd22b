"""A plan that is dropped as clearly slower was measured all the same: the search learns its span."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fake_bench import FakeBackend, FakeBench, ok, search, spans

from mktune.plan import Plan
from mktune.search import Observer, Progress, TuneResult
from mktune.store import Store
from mktune.trial import Outcome, Status, Trial

TRIALS = 60
DROPPED_ABOVE = 1.03


class Dropping(FakeBench):
    """Measures what is much slower than the incumbent only until that is known."""

    def measure(self, plan: Plan, incumbent_us: float | None) -> Outcome:
        outcome = super().measure(plan, incumbent_us)
        assert outcome.measurement is not None
        slow = incumbent_us is not None and outcome.measurement.span_us > incumbent_us * DROPPED_ABOVE
        return replace(outcome, status=Status.PRUNED, reason="slower") if slow else outcome

    def alone(self, ops: Sequence[str]) -> FakeBench:
        problem = self.problem.part(ops)
        return self.parts.setdefault(problem.ops, Dropping(self.answer, problem, self.policy))


class Last(Observer):
    """Keeps the last progress."""

    progressed: Progress

    def trial(self, trial: Trial, progress: Progress) -> None:
        self.progressed = progress


def searched(folder: Path, kind: type[FakeBench], sampler: str) -> tuple[TuneResult, Progress]:
    """A study that was ended once and went on."""
    seen = Last()
    with Store.open(folder / f"{kind.__name__}.db") as store:
        for trials, resume in ((TRIALS // 2, False), (TRIALS, True)):
            backend = FakeBackend()
            backend.bench = kind(lambda plan: ok(spans(plan)))
            result = search(store, backend, trials, sampler=sampler, resume=resume, observer=seen)
    return result, seen.progressed


@pytest.mark.parametrize("sampler", ["staged", "local", "trace_guided", "tpe"])
def test_a_search_goes_the_same_way_whether_slow_plans_are_dropped_or_measured_to_the_end(
    tmp_path: Path, sampler: str
) -> None:
    whole, _ = searched(tmp_path, FakeBench, sampler)
    dropped, progress = searched(tmp_path, Dropping, sampler)
    assert [trial.plan.plan_id for trial in dropped.trials] == [trial.plan.plan_id for trial in whole.trials]
    assert sum(trial.outcome.status is Status.PRUNED for trial in dropped.trials) > TRIALS / 2
    assert progress.failed == 0
