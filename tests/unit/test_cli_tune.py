"""`mktune tune` as people run it: grids, wrong input before any work, signals, logs, resuming."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from fake_bench import small_space_file
from rich.console import Console
from rich.progress import Progress as Bar
from waiting import LIMIT_S

from mktune.backends.sim import SimBackend, SimBench
from mktune.cli.progress import BarObserver
from mktune.errors import NothingFoundError
from mktune.graph.builtin import builtin_plans
from mktune.graph.workload import workload
from mktune.plan import Plan
from mktune.search import Progress
from mktune.shape import Shape
from mktune.store import Store
from mktune.trial import Measurement, Outcome, Policy, Status, Trial

pytestmark = pytest.mark.usefixtures("no_gpu")

WORKLOAD = "glm52_attention_prefix"
SIM = ["tune", WORKLOAD, "--ops", "A0,B0", "--backend", "sim", "--sampler", "random"]


def test_grid_stores_a_winner_for_each_cell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = str(tmp_path / "x.db")
    out, err = run(capsys, *SIM, "--m", "1,16", "--kv", "4096,8192", "--trials", "6", "--store", url, "--json")
    document: dict[str, Any] = json.loads(out)
    assert document["simulated"]
    cells = [(cell["m"], cell["kv"]) for cell in document["cells"]]
    assert cells == [(1, 4096), (1, 8192), (16, 4096), (16, 8192)]
    assert all(cell["trials"] == 6 and cell["stored"] for cell in document["cells"])
    lines = [line for line in err.splitlines() if "without impl" not in line]
    assert len(lines) == 4 * 6
    assert all("simulated" in line for line in lines)
    with Store.open(url, write=False) as store:
        winners = store.winners()
        assert {winner.plan.plan_id for winner in winners} == {cell["winner"]["plan_id"] for cell in document["cells"]}
        assert len(winners) == 4
        assert all(winner.measurement.policy.simulated for winner in winners)
    for cell in document["cells"]:
        question = ["--m", str(cell["m"]), "--kv", str(cell["kv"]), "--gpu", "h200", "--allow-simulated"]
        out, _ = run(capsys, "lookup", WORKLOAD, *question, "--store", url, "--json")
        assert json.loads(out)["plan_id"] == cell["winner"]["plan_id"]


def test_table_names_winners_and_says_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, *SIM, "--m", "16", "--kv", "8192", "--trials", "6", "--store", str(tmp_path / "x.db"))
    heading, row = out.splitlines()[-3], out.splitlines()[-1]
    assert "(simulated)" in heading
    assert re.match(r"16  8192 +[0-9.]+ +[0-9.]+ +[0-9.]+ %  simulated  [0-9a-f]{12}  ", row)


@pytest.mark.parametrize("asked", [True, False])
def test_promotion_is_told_where_bits_must_repeat(
    asked: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a cell that then has no winner the others are searched all the same."""
    told = []

    def none_found(*args: Any, deterministic: bool, **how: Any) -> Any:
        told.append(deterministic)
        raise NothingFoundError("no plan has bits that repeat")

    monkeypatch.setattr(SimBackend, "simulated", False)
    monkeypatch.setattr("mktune.search.tune", none_found)
    more = ["--deterministic"] if asked else []
    where = ["--m", "16", "--kv", "4096,8192", "--store", str(tmp_path / "x.db")]
    _, err = run(capsys, *SIM, *where, *more, code=5)
    assert told == [asked, asked]
    assert err.count("no plan has bits that repeat") == 2


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["tune", "nope", "--m", "1", "--kv", "8"], "unknown workload 'nope'"),
        (["tune", WORKLOAD, "--ops", "A0,Z9", "--m", "1", "--kv", "8"], "unknown op 'Z9'"),
        (["tune", WORKLOAD, "--ops", "A0,E1", "--m", "1", "--kv", "8"], "connected"),
        (["tune", WORKLOAD, "--ops", "", "--m", "1", "--kv", "8"], "--ops"),
        ([*SIM, "--m", "0", "--kv", "8"], "M = 0"),
        ([*SIM, "--m", "257", "--kv", "8"], "M = 257"),
        ([*SIM, "--m", "1,,2", "--kv", "8"], "--m"),
        ([*SIM, "--m", "1.5", "--kv", "8"], "--m"),
        ([*SIM, "--m", "1", "--kv", "0"], "kv"),
        ([*SIM, "--m", "1", "--kv", "131073"], "KV = 131073"),
        ([*SIM, "--m", "16", "--kv", "8192", "--tokens-per-request", "3"], "must divide"),
        ([*SIM, "--m", "16", "--kv", "8192", "--sampler", "magic"], "unknown sampler 'magic'"),
        ([*SIM, "--m", "16", "--kv", "8192", "--sim-gpu", "h900"], "h900"),
        ([*SIM, "--m", "16", "--kv", "8192", "--backend", "rocm"], "rocm"),
        ([*SIM, "--m", "16", "--kv", "8192", "--trials", "0"], "--trials"),
        ([*SIM, "--m", "16", "--kv", "8192", "--seconds", "nan"], "seconds"),
        ([*SIM, "--m", "16", "--kv", "8192", "--space", "/nowhere/x.yaml"], "/nowhere/x.yaml"),
        ([*SIM, "--m", "16", "--kv", "8192", "--deterministic"], "a model has none"),
        ([*SIM, "--m", "16"], "--kv"),
    ],
    ids=lambda value: " ".join(value[-4:]) if isinstance(value, list) else "",
)
def test_wrong_input_is_one_line_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], args: list[str], words: str
) -> None:
    url = tmp_path / "x.db"
    out, err = run(capsys, *args, "--store", str(url), code=2)
    assert out == ""
    assert words in err
    assert err.count("\n") == 1
    assert not url.exists()


