"""`mktune trace`: what it prints, the file that Perfetto opens, the picture, and what it says where it cannot draw."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from fake_bench import H200, SHAPE, WORKLOAD
from test_cli_terminal import shown

from mktune.cli.sm_activity import Activity, mean, sm_activity
from mktune.cli.timeline_json import KERNELS, PATH, SMS, chrome_json
from mktune.cli.timeline_text import WAITS, WORKS, timeline
from mktune.cli.trace import cost_words, print_trace
from mktune.graph.builtin import make_plan
from mktune.lowering.graph import lower
from mktune.measure.tracing import Notes, reply, trace_of
from mktune.trace import Trace

QUESTION = ("trace", "branches+pdl", "--m", "16", "--kv", "8192", "--backend", "sim")
PLAN = make_plan(WORKLOAD, ("A0", "B0"), SHAPE, "sm_90a", "serial+pdl")
LOWERED = lower(PLAN, WORKLOAD.subgraph(PLAN.op_names), SHAPE)


def noted() -> Trace:
    """A0 on SM 0 and 1; B0p beside and behind it on SM 0 and 2; B0f behind B0p on SM 2, in a day's 10 µs."""
    base, notes = 10**15, dict[str, list[tuple[int, int, int, int, int]]]()
    notes["A0"] = [(0, 0, 100, 50, 2000), (1, 500, 600, 550, 1500)]
    notes["B0p"] = [(0, 1000, 2400, 1100, 6000), (2, 1000, 2400, 1200, 5000), (0, 2100, 2500, 2200, 7000)]
    notes["B0f"] = [(2, 5500, 7400, 0, 10_000)]
    rows: Notes = {}
    for name, ctas in notes.items():
        rows[name] = [
            [sm, base + begin, base + ready, trigger and base + trigger, base + end]
            for sm, begin, ready, trigger, end in ctas
        ]
    answer = json.loads(json.dumps(reply({"plain": [9.0, 9.1] * 4, "stamped": [9.4, 9.5] * 4}, [rows] * 3)))
    return trace_of(PLAN, LOWERED, H200.name, H200.sms, answer)


def events(trace: Trace, phase: str, group: int | None = None) -> list[dict[str, Any]]:
    found = json.loads(chrome_json(trace))["traceEvents"]
    return [event for event in found if event["ph"] == phase and group in (None, event["pid"])]


def test_it_names_the_critical_path_and_every_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, *QUESTION)
    assert "NVIDIA H200 simulated" in out
    assert "critical path A0 → B0p → B0f → D0 → D2" in out
    for name in LOWERED.kernels:
        assert f"\n{name.name} " in out
    assert "as modelled" in out.splitlines()[-1]


def test_its_document_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, *QUESTION, "--json")[0])
    steps = found["path"]["steps"]
    assert sum(step["after_us"] + step["held_us"] for step in steps) == pytest.approx(found["path"]["length_us"])
    assert found["simulated"] is True
    assert found["noting_costs"]["us"] == 0
    assert {kernel["name"] for kernel in found["kernels"]} == set(found["path"]["slack_us"])
    assert all(slack >= 0 for slack in found["path"]["slack_us"].values())
    assert 0 < found["mean_sms"]["working"] < found["mean_sms"]["active"] <= found["sms"]


def test_what_noting_costs_is_said_of_the_same_rounds() -> None:
    words = cost_words(noted())
    assert "span 9.05 µs as it is, 9.45 with notes, in the same rounds: noting costs 0.40 µs" in words
    assert "4.4 %" in words


def test_a_measured_trace_is_printed_with_its_agreement(capsys: pytest.CaptureFixture[str]) -> None:
    print_trace(noted(), PLAN)
    out = capsys.readouterr().out
    assert "medians over 3 layers" in out
    assert "100 % of the layers have this path" in out
    assert "simulated" not in out


def test_the_timeline_has_waits_before_works_and_fits_its_width() -> None:
    for width in (40, 80, 200):
        lines = timeline(noted(), width)
        assert max(map(len, lines)) <= width
        rows = {line.split()[-2]: line for line in lines[1:-1] if "●" in line}
        assert set(rows) == {"A0", "B0p", "B0f"}
        assert rows["B0p"].index(WAITS) < rows["B0p"].index(WORKS)
        assert rows["B0p"].rindex(WAITS) < rows["B0p"].index(WORKS)
        assert len(rows["B0f"]) == max(map(len, rows.values()))


