"""Shell completion: what may stand at the cursor, nothing a shell would run, and bash itself asking."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from command_line import run
from stored_values import make_plan, make_study, make_winner

from mktune.cli import completion
from mktune.cli.app import app
from mktune.cli.completion import candidates
from mktune.graph.builtin import MODES
from mktune.search import sampler_names
from mktune.store import Store

COMMANDS = dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
WORKLOAD = "glm52_attention_prefix"


def test_the_first_word_is_a_command_or_an_option_of_the_program() -> None:
    assert set(candidates([""])) == set(COMMANDS)
    assert candidates(["le"]) == ["leaderboard"]
    assert candidates(["--ver"]) == ["--version"]
    assert candidates([]) == candidates([""])


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_of_every_command_is_offered(name: str) -> None:
    flags = {flag for each in COMMANDS[name].params for flag in each.opts if flag.startswith("--")}
    assert set(candidates([name, "--"])) == flags | {"--help"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tune", "glm"], [WORKLOAD]),
        (["tune", "--m", "16", "glm"], [WORKLOAD]),
        (["tune", WORKLOAD, "--sampler", ""], sorted(sampler_names())),
        (["tune", WORKLOAD, "--backend", "s"], ["sim"]),
        (["tune", WORKLOAD, "--sim-gpu", "h"], ["h200"]),
        (["tune", WORKLOAD, "--m", ""], []),
        (["tune", WORKLOAD, "another", ""], []),
        (["tune", WORKLOAD, "--ops", "A"], ["A0"]),
        (["edge", "A"], ["A0"]),
        (["edge", "A0", "B0"], ["B0"]),
        (["show", ""], sorted(MODES)),
        (["show", "serial", "--arch", "sm_9"], ["sm_90a"]),
        (["show", "serial", "--json", "--arch", "sm_9"], ["sm_90a"]),
        (["nonsense", ""], []),
        (["import", ""], []),
    ],
    ids=lambda value: " ".join(value),
)
def test_values(words: list[str], expected: list[str]) -> None:
    assert candidates(words) == expected


def test_a_begun_list_of_ops_goes_on_without_those_it_has() -> None:
    found = candidates(["tune", WORKLOAD, "--ops", "A0,B0,"])
    assert "A0,B0,C0" in found
    assert not any(word.count("A0") > 1 for word in found)


def test_every_table_of_values_is_of_a_parameter() -> None:
    assert set(completion.VALUES) <= {each.name for command in COMMANDS.values() for each in command.params}


def test_stored_plans_are_offered_by_id_and_nothing_that_a_shell_would_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MKTUNE_STORE", str(tmp_path / "x.db"))
    with Store.open() as store:
        make_study(store, "$(touch pwned)")
        store.put_winner(None, make_winner())
    before = (tmp_path / "x.db").read_bytes()
    found = candidates(["show", ""])
    assert make_plan().short_id in found
    assert all(shlex.quote(word) == word for word in found)
    assert (tmp_path / "x.db").read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"\0" * 4096, b"nonsense"])
def test_a_store_that_cannot_be_read_costs_only_its_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    (tmp_path / "x.db").write_bytes(content)
    monkeypatch.setenv("MKTUNE_STORE", str(tmp_path / "x.db"))
    assert candidates(["show", ""]) == sorted(MODES)


def test_bash_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "--completion", "bash")
    (tmp_path / "mktune").write_text(f'#!/bin/sh\nexec {sys.executable} -m mktune "$@"\n')
    (tmp_path / "mktune").chmod(0o755)
    ask = """
        COMP_WORDS=(mktune "$@"); COMP_CWORD=$#; COMPREPLY=(); _mktune; printf '%s\\n' "${COMPREPLY[@]}"
    """
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def complete(*words: str) -> list[str]:
        command = ["bash", "-c", f"{out}{ask}", "bash", *words]
        return subprocess.run(command, capture_output=True, text=True, env=environment).stdout.split()

    assert complete("tune", "gl") == [WORKLOAD]
    assert complete("tune", WORKLOAD, "--backend", "") == ["auto", "cuda", "sim"]
    assert "--watch" in complete("leaderboard", "--w")
    assert complete("show", "'; touch x; '") == []


@pytest.mark.parametrize("shell", completion.SCRIPTS)
def test_scripts_are_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run(capsys, "--completion", shell)
    assert "mktune __complete " in out
    assert err == ""


def test_an_unknown_shell_is_wrong_input(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = run(capsys, "--completion", "tcsh", code=2)
    assert "allowed: bash, zsh, fish" in err