def test_malformed_space_names_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = tmp_path / "space.yaml"
    for text in (
        "format: 1\nworkload: [",
        "format: 1\nworkload: other\n",
        "!!python/object/apply:os.system ['true']\n",
    ):
        space.write_text(text)
        _, err = run(capsys, *SIM, "--m", "16", "--kv", "8192", "--space", str(space), code=2)
        assert re.search(rf"{re.escape(str(space))}:[0-9]+", err)
        assert err.count("\n") == 1


def test_a_space_without_a_valid_plan_ends_before_anything_is_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = small_space_file(tmp_path).read_text()
    for old, new in (("block_m: [16]", "block_m: [128]"), ("block_n: [64, 128]", "block_n: [128]")):
        text = text.replace(old, new)
    (tmp_path / "none.yaml").write_text(text.replace("stages: [6]", "stages: [12]"))  # no SM has such shared memory
    monkeypatch.setattr("mktune.backends.sim.SimBackend.open", lambda *args: pytest.fail("the device was asked for"))
    store = tmp_path / "x.db"
    out, err = run(
        capsys, *SIM, "--m", "16", "--kv", "8192", "--space", str(tmp_path / "none.yaml"), "--store", str(store), code=2
    )
    assert out == ""
    assert "no plan of the search space of A0,B0 is valid" in err
    assert err.count("\n") == 1
    assert not store.exists()


def test_an_exhausted_space_is_a_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question = [*SIM, "--m", "16", "--kv", "8192", "--space", str(small_space_file(tmp_path)), "--trials", "500"]
    out, _ = run(capsys, *question, "--store", str(tmp_path / "x.db"), "--json", code=0)
    (cell,) = json.loads(out)["cells"]
    assert cell["exhausted"] == "every valid plan of the space was measured"
    assert cell["trials"] < 500
    assert cell["stored"]


def test_failed_trials_are_run_again_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    question = [*SIM, "--m", "16", "--kv", "8192", "--store", str(tmp_path / "x.db"), "--study", "s", "--json"]
    measure = SimBench.measure

    def hang(bench: SimBench, plan: Plan, incumbent: float | None) -> Outcome:
        good = incumbent is None or dict(plan.op["A0"].config)["threads"] != 192
        return measure(bench, plan, incumbent) if good else Outcome(Status.HANG, "no answer")

    with monkeypatch.context() as patched:
        patched.setattr(SimBench, "measure", hang)
        out, _ = run(capsys, *question, "--trials", "12")
    (cell,) = json.loads(out)["cells"]
    assert cell["statuses"]["hang"] > 0
    out, _ = run(capsys, *question, "--trials", "12", "--resume")
    assert json.loads(out)["cells"][0]["statuses"] == cell["statuses"]
    out, _ = run(capsys, *question, "--trials", "12", "--resume", "--retry-failed")
    assert json.loads(out)["cells"][0]["statuses"] == {"ok": 12}


