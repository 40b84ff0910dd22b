"""`mktune export --optuna`: Optuna itself opens what was written, and finds every trial, its choices and its span."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from command_line import run
from stored_values import WORKLOAD, make_plan, make_study, make_trial

from mktune.plan import Plan
from mktune.search.optuna_export import MARK, fields
from mktune.store import Store
from mktune.trial import Outcome, Status

STATES = optuna.trial.TrialState


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store with a study of three spans, a pruned, a failed and a lost trial, and a study that has none."""
    path = str(tmp_path / "x.db")
    with Store.open(path) as opened:
        study = make_study(opened, "a study")
        for number, span in enumerate((12.0, 10.0, 11.0)):
            opened.add_trial(study, replace(make_trial(number, span_us=span), gpu=f"GPU-{number % 2}"))
        opened.add_trial(study, replace(make_trial(3), outcome=Outcome(Status.PRUNED, "20 µs, clearly slower")))
        opened.add_trial(study, replace(make_trial(4), outcome=Outcome(Status.HANG, "no answer within 5 s")))
        opened.begin_trial(study, make_plan(stages=9), "tpe")
        make_study(opened, "empty")
    return path


def test_optuna_loads_every_trial(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'a b 100%#.db'}"
    out, err = run(capsys, "export", "--optuna", url, "--store", store, "--json")
    assert err == ""
    assert json.loads(out) == {"optuna": url, "studies": ["a study"], "trials": 5}
    (name,) = optuna.get_all_study_names(url)
    loaded = optuna.load_study(study_name=name, storage=url)
    assert [trial.state for trial in loaded.trials] == [STATES.COMPLETE] * 3 + [STATES.PRUNED, STATES.FAIL]
    assert [trial.value for trial in loaded.trials] == [12.0, 10.0, 11.0, None, None]
    assert (loaded.best_value, loaded.best_params) == (10.0, {"B0.stages": 1})
    assert [trial.params["B0.stages"] for trial in loaded.trials] == [0, 1, 2, 3, 4]
    assert loaded.trials[1].user_attrs["plan"] == make_plan(stages=1).plan_id
    assert [trial.user_attrs.get("gpu") for trial in loaded.trials] == ["GPU-0", "GPU-1", "GPU-0", None, None]
    assert loaded.trials[4].user_attrs["reason"] == "no answer within 5 s"
    assert loaded.trials[0].duration is not None
    assert loaded.user_attrs["GPU"] == "NVIDIA H200"
    assert (loaded.user_attrs["M"], loaded.user_attrs["KV"]) == (16, 8192)


def test_writing_again_replaces_and_adds_new_choices(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'o.db'}"
    run(capsys, "export", "--optuna", url, "--store", store)
    with Store.open(store) as opened:
        opened.add_trial(opened.find_study("a study"), make_trial(20, make_plan(stages=20), 9.0))
    out, _ = run(capsys, "export", WORKLOAD, "--optuna", url, "--study", "a study", "--store", store)
    assert out.startswith("1 study, 6 trials written for optuna-dashboard")
    loaded = optuna.load_study(study_name="a study", storage=url)
    assert len(loaded.trials) == 6
    assert loaded.best_params == {"B0.stages": 20}


def test_a_study_of_somebody_else_is_left_alone(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'o.db'}"
    theirs = optuna.create_study(storage=url, study_name="a study")
    theirs.add_trial(optuna.trial.create_trial(value=1.0))
    _, err = run(capsys, "export", "--optuna", url, "--store", store, code=2)
    assert "mktune did not write it" in err
    loaded = optuna.load_study(study_name="a study", storage=url)
    assert [trial.value for trial in loaded.trials] == [1.0]
    assert MARK not in loaded.user_attrs


def test_a_searched_study_on_a_server_beside_the_store_itself(
    postgres: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both in one database: neither's tables are in the other's way."""
    shape = ["--ops", "A0,B0", "--m", "16", "--kv", "8192", "--backend", "sim", "--trials", "20"]
    run(capsys, "tune", WORKLOAD, *shape, "--store", postgres, "--study", "s", "--sampler", "random")
    run(capsys, "export", "--optuna", postgres, "--study", "s", "--store", postgres)
    url = postgres.replace("postgresql://", "postgresql+psycopg://")
    loaded = optuna.load_study(study_name="s", storage=url)
    with Store.open(postgres, write=False) as opened:
        trials = opened.trials(opened.find_study("s"))
    assert Counter(trial.state for trial in loaded.trials) == {STATES.COMPLETE: 20}
    spans = {trial.plan.plan_id: trial.outcome.measurement.span_us for trial in trials if trial.outcome.measurement}
    assert {trial.user_attrs["plan"]: trial.value for trial in loaded.trials} == spans
    best = min(trials, key=lambda trial: spans[trial.plan.plan_id])
    assert loaded.best_params.items() <= fields(best.plan).items()


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--optuna", "mysql://x/y"], 2, "a store is"),
        (["--optuna", "o.db", "--out", "x.json"], 2, "do not go with it"),
        (["--study", "a study"], 2, "--study goes with --optuna"),
        (["--optuna", "o.db", "--study", "nope"], 2, "no study 'nope'"),
        (["--optuna", "o.db", "--study", "empty"], 5, "no study to export"),
        (["--optuna", "postgresql://127.0.0.1:1/nope"], 4, "check the server and the URL"),
        (["--optuna", "what?.db"], 2, "question mark"),
    ],
)
def test_what_cannot_be_written_is_one_line(
    args: list[str],
    code: int,
    words: str,
    store: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    _, err = run(capsys, "export", *args, "--store", store, code=code)
    assert words in err
    assert len(err.splitlines()) == 1


def test_fields_name_every_choice_of_a_plan() -> None:
    plan: Plan = make_plan()
    named = fields(plan)
    assert (named["A0.threads"], named["B0.impl"], named["A0->B0p"], named["B0f.gdc"]) == (
        192,
        "wgmma",
        "programmatic",
        "entry",
    )
