"""`mktune coverage` and what it counts: shapes measured, covered and missing are those that a look-up gives."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from command_line import run
from stored_values import WORKLOAD, make_plan
from test_book import ask, served

from mktune.runtime import PlanBook
from mktune.runtime.coverage import coverage
from mktune.store import Store

TUNED = [served(make_plan(16, 8192, m_range=(9, 16))), served(make_plan(32, 4096, m_range=(17, 32)), 12.5)]
ROWS, CONTEXTS = (8, 16, 24, 32), (4096, 8192, 16384)


@pytest.fixture
def store(tmp_path: Path) -> str:
    with Store.open(tmp_path / "x.db") as opened:
        for winner in TUNED:
            opened.put_winner(None, winner)
        opened.put_winner(None, served(make_plan(64, 8192, m_range=(33, 64)), backend="sim"))
    return str(tmp_path / "x.db")


def test_cells_are_what_look_ups_give() -> None:
    book = PlanBook.of(TUNED)
    cells = coverage(book, WORKLOAD, ROWS, CONTEXTS, gpu="H200")
    assert [(cell.m, cell.kv) for cell in cells] == [(m, kv) for m in ROWS for kv in CONTEXTS]
    for cell in cells:
        assert cell.answer == ask(book, m=cell.m, kv=cell.kv, gpu="H200")
    states = {(cell.m, cell.kv): cell.state for cell in cells}
    assert [at for at, state in states.items() if state == "measured"] == [(16, 8192), (32, 4096)]
    assert [at for at, state in states.items() if state == "covered"] == [(16, 4096), (24, 4096)]
    assert Counter(states.values())["missing"] == 8


def test_tokens_per_request_leave_out_what_they_do_not_divide() -> None:
    cells = coverage(PlanBook.of(TUNED), WORKLOAD, (9, 12, 16), (4, 8192), gpu="H200", tokens_per_request=8)
    assert [(cell.m, cell.kv, cell.state) for cell in cells] == [(16, 8192, "measured")]


ASKED = ["coverage", WORKLOAD, "--m", "8,16,24,32", "--kv", "4096,8192,16384", "--gpu", "NVIDIA H200"]


def test_the_matrix_is_printed(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, *ASKED, "--store", store)
    rows = [line.split("  ") for line in out.splitlines()]
    table = [[cell.strip() for cell in row if cell.strip()] for row in rows[:5]]
    assert table == [
        ["M", "KV 4096", "KV 8192", "KV 16384"],
        ["8", "–", "–", "–"],
        ["16", "(16, 8192)", "10.00", "–"],
        ["24", "(32, 4096)", "–", "–"],
        ["32", "12.50", "–", "–"],
    ]
    assert "2 measured, 2 covered, 8 missing" in out
    assert "missing for: shape (8)" in out
    assert "~" not in out


def test_the_document_has_every_cell_with_its_reason(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, *ASKED, "--store", store, "--json")[0])
    assert found["counts"] == {"measured": 2, "covered": 2, "missing": 8}
    cells = {(cell["m"], cell["kv"]): cell for cell in found["cells"]}
    assert len(cells) == 12
    assert cells[24, 4096]["state"] == "covered"
    assert cells[24, 4096]["tuned"] == {"m": 32, "kv": 4096}
    assert cells[24, 4096]["plan_id"] == TUNED[1].plan.plan_id
    assert cells[24, 4096]["source"] == "store"
    assert cells[8, 4096]["reason"] == "shape"
    assert cells[8, 4096]["message"]


def test_simulated_plans_are_marked_and_shown_when_asked_for(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["coverage", WORKLOAD, "--m", "64", "--kv", "8192", "--gpu", "h200", "--store", store]
    assert "missing for: simulated (1)" in run(capsys, *asked)[0]
    assert "~10.00" in run(capsys, *asked, "--allow-simulated")[0]


def test_where_nothing_can_be_found_the_reason_is_the_error(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = run(capsys, *ASKED[:-1], "NVIDIA B300", "--store", store, code=5)
    assert "no plan for NVIDIA B300" in err
    _, err = run(capsys, *ASKED, "--store", store + ".none", code=5)
    assert "there is no store at" in err
    run(capsys, *ASKED, "--store", store, "--ops", "A0,C0", code=5)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--m", "0"],
        ["--m", "257"],
        ["--kv", "x"],
        ["--m", ","],
        ["--accept", "gpu"],
        ["--alias", "x"],
        ["--tokens-per-request", "5"],
        ["--tokens-per-request", "0"],
        ["--tokens-per-request", "-8"],
    ],
)
def test_wrong_input_is_an_error(store: str, wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, *ASKED, "--store", store, *wrong, code=2)


def test_the_defaults_are_a_grid(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, "coverage", WORKLOAD, "--gpu", "h200", "--store", store, "--json")[0])
    assert len(found["cells"]) == 72
    assert found["counts"]["measured"] == 2
