"""Every command: --json is one document however it ends, logs stay plain, and exit codes are those of the README."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from mktune import errors
from mktune.cli import boundary
from mktune.cli.app import app

COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
README = Path(__file__).parents[2] / "README.md"
WORKLOAD = "glm52_attention_prefix"
SHAPE = ["--m", "16", "--kv", "8192"]
SIM = [*SHAPE, "--backend", "sim"]

ANSWERS = {
    "tune": [WORKLOAD, "--ops", "A0", *SIM, "--trials", "2", "--sampler", "random"],
    "leaderboard": [],
    "lookup": [WORKLOAD, *SHAPE, "--gpu", "NVIDIA H200", "--allow-simulated"],
    "coverage": [WORKLOAD, *SHAPE, "--gpu", "NVIDIA H200", "--allow-simulated"],
    "show": ["branches"],
    "run": ["serial", "--ops", "A0", *SIM],
    "trace": ["serial", "--ops", "A0", *SIM],
    "ablate": [WORKLOAD, "--ops", "A0,B0", *SIM],
    "grow": [WORKLOAD, "--ops", "A0,B0", *SIM],
    "edge": ["A0", "B0", "--m", "16", "--kv", "8192", "--backend", "sim"],
    "compile": ["--ops", "A0"],
    "export": ["--simulated"],
    "doctor": [],
}
"""Command → arguments that it answers, in a store where `tune` has run."""


def document(text: str) -> dict[str, object]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in JSON")

    found = json.loads(text, parse_constant=refuse)
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("documents") / "x.db"
    assert boundary.run(["tune", *ANSWERS["tune"], "--store", str(place)]) == 0
    return place


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_an_answer_is_one_document(
    name: str, store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MKTUNE_STORE", str(store))
    capsys.readouterr()
    assert boundary.run([name, *ANSWERS[name], "--json"]) == 0, capsys.readouterr().err
    out, _ = capsys.readouterr()
    assert "error" not in document(out)


def test_an_import_is_one_document(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, other = str(tmp_path / "plans.json"), str(tmp_path / "other.db")
    assert boundary.run(["export", "--simulated", "--out", path, "--store", str(store), "--json"]) == 0
    assert document(capsys.readouterr().out)["file"] == path
    assert boundary.run(["import", path, "--store", other, "--json"]) == 0
    assert len(document(capsys.readouterr().out)["plans"]) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("name", COMMANDS)
def test_an_error_is_one_document_and_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert boundary.run([name, "--json", "--no-such-option"]) == 2
    out, err = capsys.readouterr()
    assert document(out)["error"]["exit_code"] == 2  # type: ignore[index]
    assert re.fullmatch(r"mktune: error: .*\n", err)


IN_CI: list[dict[str, str]] = [{"CI": "1", "GITHUB_ACTIONS": "1"}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}]


@pytest.mark.parametrize(
    ("name", "setting"), [*((name, {}) for name in ["", *COMMANDS]), *(("tune", setting) for setting in IN_CI)]
)
def test_help_is_plain_and_whole_in_a_log(name: str, setting: dict[str, str]) -> None:
    plain = {key: value for key, value in os.environ.items() if key not in ("CI", "NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    command = [sys.executable, "-m", "mktune", *([name] if name else []), "--help"]
    out = subprocess.run(command, capture_output=True, env=plain | setting, check=True).stdout
    assert b"\x1b" not in out
    assert b"\r" not in out
    assert "…" not in out.decode()


def test_the_readme_has_one_exit_code_table_and_it_is_the_programs() -> None:
    text = README.read_text()
    tables = re.findall(r"^\| exit code \|.*\n\|[-| ]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert len(tables) == 1
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in tables[0].splitlines()]
    told = [int(code) for row in rows for code in row[0].split(",")]
    assert len(told) == len(set(told))
    assert all(len(row) == 2 and row[1] for row in rows)
    classes = [getattr(errors, name) for name in errors.__all__]
    signals = {boundary.INTERRUPTED, boundary.TERMINATED, boundary.BROKEN_PIPE}
    assert set(told) == {0} | {each.exit_code for each in classes} | signals
    in_code = {int(code) for code in re.findall(r"^    (\d+)  ", boundary.__doc__ or "", re.MULTILINE)}
    in_code |= {int(code) for code in re.findall(r"   (\d+)  [A-Za-z]", boundary.__doc__ or "")}
    assert in_code == set(told)


@pytest.mark.parametrize(
    ("code", "args"),
    [
        (0, ["show", "serial"]),
        (2, ["show", "nonsense"]),
        (3, ["run", "serial", *SHAPE, "--backend", "cuda"]),
        (4, ["leaderboard", "--store", str(README)]),
        (5, ["leaderboard", "--store", "/tmp/no such store.db"]),
    ],
)
def test_exit_codes_mean_what_the_table_says(
    code: int, args: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(index: int = 0) -> None:
        raise errors.SetupError("no NVIDIA driver on this machine")

    monkeypatch.setattr("mktune.executors.discovery.find_device", absent)
    assert boundary.run(args) == code, capsys.readouterr().err
