"""Several processes search one study: a plan is measured once, a number given once, and the trials of all count."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from fake_bench import FakeBackend, failed, ok, search, small_space_file, space_of, spans, study_of
from stored_values import make_plan, make_winner
from test_search_driver import is_builtin
from waiting import LIMIT_S

from mktune.lowering.graph import lower, lowered_id
from mktune.plan import Plan
from mktune.search import Budget, TuneResult, tune
from mktune.store import Store
from mktune.trial import SHIPPED, Outcome, Status, Trial

_PROCESS = """
import json, sys
sys.path.insert(0, {tests!r})
from fake_bench import *
from waiting import LIMIT_S
space = space_of(path={space!r} and Path({space!r}))
sys.stdin.readline()
backend = FakeBackend(takes_s={takes})
with Store.open({store!r}, timeout_s=LIMIT_S) as store:
    study = store.study(
        "s", workload=WORKLOAD.name, ops=("A0", "B0"), shape=SHAPE, device=H200, backend="fake", sampler={sampler!r},
        seed=7, contract=WORKLOAD.contract, resume=True, start=True,
    )
    result = tune(space, backend, store, study, Budget({trials}))
    print(json.dumps({{
        "measured": [plan.plan_id for plan in backend.bench.measured],
        "trials": len(result.trials), "duplicate": result.duplicate, "exhausted": result.exhausted,
        "winner": result.winner.plan.plan_id,
    }}))
