"""`mktune tune --workers` and `mktune worker` as people run them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import run
from stored_values import H200, make_study
from waiting import LIMIT_S

from mktune.store import Store

pytestmark = pytest.mark.usefixtures("no_gpu")

TUNE = ["tune", "glm52_attention_prefix", "--ops", "A0,B0", "--m", "16", "--kv", "8192", "--backend", "sim"]


def test_several_models_share_a_tune_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ["--store", str(tmp_path / "x.db")]
    out, err = run(capsys, *TUNE, "--trials", "24", "--workers", "3", *store, "--json")
    (cell,) = json.loads(out)["cells"]
    assert (cell["trials"], cell["measured"], cell["stored"]) == (24, 24, True)
    assert sorted(cell["gpus"]) == [f"NVIDIA H200 (simulated) {place}" for place in range(3)]
    assert sum(cell["gpus"].values()) == 24
    assert "3 × NVIDIA H200 (simulated) measure at once" in err


def test_auto_is_one_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, *TUNE, "--trials", "4", "--workers", "auto", "--store", str(tmp_path / "x.db"), "--json")
    assert len(json.loads(out)["cells"][0]["gpus"]) == 1


def test_a_worker_goes_on_with_a_study_and_leaves_the_winner_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ["--store", str(tmp_path / "x.db"), "--study", "s"]
    run(capsys, *TUNE, "--trials", "6", *store)
    with Store.open(tmp_path / "x.db", write=False) as opened:
        winners = opened.winners(history=True)
        assert opened.find_study("s").max_trials == 6
    out, _ = run(capsys, "worker", *store)
    assert out.startswith("0 trials measured on NVIDIA H200 (simulated), of 6 of study s")
    out, err = run(capsys, "worker", *store, "--trials", "20", "--workers", "2", "--json")
    document = json.loads(out)
    assert (document["measured"], document["trials"], document["winner"]) == (14, 20, None)
    assert len([line for line in err.splitlines() if "without impl" not in line]) == 1 + 14
    with Store.open(tmp_path / "x.db", write=False) as opened:
        assert opened.winners(history=True) == winners


def test_tune_and_worker_at_once_on_a_server(postgres: str) -> None:
    """The commands themselves, each in a process of its own; the worker comes while the tune runs."""
    mktune = [sys.executable, "-m", "mktune"]
    shared = ["--store", postgres, "--study", "s", "--json"]
    tune = [*mktune, *TUNE, "--trials", "300", "--sampler", "random", *shared]
    first = subprocess.Popen(tune, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert first.stderr is not None
    assert "trial 1/300" in first.stderr.readline()
    second = subprocess.run([*mktune, "worker", *shared], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    out, err = first.communicate(timeout=LIMIT_S)
    assert first.returncode == 0, err[-2000:]
    worker, (cell,) = json.loads(second.stdout), json.loads(out)["cells"]
    assert worker["measured"] + cell["measured"] == 300
    assert worker["trials"] == cell["trials"] == 300
    assert cell["stored"]
    with Store.open(postgres, write=False) as store:
        trials = store.trials(store.find_study("s"))
        assert len({trial.plan.plan_id for trial in trials}) == 300


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([*TUNE, "--workers", "0"], "--workers '0'"),
        ([*TUNE, "--workers", "many"], "--workers 'many'"),
        ([*TUNE, "--workers", "1.5"], "--workers '1.5'"),
        (["worker", "--study", "nope"], "no study 'nope'"),
        (["worker", "--study", "s", "--workers", "-1"], "--workers '-1'"),
        (["worker"], "--study"),
        (["worker", "--study", "endless"], "no number of trials"),
        (["worker", "--study", "b300"], "not modelled"),
    ],
)
def test_wrong_input_is_one_line(
    args: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store.open(tmp_path / "x.db") as store:
        from mktune.backends.models import known_gpu

        make_study(store, "endless", backend="sim", device=known_gpu("h200"))
        make_study(store, "b300", backend="sim", device=replace(known_gpu("b300"), sms=4))
    _, err = run(capsys, *args, "--store", str(tmp_path / "x.db"), code=2)
    assert words in err
    assert len(err.splitlines()) == 1


def test_a_study_of_another_gpu_or_build_is_not_joined(tmp_path: Path) -> None:
    from mktune.errors import InputError

    with Store.open(tmp_path / "x.db") as store:
        make_study(store, build="a" * 64)
        assert store.join("s", device=replace(H200, uuid="GPU-9", driver="1"), build="a" * 64).name == "s"
        with pytest.raises(InputError, match="has the GPU NVIDIA H200"):
            store.join("s", device=replace(H200, name="NVIDIA H20", sms=78), build="a" * 64)
        with pytest.raises(InputError, match="kernels of the build"):
            store.join("s", device=H200, build="b" * 64)


@pytest.mark.parametrize("content", [None, b""])
def test_a_worker_makes_no_store(content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "x.db"
    if content is not None:
        place.write_bytes(content)
    _, err = run(capsys, "worker", "--study", "s", "--store", str(place), code=5)
    assert err.startswith("mktune: error: nothing is stored yet: ")
    assert len(err.splitlines()) == 1
    assert [path.read_bytes() for path in tmp_path.iterdir()] == ([] if content is None else [content])
