"""Commands on real terminals of several widths: ids and spans whole, nothing cut, markup in names as it is."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from stored_values import make_plan, make_study, make_trial, make_winner
from test_cli_watch import Terminal, command
from waiting import LIMIT_S

from mktune.store import Store

STUDY = "🚀 [bold]x[/bold] :smile: \N{RIGHT-TO-LEFT OVERRIDE}"


@pytest.fixture
def store(tmp_path: Path) -> str:
    with Store.open(tmp_path / "x.db") as store:
        study = make_study(store, STUDY)
        for number in range(3):
            store.add_trial(study, make_trial(number, make_plan(stages=number + 2), 10.0 + number))
        store.put_winner(study, make_winner(make_plan(stages=2)))
    return str(tmp_path / "x.db")


def shown(args: list[str], columns: int) -> str:
    terminal = Terminal(command(*args), columns, 50)
    code = terminal.child.wait(LIMIT_S)
    while terminal._read(0.2):
        pass
    assert code == 0, terminal.text
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.text).replace("\r", "")


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_ids_and_spans_are_whole_and_nothing_is_cut(store: str, columns: int) -> None:
    text = shown(["leaderboard", "--store", store], columns)
    for number in range(3):
        assert make_plan(stages=number + 2).short_id in text
        assert f"{10.0 + number:.2f}" in text
    assert "…" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= columns
    words = " ".join(text.split())
    assert "A0 mktune t192" in words


@pytest.mark.parametrize("columns", [60, 200])
def test_names_are_shown_as_they_are(store: str, columns: int) -> None:
    plan = make_plan(stages=2).plan_id
    text = shown(["show", plan[:12], "--store", store], columns)
    assert plan in text
    assert "[bold]x[/bold] :smile:" in " ".join(text.split())


def test_a_pipe_gets_the_lines_of_the_widest_terminal(store: str) -> None:
    piped = subprocess.run(command("leaderboard", "--store", store), capture_output=True, text=True, check=True).stdout
    assert piped.split() == shown(["leaderboard", "--store", store], 400).split()
    assert "\x1b" not in piped