def test_an_sm_counts_once_however_many_ctas_it_holds() -> None:
    steps = sm_activity(noted())
    at = {step.time: (step.active, step.working) for step in steps}
    assert at[1.0] == (3, 2)  # SM 0 twice, 1, 2; only A0's CTAs are behind their wait
    assert at[2.0] == (2, 0)
    assert at[2.4] == (2, 2)
    assert steps[-1] == Activity(10.0, 0, 0)
    active, working = mean(steps)
    assert active == pytest.approx((0.5 + 0.5 * 2 + 0.5 * 3 + 3.5 * 2 + 0.5 + 1.5 * 2 + 3) / 10)
    assert working < active


def test_arrows_of_the_file_lead_from_a_source_to_what_it_let_happen() -> None:
    trace = noted()
    leaving, entering = events(trace, "s"), events(trace, "f")
    assert [event["id"] for event in leaving] == [event["id"] for event in entering]
    assert len(leaving) == 2 * len(trace.edges)  # every edge here is programmatic: begin, and wait
    for first, second in zip(leaving, entering, strict=True):
        assert first["ts"] < second["ts"]
        assert first["name"] == second["name"]
    slices = events(trace, "X", KERNELS)
    for event in (*leaving, *entering):
        own = [each for each in slices if each["tid"] == event["tid"]]
        assert any(each["ts"] <= event["ts"] <= each["ts"] + each["dur"] for each in own)


def test_tracks_of_an_sm_hold_one_cta_at_a_time_and_every_cta_is_there() -> None:
    trace = noted()
    tracks = defaultdict(list)
    for event in events(trace, "X", SMS):
        tracks[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert sum(map(len, tracks.values())) == 2 * sum(kernel.grid for kernel in trace.kernels)
    assert len(tracks) == 4  # SM 0 holds two at a time
    for spans in tracks.values():
        for (_, end), (begin, _) in pairwise(sorted(spans)):
            assert end <= begin + 1e-9
    named = {event["tid"] for event in events(trace, "M", SMS) if event["name"] == "thread_name"}
    assert named == set(tracks)


def test_the_path_of_the_file_ends_with_the_layer() -> None:
    trace = noted()
    slices = events(trace, "X", PATH)
    assert [event["name"] for event in slices] == list(trace.path.kernels)
    assert slices[-1]["ts"] + slices[-1]["dur"] == pytest.approx(trace.path.length_us)
    last = events(trace, "C")[-1]
    assert last["args"] == {"working": 0, "waiting": 0}


def test_files_are_written_and_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out, png = tmp_path / "layer.json", tmp_path / "layer.png"
    pytest.importorskip("matplotlib")
    printed, _ = run(capsys, *QUESTION, "--out", str(out), "--png", str(png))
    assert f"written: {out}" in printed
    assert png.read_bytes().startswith(b"\x89PNG")
    assert json.loads(out.read_text())["otherData"]["simulated"] is True


def test_the_picture_is_of_every_cta(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure

    from mktune.cli import timeline_png

    trace = noted()
    axes = Figure().subplots()
    timeline_png._rows(axes, trace)
    drawn = [each for each in axes.collections if isinstance(each, PolyCollection)]
    assert [len(each.get_paths()) for each in drawn] == [k.grid for k in trace.kernels for _ in ("waits", "works")]
    timeline_png.draw_png(trace, "a title with $ and _ and µs", tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 10_000


def test_without_matplotlib_one_line_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    out, err = run(capsys, *QUESTION, "--png", str(tmp_path / "x.png"), code=3)
    assert (out, err) == ("", "mktune: error: --png needs matplotlib: pip install 'mktune[trace]'\n")
    run(capsys, *QUESTION, "--out", str(tmp_path / "x.json"))


@pytest.mark.parametrize("place", ["absent/x.json", "", ".", "x" * 300], ids=["absent", "empty", "folder", "too-long"])
def test_a_file_that_cannot_be_written_is_said_before_anything_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    out, err = run(capsys, *QUESTION, "--out", place, code=2)
    assert out == ""
    assert "cannot write" in err
    assert "simulating" not in err


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_terminal_gets_it_at_its_width(columns: int) -> None:
    text = shown([*QUESTION], columns)
    lines = text.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= max(columns, 64)  # a plan's id is whole
    assert "…" not in text
    row = next(line for line in lines if line.startswith("● D2 "))
    assert columns - 8 <= len(row.rstrip()) <= columns
    assert "D0 room" in text