def test_unwritable_store_is_wrong_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question = [*SIM, "--m", "16", "--kv", "8192", "--trials", "2"]
    _, err = run(capsys, *question, "--store", "/proc/nothing/x.db", code=2)
    assert "--store" in err
    assert err.count("\n") == 1
    run(capsys, *question, "--store", str(tmp_path), code=2)
    run(capsys, *question, "--store", "mysql://x/y", code=2)


def test_cuda_without_a_gpu_says_how_to_simulate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question = ["tune", WORKLOAD, "--ops", "A0,B0", "--m", "16", "--kv", "8192", "--trials", "2"]
    url = tmp_path / "x.db"
    _, err = run(capsys, *question, "--backend", "cuda", "--store", str(url), code=3)
    assert "--backend sim" in err
    assert err.count("\n") == 1
    assert not url.exists()
    _, err = run(capsys, *question, "--store", str(url))
    assert err.startswith("mktune: no GPU here: simulating NVIDIA H200")


@pytest.mark.parametrize("name", ["x'; DROP TABLE plans;--", "a/../../b", "-rf", "🚀 [bold]x[/bold]", "", "n" * 10_000])
def test_odd_study_names(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    url = str(tmp_path / "x.db")
    refused = not name or len(name) > 200
    question = [*SIM, "--m", "16", "--kv", "8192", "--trials", "3", "--store", url, f"--study={name}"]
    out, err = run(capsys, *question, code=2 if refused else 0)
    if refused:
        assert err.count("\n") == 1
        assert "name" in err
    else:
        assert f"study {name}" in out
    with Store.open(url) as store:
        assert [study.name for study in store.studies()] == ([] if refused else [name])
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"x.db"}


def test_taken_name_is_refused_and_made_names_are_numbered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question = [*SIM, "--m", "16", "--kv", "8192", "--store", str(tmp_path / "x.db"), "--trials"]
    run(capsys, *question, "3", "--study", "s")
    _, err = run(capsys, *question, "3", "--study", "s", code=2)
    assert "--resume" in err
    out, _ = run(capsys, *question, "5", "--study", "s", "--resume", "--json")
    assert json.loads(out)["cells"][0]["resumed"] == 3
    assert json.loads(out)["cells"][0]["trials"] == 5
    made = [json.loads(run(capsys, *question, "3", "--json")[0])["cells"][0]["study"] for _ in range(2)]
    assert made[1] == f"{made[0]} #2"
    _, err = run(capsys, *question, "3")
    (said,) = [line for line in err.splitlines() if "--resume" in line]
    assert said == f"mktune: this search is a new study, {made[0]} #3; --resume goes on with {made[1]}"
    with Store.open(tmp_path / "x.db") as store:
        assert [study.name for study in store.studies()] == ["s", *made, f"{made[0]} #3"]
    out, err = run(capsys, *question, "4", "--resume", "--json")
    assert "new study" not in err
    made[1] = f"{made[0]} #3"
    assert json.loads(out)["cells"][0]["study"] == made[1]
    assert json.loads(out)["cells"][0]["resumed"] == 3


def test_a_study_goes_on_with_its_own_sampler_and_seed_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    question = [*SIM, "--m", "16", "--kv", "8192", "--store", str(tmp_path / "x.db"), "--study", "s"]
    run(capsys, *question, "--trials", "3", "--sampler", "random", "--seed", "4")
    said = "mktune: study s goes on with its own sampler, random, and seed, 4\n"
    for options in (["--sampler", "random", "--seed", "5"], ["--sampler", "staged", "--seed", "4"]):
        _, err = run(capsys, *question, "--trials", "5", "--resume", *options)
        assert said in err
    _, err = run(capsys, *question, "--trials", "6", "--resume", "--sampler", "random", "--seed", "4")
    assert said not in err
    with Store.open(tmp_path / "x.db") as store:
        assert {trial.source for trial in store.trials(store.find_study("s"))[4:]} == {"random"}


def test_where_nothing_was_measured_no_time_of_a_trial_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    question = [*SIM, "--m", "16", "--kv", "8192", "--store", str(tmp_path / "x.db"), "--study", "s", "--trials", "3"]
    assert "per trial" in run(capsys, *question)[0]
    assert "per trial" not in run(capsys, *question, "--resume")[0]


@pytest.mark.parametrize(("option", "number"), [("--kv", "9999999999"), ("--m", "99999999999")])
def test_a_number_that_is_too_large_is_out_of_range(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, number: str
) -> None:
    question = {"--m": "16", "--kv": "8192", "--store": str(tmp_path / "x.db")} | {option: number}
    _, err = run(capsys, *SIM, *(word for pair in question.items() for word in pair), code=2)
    assert f"{option.removeprefix('--').upper()} = {number} is out of range" in err


