"""Spans of a grid's plans and what each costs in the cells beside its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run
from fake_bench import WORKLOAD
from stored_values import make_winner
from test_neighbours import OPS, SIM, search, space_at

from mktune.cli import boundary
from mktune.search.matrix import matrix
from mktune.shape import Shape
from mktune.store import Store

GRID = [Shape.from_m(m, kv) for m in (8, 16, 32) for kv in (8192, 65536)]


def filled(path: Path) -> None:
    with Store.open(path) as store:
        for shape in GRID[:-1]:
            search(store, space_at(shape.m, shape.kv), trials=25, neighbours=0)


def test_each_cell_meets_the_plans_beside_it_and_none_further_away(tmp_path: Path) -> None:
    filled(tmp_path / "store.db")
    with Store.open(tmp_path / "store.db", write=False) as store:
        cells = {cell.shape: cell for cell in matrix(WORKLOAD, OPS, GRID, SIM, store)}
    assert list(cells) == GRID
    middle = cells[Shape.from_m(16, 8192)]
    beside = [Shape.from_m(8, 8192), Shape.from_m(32, 8192), Shape.from_m(16, 65536)]
    assert [one.of for one in middle.borrowed] == beside
    assert cells[GRID[-1]].plan is None
    assert GRID[-1] not in [one.of for cell in cells.values() for one in cell.borrowed]
    for cell in cells.values():
        for one in cell.borrowed:
            assert one.ratio is not None, one.why
            assert one.ratio.median > 0.5


def test_the_command_prints_spans_and_regrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(tmp_path / "store.db")
    command = ["matrix", WORKLOAD.name, "--ops", "A0,B0", "--m", "8,16,32", "--kv", "8192,65536", "--backend", "sim"]
    command += ["--store", str(tmp_path / "store.db")]
    assert boundary.run(command) == 0
    text = capsys.readouterr().out
    assert "KV 65536" in text
    assert "–" in text, "the cell without a plan"
    assert boundary.run([*command, "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [cell["span_us"] is None for cell in cells] == [False] * 5 + [True]


def test_a_store_of_measured_plans_has_no_simulated_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.db"
    with Store.open(path) as store:
        store.put_winner(None, make_winner())
    asked = ("matrix", WORKLOAD.name, "--ops", "A0,B0", "--m", "16", "--kv", "8192", "--store", str(path))
    _, err = run(capsys, *asked, "--backend", "sim", code=5)
    held = f"{path} holds no simulated plan of these shapes on NVIDIA H200"
    assert err.splitlines()[-1] == f"mktune: error: {held}: `mktune tune --backend sim` them"


def test_a_grid_without_plans_is_said_to_be_empty(tmp_path: Path) -> None:
    Store.open(tmp_path / "store.db").close()
    command = ["matrix", WORKLOAD.name, "--m", "8", "--kv", "8192", "--backend", "sim"]
    assert boundary.run([*command, "--store", str(tmp_path / "store.db")]) == 5
