"""Trials: whole or not at all, kept through a kill, and what a killed process leaves behind is lost, not running."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from stored_values import make_measurement, make_plan, make_study, make_trial

from mktune.errors import InputError, StoreError
from mktune.store import PlanTaken, Store, StudyFull
from mktune.store import owner as owners
from mktune.store.texts import REASON_LIMIT
from mktune.trial import Outcome, Status, Trial


def test_a_trial_reads_back_as_it_was_stored(tmp_path: Path) -> None:
    trial = make_trial(0)
    with Store.open(tmp_path / "x.db") as store:
        study = make_study(store)
        store.add_trial(study, trial)
    with Store.open(tmp_path / "x.db", write=False) as store:
        assert store.trials(study) == [trial]


@pytest.mark.parametrize("status", [status for status in Status if status not in (Status.OK, Status.LOST)])
def test_every_failure_is_kept_with_its_reason(tmp_path: Path, status: Status) -> None:
    trial = replace(make_trial(0), outcome=Outcome(status, "why it failed"))
    with Store.open(tmp_path / "x.db") as store:
        study = make_study(store)
        store.add_trial(study, trial)
        assert store.trials(study) == [trial]
        assert store.trial_counts(study) == {status.value: 1}


def test_begun_trials_run_until_they_end(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.db") as store:
        study = make_study(store)
        assert [store.begin_trial(study, make_plan(stages=i), "tpe") for i in range(2)] == [0, 1]
        assert [running.number for running in store.running(study)] == [0, 1]
        assert store.trials(study) == []
        store.add_trial(study, make_trial(1))
        assert [running.number for running in store.running(study)] == [0]
        assert store.begin_trial(study, make_plan(), "random") == 2
        assert store.trial_counts(study) == {"running": 2, "ok": 1}


def test_a_number_ends_once(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.db") as store:
        study = make_study(store)
        store.add_trial(study, make_trial(0))
        with pytest.raises(StoreError, match="ended already"):
            store.add_trial(study, make_trial(0, span_us=1.0))
        assert store.trials(study)[0].outcome.measurement == make_measurement(10.0)


def test_closing_ends_what_was_begun_as_lost(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.db") as store:
        study = make_study(store)
        store.begin_trial(study, make_plan(), "tpe")
    with Store.open(tmp_path / "x.db") as store:
        assert store.running(study) == []
        assert store.trials(study) == []
        (lost,) = store.trials(study, lost=True)
        assert lost.outcome.status is Status.LOST
        store.add_trial(study, make_trial(0))  # its number is free again
        assert store.trial_counts(study) == {"ok": 1}


_WORKER = """
import sys
sys.path.insert(0, {tests!r})
from stored_values import *
store = Store.open({path!r})
study = make_study(store)
for number in range(5):
    assert store.begin_trial(study, make_plan(stages=number), "tpe") == number
    store.add_trial(study, make_trial(number))
