"""Samplers replayed on a recording: what counts as an evaluation, and that ours need fewer than chance does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mktune.cli import boundary
from mktune.search.comparison import Landscape, Replay, compare, replay, standing

RECORDING = Path(__file__).parents[1] / "recordings" / "model_m16_kv8192.jsonl.gz"


@pytest.fixture(scope="module")
def landscape() -> Landscape:
    return Landscape(RECORDING)


@pytest.mark.parametrize("name", ["random", "local", "trace_guided", "staged", "tpe"])
def test_losses_only_fall_and_a_seed_gives_the_same_search(name: str, landscape: Landscape) -> None:
    first = replay(landscape, name, 3, 30)
    assert replay(landscape, name, 3, 30).losses == first.losses
    assert len(first.losses) == 30
    known = [loss for loss in first.losses if loss != float("inf")]
    assert known == sorted(known, reverse=True)
    assert known[-1] >= 0
    assert first.ask_seconds > 0


def test_every_plan_is_evaluated_once_and_the_optimum_found_when_all_are(landscape: Landscape) -> None:
    whole = replay(landscape, "random", 0, 10_000)
    assert len(whole.losses) <= landscape.plans
    assert len(whole.losses) > 0.9 * landscape.plans
    assert whole.losses[-1] == pytest.approx(0.0, abs=1e-3)


def test_ops_measured_alone_count_as_evaluations(landscape: Landscape) -> None:
    staged = replay(landscape, "staged", 0, 40)
    alone = sum(loss == float("inf") for loss in staged.losses)
    assert alone == min(16, len(landscape.bench.alone(("D0",)).rows))


def test_a_standing_is_the_median_over_seeds() -> None:
    replays = [Replay("x", seed, (0.5, 0.04, end), 0.001) for seed, end in enumerate((0.03, 0.015, 0.0))]
    found = standing(replays)
    assert found.needed == {0.05: 2, 0.02: 3, 0.01: None}
    assert found.reached == {0.05: 3, 0.02: 2, 0.01: 1}
    assert found.median == (0.5, 0.04, 0.015)
    assert found.ask_ms == pytest.approx(1.0)


def test_local_steps_need_fewer_evaluations_than_chance() -> None:
    chance, local = compare(RECORDING, ["random", "local"], seeds=9, evaluations=60)
    assert local.needed[0.02] is not None
    assert chance.needed[0.02] is None or local.needed[0.02] <= chance.needed[0.02]
    assert sum(local.median) < sum(chance.median)


def test_the_command_gives_a_table_and_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare-samplers", str(RECORDING), "--samplers", "random,local", "--seeds", "2", "--evaluations", "15"]
    assert boundary.run([*command, "--processes", "1"]) == 0
    assert "within 2 %" in capsys.readouterr().out
    assert boundary.run([*command, "--processes", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["sampler"] for one in told["samplers"]] == ["random", "local"]
    assert len(told["samplers"][0]["loss"]["median"]) == 15


def test_the_picture_is_drawn_where_matplotlib_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "curves.png"
    command = ["compare-samplers", str(RECORDING), "--samplers", "random", "--seeds", "1", "--evaluations", "5"]
    assert boundary.run([*command, "--processes", "1", "--png", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_written_is_said_before_anything_is_replayed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = ["compare-samplers", str(RECORDING), "--seeds", "10000", "--png", str(tmp_path / "absent" / "x.png")]
    assert boundary.run(command) == 2
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["h200_m16_kv8192", "h200_m1_kv65536"])
def test_on_a_measured_landscape_local_steps_come_near_sooner_than_chance(name: str) -> None:
    """Far from the whole comparison of the README: what a change of a sampler that ruins it would fail."""
    measured = Landscape(RECORDING.parent / f"{name}.jsonl.gz")
    assert measured.backend.device.name == "NVIDIA H200"
    assert not measured.backend.header.policy.simulated
    assert measured.plans >= 3000
    local, chance = (
        standing([replay(measured, sampler, seed, 90) for seed in range(5)]).needed[0.05] or 91
        for sampler in ("local", "random")
    )
    assert local < 0.7 * chance