def environment(tmp_path: Path) -> dict[str, str]:
    return os.environ | {"MKTUNE_STORE": str(tmp_path / "x.db"), "CI": "1", "NO_COLOR": "1", "TERM": "dumb"}


def test_log_has_no_escape_and_a_line_per_trial(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mktune", *SIM, "--m", "16", "--kv", "8192", "--trials", "20"]
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment(tmp_path), timeout=LIMIT_S
    )
    assert result.returncode == 0, result.stdout
    assert b"\x1b" not in result.stdout
    assert b"\r" not in result.stdout
    lines = result.stdout.decode().splitlines()
    assert sum("trial " in line for line in lines) == 20
    assert len(lines) <= 20 + 8


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_interrupted_study_keeps_its_trials_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals, code: int
) -> None:
    question = [*SIM, "--m", "16", "--kv", "8192", "--study", "s"]
    command = [sys.executable, "-m", "mktune", *question, "--trials", "100000"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(tmp_path))
    assert child.stderr is not None
    for _ in range(5):
        assert b"trial" in child.stderr.readline()
    child.send_signal(number)
    out, err = child.communicate(timeout=LIMIT_S)
    assert child.returncode == code
    if code > 0:
        assert f"stopped by {number.name}, no winner stored yet: go on with --resume" in out.decode()
    assert b"Traceback" not in err
    url = str(tmp_path / "x.db")
    with Store.open(url) as store:
        kept = len(store.trials(store.find_study("s")))
    assert kept >= 5
    out, _ = run(capsys, *question, "--trials", str(kept + 3), "--resume", "--store", url, "--json")
    cell = json.loads(out)["cells"][0]
    assert (cell["resumed"], cell["trials"]) == (kept, kept + 3)
    assert cell["stored"]


def test_resuming_a_study_that_has_all_its_trials_says_what_trials_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    question = [*SIM, "--m", "16", "--kv", "8192", "--study", "s", "--store", str(tmp_path / "x.db"), "--resume"]
    words = "already has 5 trials; --trials counts the whole study: raise it to go on"
    _, err = run(capsys, *question, "--trials", "5")
    assert "already has" not in err
    _, err = run(capsys, *question, "--trials", "3")
    assert words in err
    _, err = run(capsys, *question, "--trials", "6")
    assert "already has" not in err


@pytest.mark.parametrize("more", [[], ["--study", "s", "--resume"]], ids=["made names", "one study"])
def test_tunes_that_start_at_once_on_an_empty_store_all_end_well(tmp_path: Path, more: list[str]) -> None:
    place = tmp_path / "x.db"
    question = [*SIM, "--m", "16", "--kv", "8192", "--trials", "3", "--store", str(place), *more]
    started = [
        subprocess.Popen([sys.executable, "-m", "mktune", *question], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(5)
    ]
    errors = [process.communicate(timeout=LIMIT_S)[1].decode() for process in started]
    assert [process.returncode for process in started] == [0] * 5, errors
    with Store.open(place, write=False) as store:
        studies = store.studies()
        assert len(studies) == (1 if more else 5)
        for study in studies:
            numbers = [trial.number for trial in store.trials(study)]
            assert numbers == list(range(len(numbers)))
            assert len(numbers) >= 3


def test_a_better_plan_beside_the_bar_is_folded_between_words() -> None:
    found = builtin_plans(workload(WORKLOAD), ("A0", "B0"), Shape.from_m(16, 8192), "sm_90a")["serial"]
    out = io.StringIO()
    console = Console(file=out, width=50, force_terminal=False)
    with Bar(console=console, disable=True) as bar:
        measured = Measurement(12.5, 12.4, 12.6, (12.5,), Policy("sim"))
        trial = Trial(0, found, Outcome(Status.OK, "", measured), "builtin:serial")
        BarObserver(bar, "M 16", 5, True).trial(trial, Progress("search", 1, 5, 0, 0, 0, 0, 12.5))
    line = f"trial 1  ok 12.50 µs simulated  {found.short_id}  builtin:serial  3 kernels, 1 stream"
    assert out.getvalue().split() == ["M", "16", *line.split()]
    assert all(len(part) <= 50 for part in out.getvalue().splitlines())