store.begin_trial(study, make_plan(stages=9), "tpe")
print("running", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_kill_loses_no_trial_and_resume_finds_the_one_that_ran(tmp_path: Path, number: signal.Signals) -> None:
    code = _WORKER.format(tests=str(Path(__file__).parent), path=str(tmp_path / "x.db"))
    worker = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "running\n"
    with Store.open(tmp_path / "x.db") as store:
        make_study(store, resume=True)
        assert len(store.running(store.find_study("s"))) == 1  # its owner is alive: not touched
    worker.send_signal(number)
    worker.communicate()
    with Store.open(tmp_path / "x.db") as store:
        study = make_study(store, resume=True)
        assert store.running(study) == []
        assert [trial.number for trial in store.trials(study)] == [0, 1, 2, 3, 4]
        assert store.trial_counts(study) == {"ok": 5, "lost": 1}
        assert store.begin_trial(study, make_plan(), "tpe") == 6


def test_another_processes_trial_cannot_be_ended_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(tmp_path / "x.db") as store:
        study = make_study(store)
        monkeypatch.setattr("mktune.store.trials.this_process", lambda: '["elsewhere", 1, "1"]')
        store.begin_trial(study, make_plan(stages=0), "tpe")
        monkeypatch.undo()
        with pytest.raises(StoreError, match="another process"):
            store.add_trial(study, make_trial(0))


def test_who_is_gone() -> None:
    here = owners.this_process()
    assert not owners.is_gone(here)
    host, pid, birth = json.loads(here)
    dump = json.dumps
    assert owners.is_gone(dump([host, pid, "1"]))  # the number was used again
    assert owners.is_gone(dump([host, 2**22 + 1, birth]))
    assert not owners.is_gone(dump(["elsewhere", pid, birth]))
    assert owners.is_gone("nonsense")
    assert pid == os.getpid()


def test_a_huge_odd_log_is_cut_with_a_mark_and_the_trial_is_kept(tmp_path: Path) -> None:
    log = ("error: \0 " + b"\xff\xfe".decode("utf-8", "surrogateescape") + "x" * 100) * 2000
    trial = replace(make_trial(0), outcome=Outcome(Status.COMPILE_ERROR, log))
    with Store.open(tmp_path / "x.db") as store:
        study = make_study(store)
        store.add_trial(study, trial)
        (found,) = store.trials(study)
    assert found.outcome.status is Status.COMPILE_ERROR
    assert found.outcome.reason.startswith("error: \N{REPLACEMENT CHARACTER} ??x")
    assert f"[cut, {len(log) - REASON_LIMIT} more characters]" in found.outcome.reason


@pytest.mark.parametrize("span", [math.nan, math.inf, 0.0, -1.0])
def test_ok_needs_a_real_span(tmp_path: Path, span: float) -> None:
    with Store.open(tmp_path / "x.db") as store:
        study = make_study(store)
        with pytest.raises(InputError, match="finite, positive"):
            store.add_trial(study, make_trial(0, span_us=span))
        with pytest.raises(InputError, match="finite, positive"):
            store.add_trial(study, replace(make_trial(0), outcome=Outcome(Status.OK)))
        assert store.trials(study) == []
        assert store.running(study) == []


def test_a_failed_trial_with_an_infinite_span_has_none_when_read(tmp_path: Path) -> None:
    outcome = Outcome(Status.NOISY, "no result", make_measurement(math.inf))
    with Store.open(tmp_path / "x.db") as store:
        study = make_study(store)
        store.add_trial(study, Trial(0, make_plan(), outcome, "tpe"))
        (found,) = store.trials(study)
        assert store.leaderboard() == []
    assert found.outcome == Outcome(Status.NOISY, "no result")


def test_a_failure_in_the_middle_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(tmp_path / "x.db") as store:
        study = make_study(store)
        number = store.begin_trial(study, make_plan(stages=0), "tpe")

        def fail(_: object) -> dict[str, object]:
            raise KeyboardInterrupt

        monkeypatch.setattr("mktune.store.trials._measurement_columns", fail)
        with pytest.raises(KeyboardInterrupt):
            store.add_trial(study, make_trial(number))
        monkeypatch.undo()
        assert [running.number for running in store.running(study)] == [number]
        store.add_trial(study, make_trial(number))
        assert store.trials(study) == [make_trial(number)]


def test_a_plan_is_reserved_by_the_trial_that_began_it_for_the_whole_study(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.db") as store, Store.open(tmp_path / "x.db") as other:
        study, unlike = make_study(store), make_study(store, "t")
        assert store.begin_trial(study, make_plan(stages=0), "tpe", key="a") == 0
        with pytest.raises(PlanTaken, match="trial 0"):
            other.begin_trial(study, make_plan(stages=1), "tpe", key="a")
        assert other.begin_trial(study, make_plan(stages=1), "tpe", key="b") == 1
        assert other.begin_trial(unlike, make_plan(stages=1), "tpe", key="b") == 0
        store.add_trial(study, make_trial(0))
        with pytest.raises(PlanTaken):  # ended trials keep it as well
            other.begin_trial(study, make_plan(stages=0), "tpe", key="a")
        assert store.trial_counts(study) == {"ok": 1, "running": 1}


def test_what_a_dead_process_reserved_is_free_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(tmp_path / "x.db") as store:
        study = make_study(store)
        store.begin_trial(study, make_plan(), "tpe", key="interrupted")
    with Store.open(tmp_path / "x.db") as store:
        with monkeypatch.context() as patched:
            host = json.loads(owners.this_process())[0]
            patched.setattr("mktune.store.trials.this_process", lambda: json.dumps([host, 2**22 + 1, "1"]))
            store.begin_trial(study, make_plan(), "tpe", key="killed")
        make_study(store, resume=True)
        assert store.trial_counts(study) == {"lost": 2}
        assert [store.begin_trial(study, make_plan(), "tpe", key=key) for key in ("killed", "interrupted")] == [2, 3]


def test_a_study_has_no_more_trials_than_it_may(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.db") as store:
        study = make_study(store)
        store.begin_trial(study, make_plan(stages=0), "tpe", limit=2)
        store.close()
    with Store.open(tmp_path / "x.db") as store:
        for number in (1, 2):  # number 0 was lost and does not count
            assert store.begin_trial(study, make_plan(stages=number), "tpe", limit=2) == number
        with pytest.raises(StudyFull):
            store.begin_trial(study, make_plan(stages=3), "tpe", limit=2)
        assert store.trial_counts(study) == {"lost": 1, "running": 2}


def test_a_trial_that_is_run_again_gives_its_plan_up_and_says_how_it_had_ended(tmp_path: Path) -> None:
    hung = replace(make_trial(0), outcome=Outcome(Status.HANG, "no answer within 5 s"))
    with Store.open(tmp_path / "x.db") as store:
        study = make_study(store)
        store.begin_trial(study, make_plan(stages=0), "tpe", key="a")
        with pytest.raises(PlanTaken):  # it runs: it cannot be run again
            store.begin_trial(study, make_plan(stages=0), "tpe", key="a", replaces=0)
        store.add_trial(study, hung)
        assert store.begin_trial(study, make_plan(stages=0), "tpe", key="a", limit=1, replaces=0) == 1
        store.add_trial(study, make_trial(1, make_plan(stages=0)))
        assert [trial.number for trial in store.trials(study)] == [1]
        old, _ = store.trials(study, lost=True)
        assert (old.outcome.status, old.outcome.reason) == (
            Status.LOST,
            "run again; it had ended as hang: no answer within 5 s",
        )


def test_plans_that_failed_in_other_studies_of_the_same_problem(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.db") as store:
        one, two = make_study(store, "one"), make_study(store, "two")
        for number, status in enumerate((Status.HANG, Status.CRASH, Status.NOISY, Status.HANG)):
            plan = make_plan(stages=number % 3)
            store.add_trial(one, Trial(number, plan, Outcome(status, "why"), "tpe"))
        statuses = (Status.HANG, Status.CRASH)
        found = {plan.plan_id for plan in store.failed_elsewhere(two, statuses)}
        assert found == {make_plan(stages=0).plan_id, make_plan(stages=1).plan_id}
        assert store.failed_elsewhere(one, statuses) == []
        rebuilt = replace(two, problem=replace(two.problem, build="another"))
        assert store.failed_elsewhere(rebuilt, statuses) == []
        assert store.failed_elsewhere(replace(two, problem=replace(two.problem, backend="sim")), statuses) == []
