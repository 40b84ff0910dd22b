"""Every command, found by walking the program: help with an example that parses, and --json."""

from __future__ import annotations

import ast
import shlex
from collections import Counter
from pathlib import Path

import pytest
import typer

import mktune.cli
from mktune.cli import boundary
from mktune.cli.app import app

COMMANDS = dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
WANTED = {
    "tune",
    "worker",
    "leaderboard",
    "lookup",
    "show",
    "run",
    "trace",
    "ablate",
    "grow",
    "export",
    "compile",
    "edge",
    "bench-ops",
    "doctor",
    "record",
    "matrix",
    "compare-samplers",
}


def examples(name: str) -> list[str]:
    epilog = COMMANDS[name].epilog or ""
    return [line.strip() for line in epilog.splitlines() if line.strip().startswith(f"mktune {name}")]


def test_every_command_of_the_documentation_is_there() -> None:
    assert set(COMMANDS) >= WANTED


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_has_a_summary_and_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert boundary.run([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"mktune {name}" in text
    assert examples(name), "no example line"
    summary = (COMMANDS[name].help or "").strip().splitlines()[0]
    assert len(summary) > 20


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_example_parses(name: str) -> None:
    for line in examples(name):
        program, command, *rest = shlex.split(line.partition("#")[0].partition("|")[0].partition(">")[0])
        assert (program, command) == ("mktune", name)
        with COMMANDS[name].make_context(name, rest, resilient_parsing=False):
            pass


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_json_is_offered(name: str) -> None:
    flags = [flag for parameter in COMMANDS[name].params for flag in parameter.opts]
    assert "--json" in flags


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_has_help(name: str) -> None:
    for parameter in COMMANDS[name].params:
        if parameter.name != "help":
            assert getattr(parameter, "help", None), parameter.name


def test_help_of_sampler_names_them_all_and_the_default() -> None:
    from mktune.search import DEFAULT_SAMPLER, sampler_names

    (sampler,) = [parameter for parameter in COMMANDS["tune"].params if parameter.name == "sampler"]
    text = sampler.help or ""
    assert all(name in text for name in sampler_names())
    assert f"[{DEFAULT_SAMPLER}]" in text


def test_what_an_option_says_is_written_once() -> None:
    """What several commands take has one name, in mktune/cli/options.py: otherwise one changes and others do not."""
    folder = Path(mktune.cli.__file__).parent
    calls = [
        ast.unparse(node)
        for path in sorted(folder.glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("typer.Option", "typer.Argument")
    ]
    assert len(calls) > 40
    assert [call for call, count in Counter(calls).items() if count > 1] == []
