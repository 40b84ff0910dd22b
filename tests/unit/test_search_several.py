"""One process, several GPUs: one sampler and one writer, and every bench busy on a thread of its own."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from fake_bench import FakeBackend, failed, ok, small_space_file, space_of, spans, study_of
from test_search_driver import is_builtin
from waiting import LIMIT_S

from mktune.errors import SetupError
from mktune.plan import Plan
from mktune.search import Budget, Observer, Progress, Stop, TuneResult, tune
from mktune.store import Store
from mktune.trial import BUILTIN, Outcome, Status, Trial

BUILTINS = 2
"""Built-in plans of a chain: with branches they are the same."""


def gpus(count: int, *answers: FakeBackend) -> list[FakeBackend]:
    """As many GPUs of one kind, each with a UUID."""
    made = list(answers) or [FakeBackend() for _ in range(count)]
    for place, backend in enumerate(made):
        backend.device = replace(backend.device, uuid=f"GPU-{place}")
    return made


def search_on(
    store: Store, backends: list[FakeBackend], trials: int, *, sampler: str = "random", stop: Stop | None = None
) -> TuneResult:
    space = space_of()
    study = study_of(store, space, sampler=sampler, resume=bool(store.studies()))
    return tune(space, backends[0], store, study, Budget(trials), others=backends[1:], stop=stop)


def measuring_together(count: int, rounds: int) -> list[FakeBackend]:
    """So many GPUs, each of which ends its first `rounds` trials of the search when all others do."""
    together, lock = threading.Barrier(count), threading.Lock()
    begun: Counter[int] = Counter()

    def of(place: int) -> FakeBackend:
        def answer(plan: Plan) -> Outcome:
            with lock:
                searches = len(plan.op) == BUILTINS and not is_builtin(plan)
                begun[place] += searches
                waits = searches and begun[place] <= rounds
            if waits:
                together.wait(LIMIT_S)
            return ok(spans(plan))

        return FakeBackend(answer)

    return [of(place) for place in range(count)]


@pytest.mark.parametrize("sampler", ["random", "staged", "tpe"])
def test_every_gpu_measures_and_no_plan_is_measured_twice(tmp_path: Path, sampler: str) -> None:
    backends = gpus(4, *measuring_together(4, rounds=4))
    with Store.open(tmp_path / "x.db") as store:
        result = search_on(store, backends, 40, sampler=sampler)
        trials = store.trials(store.find_study("s"), lost=True)
    assert [trial.number for trial in trials] == list(range(40))
    assert len({trial.plan.plan_id for trial in trials}) == 40
    by_gpu = Counter(trial.gpu for trial in trials)
    assert set(by_gpu) == {"GPU-0", "GPU-1", "GPU-2", "GPU-3"}
    assert min(by_gpu.values()) >= 4
    for place, backend in enumerate(backends):
        mine = {trial.plan.plan_id for trial in trials if trial.gpu == f"GPU-{place}"}
        assert mine <= {plan.plan_id for plan in backend.bench.measured}
        assert backend.bench.closed
    assert result.winner is not None
    assert [len(backend.bench.promoted) for backend in backends] == [1, 0, 0, 0]


def test_benches_measure_at_the_same_time(tmp_path: Path) -> None:
    together = threading.Barrier(3)

    def answer(plan: Plan) -> Outcome:
        if not is_builtin(plan) and threading.current_thread() is not threading.main_thread():  # which promotes
            together.wait(LIMIT_S)  # breaks, and fails the trial, unless three are measured at once
        return ok(spans(plan))

    backends = gpus(3, *(FakeBackend(answer) for _ in range(3)))
    with Store.open(tmp_path / "x.db") as store:
        result = search_on(store, backends, BUILTINS + 9)
    assert {trial.outcome.status for trial in result.trials} == {Status.OK}


def test_built_in_plans_are_judged_before_anything_else_is_measured(tmp_path: Path) -> None:
    begun: list[Plan] = []

    def answer(plan: Plan) -> Outcome:
        begun.append(plan)
        time.sleep(0.02)
        return failed(Status.WRONG_RESULT, "q differs") if is_builtin(plan) else ok(spans(plan))

    backends = gpus(4, *(FakeBackend(answer) for _ in range(4)))
    with Store.open(tmp_path / "x.db") as store, pytest.raises(Exception, match="q differs"):
        search_on(store, backends, 20)
    assert begun
    assert all(is_builtin(plan) for plan in begun)


def test_a_small_space_is_exhausted_by_all(tmp_path: Path) -> None:
    space = space_of(path=small_space_file(tmp_path))
    backends = gpus(3)
    with Store.open(tmp_path / "x.db") as store:
        study = study_of(store, space)
        result = tune(space, backends[0], store, study, Budget(500), others=backends[1:])
    assert result.exhausted == "every valid plan of the space was measured"
    assert len({trial.plan.plan_id for trial in result.trials}) == len(result.trials)


class _StopsAfter(Observer):
    """As a signal does that comes while the thread which begins and ends trials waits."""

    def __init__(self, stop: Stop, trials: int) -> None:
        self._stop, self._trials = stop, trials

    def trial(self, trial: Trial, progress: Progress) -> None:
        if progress.trials == self._trials:
            self._stop.ask()


def test_a_stopped_search_leaves_what_runs_and_keeps_what_has_ended(tmp_path: Path) -> None:
    stop, release = Stop(), threading.Event()

    def hang(plan: Plan) -> Outcome:
        if not is_builtin(plan):
            release.wait(LIMIT_S)
        return ok(spans(plan))

    backends = gpus(3, FakeBackend(hang), FakeBackend(), FakeBackend())
    with Store.open(tmp_path / "x.db") as store:
        study = study_of(store, space_of())
        watch = _StopsAfter(stop, 8)
        result = tune(
            space_of(), backends[0], store, study, Budget(1000), others=backends[1:], stop=stop, observer=watch
        )
        assert (result.stopped, result.winner) == ("SIGINT", None)
        assert len(result.trials) == len(store.trials(study)) >= 8
        assert len(store.running(study)) >= 1  # and not because its time was over
    release.set()
    with Store.open(tmp_path / "x.db") as store:
        counts = store.trial_counts(study)
        assert counts["ok"] >= 8
        assert "running" not in counts
        assert counts["lost"] >= 1


def test_a_gpu_that_cannot_be_used_ends_the_search_with_its_reason(tmp_path: Path) -> None:
    def broken(plan: Plan) -> Outcome:
        raise SetupError("the GPU fell off the bus")

    backends = gpus(2, FakeBackend(), FakeBackend(broken))
    with Store.open(tmp_path / "x.db") as store, pytest.raises(SetupError, match="fell off"):
        search_on(store, backends, 20)
    with Store.open(tmp_path / "x.db") as store:
        assert store.running(store.find_study("s")) == []


def test_built_in_trials_come_first(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.db") as store:
        result = search_on(store, gpus(4), 20)
    sources = [trial.source.startswith(BUILTIN) for trial in result.trials]
    assert sources == sorted(sources, reverse=True)
