"""`mktune ablate` and `mktune grow` on the model: tables, JSON, plans, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run
from test_ablation import tuned

from mktune.graph.builtin import MODES

ASKED = ("glm52_attention_prefix", "--m", "16", "--kv", "8192", "--backend", "sim")


def rows_of(out: str, first: str) -> list[list[str]]:
    """Cells of the lines from the one that starts with `first` on."""
    lines = out.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith(first))
    return [line.split() for line in lines[begin:]]


def test_ablate_prints_a_row_for_each_mode(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "ablate", *ASKED)
    assert "default configs, NVIDIA H200 simulated" in out
    rows = rows_of(out, "serial ")
    assert [row[0] for row in rows[:4]] == list(MODES)
    serial, both = float(rows[0][1]), rows[3]
    assert float(both[3]) == pytest.approx(serial - float(both[1]), abs=0.011)
    assert rows[4][:5] == ["Interaction", "of", "branches", "and", "PDL:"]


def test_ablate_json_has_intervals_and_plan_ids_for_each_shape(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "ablate", ASKED[0], "--m", "1,16", *ASKED[3:], "--json")
    found = json.loads(out)
    assert (found["simulated"], found["plan_id"], found["gpu"]) == (True, None, "NVIDIA H200")
    assert [(cell["m"], cell["kv"]) for cell in found["cells"]] == [(1, 8192), (16, 8192)]
    for cell in found["cells"]:
        assert list(cell["modes"]) == list(MODES)
        us = {mode: span["us"] for mode, span in cell["modes"].items()}
        saved = {mode: saving["us"] for mode, saving in cell["savings"].items()}
        assert saved == pytest.approx({mode: us["serial"] - us[mode] for mode in MODES if mode != "serial"})
        joint = saved["branches+pdl"] - saved["branches"] - saved["serial+pdl"]
        assert cell["interaction"]["us"] == pytest.approx(joint)
        assert cell["interaction"]["percent"] == pytest.approx(100 * joint / us["serial"])
        assert cell["seconds"].keys() == {"verify", "measure"}
        assert all(len(span["plan_id"]) == 64 for span in cell["modes"].values())


def test_ablate_takes_a_plan_of_the_store_and_measures_it_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = tuned()
    path = tmp_path / "plan.json"
    path.write_text(plan.json)
    out, _ = run(capsys, "ablate", *ASKED, "--plan", str(path))
    assert f"configs of {plan.short_id}" in out
    assert any(line.startswith(f"plan {plan.short_id}") for line in out.splitlines())
    store = str(tmp_path / "store.db")
    tune = (
        "--ops",
        "A0,B0",
        "--m",
        "16",
        "--kv",
        "64",
        "--backend",
        "sim",
        "--trials",
        "6",
        "--store",
        store,
        "--json",
    )
    tuned_out, _ = run(capsys, "tune", "glm52_attention_prefix", *tune)
    plan_id = json.loads(tuned_out)["cells"][0]["winner"]["plan_id"]
    asked = (ASKED[0], "--m", "16", "--kv", "64", "--backend", "sim", "--store", store, "--plan", plan_id[:10])
    out, _ = run(capsys, "ablate", *asked, "--json")
    cell = json.loads(out)["cells"][0]
    assert cell["modes"]["plan"]["plan_id"] == plan_id
    assert "plan" in cell["savings"]
    out, _ = run(capsys, "grow", *asked)
    assert [row[0] for row in rows_of(out, "A0 ")[:2]] == ["A0", "B0"]


@pytest.mark.parametrize("command", ["ablate", "grow"])
def test_a_fused_plan_is_measured_with_its_fused_kernels_and_that_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    from test_fused_plans import FUSED

    path = tmp_path / "plan.json"
    path.write_text(FUSED.json)
    out, _ = run(capsys, command, *ASKED, "--plan", str(path))
    assert f"configs of {FUSED.short_id}, B1p+C0, D0+D1p fused as there, NVIDIA H200 simulated" in out
    out, _ = run(capsys, command, *ASKED, "--plan", str(path), "--ops", "A0,B1,C0", "--json")
    assert json.loads(out)["fused"] == ["B1p+C0"]
    out, _ = run(capsys, command, *ASKED, "--ops", "A0,B1,C0", "--json")
    assert json.loads(out)["fused"] == []


def test_show_says_where_the_gain_of_a_winner_comes_from(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    asked = ("--m", "16", "--kv", "8192", "--backend", "sim", "--trials", "60", "--store", store, "--json")
    out, _ = run(capsys, "tune", ASKED[0], *asked)
    winner = json.loads(out)["cells"][0]["winner"]
    assert not winner["kept_baseline"]
    out, _ = run(capsys, "show", winner["plan_id"], "--store", store)
    rows = rows_of(out, "where the gain comes from")[2:]
    groups = ["tiles", "branches", "pdl", "placement", "order"] + ["fusion"] * ("fused" in out)
    assert [row[0] for row in rows[: len(groups)]] == groups
    for row in rows[: len(groups)]:
        assert f"{winner['attribution'][row[0]]['span_us']:.2f}" in row
    assert " ".join(rows[len(groups)]).startswith("gain over serial")
    out, _ = run(capsys, "show", winner["plan_id"], "--store", store, "--json")
    assert json.loads(out)["attribution"] == winner["attribution"]
    out, _ = run(capsys, "show", "serial", "--json")
    assert json.loads(out)["attribution"] is None
    assert "where the gain comes from" not in run(capsys, "show", "serial")[0]


def test_grow_prints_a_row_for_each_op(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "grow", *ASKED)
    rows = rows_of(out, "A0 ")
    assert [row[0] for row in rows[:8]] == ["A0", "C0", "B1", "B0", "D0", "D1", "D2", "E1"]
    assert "branches+pdl" in out
    assert rows[8][:4] == ["Alone", "the", "ops", "take"]


def test_grow_json_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "grow", *ASKED, "--mode", "serial", "--json")
    found = json.loads(out)
    assert found["mode"] == "serial"
    (cell,) = found["cells"]
    spans = [step["span"]["us"] for step in cell["steps"]]
    increases = [step["increase"]["us"] for step in cell["steps"]]
    assert sum(increases) == pytest.approx(spans[-1])
    assert cell["alone_us"] == pytest.approx(sum(step["alone"]["us"] for step in cell["steps"]))
    assert cell["steps"][-1]["ops"] == ["A0", "C0", "B1", "B0", "D0", "D1", "D2", "E1"]


@pytest.mark.parametrize("command", ["ablate", "grow"])
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("nope", *ASKED[1:]), "unknown workload 'nope'"),
        ((*ASKED, "--ops", "A0,D0"), "ops are not connected"),
        ((*ASKED, "--ops", "A0,Z9"), "unknown op 'Z9'"),
        ((*ASKED, "--plan", "zz"), "'zz' is no plan"),
        ((*ASKED, "--plan", "no/such.json"), "no/such.json"),
        ((ASKED[0], "--m", "0", *ASKED[3:]), "M = 0 is out of range"),
        ((*ASKED, "--sim-gpu", "h100"), "unknown GPU 'h100'"),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], command: str, args: tuple[str, ...], said: str
) -> None:
    out, err = run(capsys, command, *args, code=2)
    assert out == ""
    assert err.startswith("mktune: error: ")
    assert said in err
    assert err.count("\n") == 1


def test_an_unknown_mode_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = run(capsys, "grow", *ASKED, "--mode", "parallel", code=2)
    assert "--mode 'parallel' is unknown; allowed: serial, serial+pdl, branches, branches+pdl" in err
