"""--scale-format of the commands that measure or export: what is asked for is measured, and what nothing computes is
refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from test_scale_format_key import NAME, SCALED, gate, gate_winner, implemented, unimplemented

from mktune.store import Store, read_bundle

pytestmark = pytest.mark.usefixtures("no_gpu")
__all__ = ["implemented", "unimplemented"]

CELL = ("--m", "16", "--kv", "8192", "--backend", "sim")
COMMANDS: dict[str, tuple[str, ...]] = {
    "ablate": (NAME, *CELL, "--ops", "{}"),
    "grow": (NAME, *CELL, "--mode", "serial", "--ops", "{}"),
    "matrix": (NAME, *CELL, "--ops", "{}"),
    "record": (NAME, *CELL, "--ops", "{}", "--out", "r.gz", "--free", "{}.chain"),
    "trace": ("serial", *CELL, "--ops", "{}"),
    "edge": ("{}", "B0", *CELL),
}


def asked(command: str, op: str) -> list[str]:
    return [command, *(word.format(op) for word in COMMANDS[command])]


def answer(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    out, _ = run(capsys, *args, "--json")
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.usefixtures("unimplemented")
@pytest.mark.parametrize("command", COMMANDS)
def test_what_nothing_computes_is_refused_in_one_line(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out, err = run(capsys, *asked(command, "A0"), *SCALED, code=2)
    assert out == ""
    assert err.startswith("mktune: error: ")
    assert err.count("\n") == 1
    assert "A0" in err
    assert "ue8m0 on sm_90a" in err
    out, err = run(capsys, *asked(command, "A0"), "--scale-format", "ue9", code=2)
    assert err == f"mktune: error: {NAME} has no scale format 'ue9'; it has fp32, ue8m0\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["ablate", "grow", "trace"])
def test_an_op_without_scales_is_measured_under_either_format(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = {name: answer(capsys, *asked(command, "C0"), "--scale-format", name) for name in ("fp32", "ue8m0")}
    assert {name: one["scale_format"] for name, one in found.items()} == {"fp32": "fp32", "ue8m0": "ue8m0"}
    assert answer(capsys, *asked(command, "C0"))["scale_format"] == "fp32"
    assert f"{NAME} ue8m0 C0" in run(capsys, *asked(command, "C0"), *SCALED)[0]
    assert all(gate(name).plan_id in json.dumps(one) for name, one in found.items())


@pytest.mark.parametrize("command", ["ablate", "grow"])
def test_configs_of_a_plan_are_taken_under_its_own_format(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(gate("ue8m0").json)
    question = [*asked(command, "C0"), "--plan", str(path)]
    assert answer(capsys, *question)["scale_format"] == "ue8m0"
    assert answer(capsys, *question, *SCALED)["scale_format"] == "ue8m0"
    _, err = run(capsys, *question, "--scale-format", "fp32", code=2)
    assert err == f"mktune: error: plan {gate().short_id} has scale_format ue8m0, not fp32\n"


@pytest.mark.usefixtures("implemented")
def test_an_edge_is_measured_under_the_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, *asked("edge", "A0"), *SCALED)["scale_format"] == "ue8m0"
    out, _ = run(capsys, *asked("edge", "A0"), *SCALED)
    assert out.startswith(f"{NAME} ue8m0 A0 → B0, KV 8192, NVIDIA H200 simulated")


def test_the_matrix_is_of_the_plans_of_one_format_and_a_recording_around_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = ["--store", str(tmp_path / "x.db")]
    won = {}
    for name in ("fp32", "ue8m0"):
        option = ["--scale-format", name]
        cells = answer(capsys, "tune", NAME, "--ops", "C0", *CELL, "--trials", "9", *store, *option)["cells"]
        won[name] = cells[0]["winner"]["plan_id"]
        found = answer(capsys, *asked("matrix", "C0"), *store, *option)
        assert found["scale_format"] == name
        assert [cell["plan_id"] for cell in found["cells"]] == [won[name]]
        file = tmp_path / f"{name}.jsonl.gz"
        question = ["record", NAME, *CELL, "--ops", "C0", "--free", "C0.ring:3", "--out", str(file)]
        _, err = run(capsys, *question, *store, *option)
        assert f"plans around {won[name][:12]}, free: C0.ring" in err
        assert file.exists()
    assert won["fp32"] != won["ue8m0"]
    assert f"{NAME} ue8m0 on NVIDIA H200 simulated" in run(capsys, *asked("matrix", "C0"), *store, *SCALED)[0]


def test_winners_of_one_format_are_exported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    url, out = str(tmp_path / "x.db"), tmp_path / "plans.json"
    with Store.open(url) as store:
        store.put_winner(None, gate_winner("fp32"))
        store.put_winner(None, gate_winner("ue8m0"))
    question = ["export", "--store", url, "--out", str(out)]
    assert answer(capsys, *question, *SCALED)["plans"] == [gate("ue8m0").plan_id]
    assert read_bundle(out) == [gate_winner("ue8m0")]
    assert len(answer(capsys, *question)["plans"]) == 2
    _, err = run(capsys, *question, "--scale-format", "ue9", code=2)
    assert err == "mktune: error: unknown scale format 'ue9'; known: fp32, ue8m0\n"
    with Store.open(tmp_path / "y.db") as store:
        store.put_winner(None, gate_winner("fp32"))
    _, err = run(capsys, "export", "--store", str(tmp_path / "y.db"), *SCALED, code=5)
    assert err.count("\n") == 1


def test_studies_of_one_format_are_exported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    store = ["--store", str(tmp_path / "x.db")]
    for name in ("fp32", "ue8m0"):
        question = ["tune", NAME, "--ops", "C0", *CELL, "--trials", "3", "--study", name, "--scale-format", name]
        run(capsys, *question, *store)
    to = ["--optuna", f"sqlite:///{tmp_path}/optuna.db"]
    every = answer(capsys, "export", *to, *store)["studies"]

    def packed(name: str) -> bool:
        return "ue8m0" in name

    assert {"fp32", "ue8m0"} <= set(every)
    assert answer(capsys, "export", *to, *store, *SCALED)["studies"] == list(filter(packed, every))
