"""`leaderboard --shipped`: the plans that come with mktune, without any store."""

from __future__ import annotations

import json

import pytest
from command_line import run

from mktune.gpu_name import normalise_gpu
from mktune.jit.fingerprint import Sources, kernels_fingerprint
from mktune.runtime.sources import bundled_winners


def test_every_shipped_plan_has_a_row_with_its_built_in_plans(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(run(capsys, "leaderboard", "--shipped", "--json")[0])
    rows = {row["plan_id"]: row for row in document["winners"]}
    for winner in bundled_winners():
        row = rows[winner.plan.plan_id]
        assert (row["m"], row["kv"]) == (winner.plan.shape.m, winner.plan.shape.kv)
        assert row["span_us"] == winner.measurement.span_us
        assert row["builtins_us"] == dict(winner.builtins)
    table, _ = run(capsys, "leaderboard", "glm52_attention_prefix", "--shipped", "--m", "16")
    assert "serial+pdl" in table
    assert "16  65536" in table
    assert "64  65536" not in table


def test_shipped_plans_were_tuned_on_the_kernels_of_this_tree() -> None:
    winners = bundled_winners()
    assert winners
    for winner in winners:
        assert winner.fingerprint.kernels == kernels_fingerprint(*Sources.of(winner.plan))
        assert not winner.measurement.policy.simulated


def test_every_shape_has_a_plan_that_needs_no_package() -> None:
    """What DeepGEMM's templates win has, beside it, the best plan without them."""
    winners = bundled_winners()
    plain = {winner.plan.shape for winner in winners if not Sources.of(winner.plan).provided}
    assert plain == {winner.plan.shape for winner in winners}


@pytest.mark.parametrize("option", [["--watch"], ["--study", "s"], ["--store", "x.db"]])
def test_what_ships_is_in_no_store(capsys: pytest.CaptureFixture[str], option: list[str]) -> None:
    assert "reads no store" in run(capsys, "leaderboard", "--shipped", *option, code=2)[1]


def test_filters_that_match_nothing_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no plan that ships" in run(capsys, "leaderboard", "--shipped", "--m", "3", code=5)[1]


def test_a_gpu_is_named_as_everywhere_else(capsys: pytest.CaptureFixture[str]) -> None:
    every = run(capsys, "leaderboard", "--shipped", "--json")[0]
    assert run(capsys, "leaderboard", "--shipped", "--gpu", "h200", "--json")[0] == every
    assert "no plan that ships" in run(capsys, "leaderboard", "--shipped", "--gpu", "H200 NVL", code=5)[1]


def test_a_look_up_says_which_rows_it_serves_and_takes_the_name_that_tables_print(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shape = ("glm52_attention_prefix", "--m", "64", "--kv", "8192", "--gpu")
    out, _ = run(capsys, "lookup", *shape, "NVIDIA H200")
    assert "M 40, 48, 56, 64 with 8 tokens per request, KV 8–8192" in out
    assert normalise_gpu("NVIDIA H200 (simulated)") == normalise_gpu("h200")