"""


def at_once(
    folder: Path, processes: int, trials: int, *, space: str = "", takes: float = 0.01, sampler: str = "random"
) -> list[dict[str, object]]:
    """What so many searches of one new study say, which begin in the same moment and have the same seed."""
    tests, store = str(Path(__file__).parent), str(folder / "x.db")
    code = _PROCESS.format(tests=tests, store=store, trials=trials, space=space, takes=takes, sampler=sampler)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = [subprocess.Popen([sys.executable, "-c", code], text=True, **pipes) for _ in range(processes)]
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    ended = [process.communicate(timeout=2 * LIMIT_S) for process in started]
    assert [process.returncode for process in started] == [0] * processes, [error for _, error in ended]
    return [json.loads(out) for out, _ in ended]


def stored(folder: Path) -> list[Trial]:
    with Store.open(folder / "x.db", write=False) as store:
        return store.trials(store.find_study("s"), lost=True)


@pytest.mark.parametrize("sampler", ["random", "local"])
def test_workers_of_one_seed_and_study_measure_distinct_plans(tmp_path: Path, sampler: str) -> None:
    said = at_once(tmp_path, 3, 24, sampler=sampler)
    trials = stored(tmp_path)
    assert [trial.number for trial in trials] == list(range(24))
    assert {trial.outcome.status for trial in trials} == {Status.OK}
    graph = space_of().graph
    keys = [lowered_id(trial.plan, lower(trial.plan, graph, trial.plan.shape)) for trial in trials]
    assert max(Counter(keys).values()) == 1
    assert sum(len(each["measured"]) for each in said) == 24  # and not one more on the way
    assert Counter(trial.source for trial in trials)["builtin:serial"] == 1


def test_a_small_space_is_shared_out_and_then_exhausted(tmp_path: Path) -> None:
    file = small_space_file(tmp_path)
    said = at_once(tmp_path, 2, 100, space=str(file), takes=0.03)
    measured = [plan for each in said for plan in each["measured"]]
    assert len(measured) == len(set(measured)) == len(stored(tmp_path))
    assert [each["exhausted"] for each in said] == ["every valid plan of the space was measured"] * 2


def test_the_last_process_chooses_among_the_trials_of_all(tmp_path: Path) -> None:
    """Another process has measured the fastest plan while this one searched."""
    with Store.open(tmp_path / "x.db") as store:
        other = Store.open(tmp_path / "x.db")
        made: list[Trial] = []

        def answer(plan: Plan) -> Outcome:
            if not made and not is_builtin(plan):
                study = store.find_study("s")
                fast = next(plan for _, plan in space_of() if not is_builtin(plan))
                number = other.begin_trial(study, fast, "random", key="theirs")
                made.append(Trial(number, fast, ok(1.0), "random"))
                other.add_trial(study, made[0])
            return ok(1.0) if made and plan.plan_id == made[0].plan.plan_id else ok(spans(plan))

        result = search(store, FakeBackend(answer), 8)
        other.close()
    assert len(result.trials) == 8
    assert made[0].plan in [trial.plan for trial in result.trials]
    assert result.winner is not None
    assert result.winner.plan == made[0].plan


def hanging(plan: Plan) -> Outcome:
    """Plans with 192 threads hang, but for built-in ones."""
    is_bad = dict(plan.op["A0"].config)["threads"] == 192 and not is_builtin(plan)
    return failed(Status.HANG, "no answer within 5 s") if is_bad else ok(spans(plan))


def of_status(result: TuneResult, status: Status) -> set[str]:
    return {trial.plan.plan_id for trial in result.trials if trial.outcome.status is status}


def test_a_second_search_leaves_alone_what_hung_in_the_first(tmp_path: Path) -> None:
    space = space_of(path=small_space_file(tmp_path))
    with Store.open(tmp_path / "x.db") as store:
        first = search(store, FakeBackend(hanging), 100, space=space, name="first")
        bad = of_status(first, Status.HANG)
        assert bad
        assert first.avoided == 0
        second = search(store, FakeBackend(hanging), 100, space=space, name="second")
        assert of_status(second, Status.HANG) == set()
        assert second.avoided >= len(bad)
        assert of_status(second, Status.OK) == of_status(first, Status.OK)
        assert second.exhausted == "every valid plan of the space was measured"
        third = search(store, FakeBackend(hanging), 100, space=space, name="third", retry_failed=True)
        assert of_status(third, Status.HANG) == bad
        assert third.avoided == 0


def test_a_plan_that_ships_is_left_alone_too_where_it_hung(tmp_path: Path) -> None:
    space = space_of(path=small_space_file(tmp_path))
    with Store.open(tmp_path / "x.db") as store:
        first = search(store, FakeBackend(hanging), 100, space=space, name="first")
        bad = next(trial.plan for trial in first.trials if trial.outcome.status is Status.HANG)
        fine = [trial.plan for trial in first.trials if trial.outcome.status is Status.OK]
        good = next(plan for plan in fine if not is_builtin(plan))
        for number, (plan, expected) in enumerate(((good, [SHIPPED]), (bad, []))):
            study = study_of(store, space, name=f"again {number}")
            result = tune(space, FakeBackend(hanging), store, study, Budget(12), shipped=[make_winner(plan)])
            assert [trial.source for trial in result.trials if trial.source == SHIPPED] == expected


def test_built_in_plans_are_measured_whatever_happened_to_them_before(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.db") as store:
        search(store, FakeBackend(lambda plan: ok(20.0) if not is_builtin(plan) else _slow_pdl(plan)), 6, name="first")
        second = FakeBackend()
        search(store, second, 6, name="second")
        assert [is_builtin(plan) for plan in second.bench.measured[:2]] == [True, True]


def _slow_pdl(plan: Plan) -> Outcome:
    return ok(20.0) if set(dict(plan.edges).values()) == {"full"} else failed(Status.HANG, "no answer")


def test_failed_trials_of_a_study_are_run_again_where_that_is_asked_for(tmp_path: Path) -> None:
    space = space_of(path=small_space_file(tmp_path))
    with Store.open(tmp_path / "x.db") as store:
        first = search(store, FakeBackend(hanging), 100, space=space)
        bad, total = of_status(first, Status.HANG), len(first.trials)
        plain = FakeBackend()
        assert len(search(store, plain, 100, space=space, resume=True).trials) == total
        assert plain.bench.measured == []
        again = FakeBackend()
        result = search(store, again, total, space=space, resume=True, retry_failed=True)
        assert {plan.plan_id for plan in again.bench.measured} == bad
        assert of_status(result, Status.HANG) == set()
        assert len(result.trials) == total
        study = store.find_study("s")
        assert store.trial_counts(study) == {"ok": total, "lost": len(bad)}
        assert len({trial.plan.plan_id for trial in store.trials(study)}) == total


def test_a_stopped_retry_keeps_what_it_had_not_come_to(tmp_path: Path) -> None:
    space = space_of(path=small_space_file(tmp_path))
    with Store.open(tmp_path / "x.db") as store:
        first = search(store, FakeBackend(hanging), 100, space=space)
        bad = of_status(first, Status.HANG)
        assert len(bad) > 1
        calls: list[Plan] = []

        def once(plan: Plan) -> Outcome:
            calls.append(plan)
            if len(calls) > 1:
                raise KeyboardInterrupt
            return ok(spans(plan))

        with pytest.raises(KeyboardInterrupt):
            search(store, FakeBackend(once), 100, space=space, resume=True, retry_failed=True)
    with Store.open(tmp_path / "x.db") as store:
        trials = store.trials(study_of(store, space, resume=True))
        hung = {trial.plan.plan_id for trial in trials if trial.outcome.status is Status.HANG}
        assert hung == bad - {plan.plan_id for plan in calls}
        assert len(trials) == len(first.trials) - 1


def test_what_a_dead_host_left_running_is_ended_before_a_full_study_is_promoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease has to be watched first, so that `--resume` itself cannot tell."""
    monkeypatch.setattr("mktune.store.leases.STILL_SECONDS", 0.3)
    with Store.open(tmp_path / "x.db") as store:
        search(store, FakeBackend(), 6)
        study = study_of(store, space_of(), resume=True)
        with monkeypatch.context() as patched:
            patched.setattr("mktune.store.trials.this_process", lambda: '["elsewhere", 1, "1"]')
            patched.setattr("mktune.store.leases.LEASE_SECONDS", -1.0)
            store.begin_trial(study, make_plan(), "tpe", key="a")
        store._begun.clear()
        result = search(store, FakeBackend(), 6, resume=True)
        assert result.winner is not None
        assert store.trial_counts(study) == {"ok": 6, "lost": 1}
