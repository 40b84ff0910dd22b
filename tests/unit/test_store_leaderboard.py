"""The leaderboard: best span of each plan, ranked within its problem, speed-up over the built-in serial plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from stored_values import B300, SHAPE, WORKLOAD, make_plan, make_study, make_trial, make_winner

from mktune.shape import Shape
from mktune.store import Store
from mktune.trial import Outcome, Status

SERIAL, FAST, MIDDLE = make_plan(stages=2), make_plan(stages=3), make_plan(stages=4)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store.open(tmp_path / "x.db")
    study = make_study(opened)
    opened.add_trial(study, make_trial(0, SERIAL, 12.0, "builtin:serial"))
    opened.add_trial(study, make_trial(1, MIDDLE, 9.0))
    opened.add_trial(study, make_trial(2, FAST, 8.5))
    opened.add_trial(study, make_trial(3, FAST, 8.0, "random"))
    pruned = make_trial(4, make_plan(stages=5), 1.0)
    opened.add_trial(study, replace(pruned, outcome=replace(pruned.outcome, status=Status.PRUNED)))
    opened.add_trial(study, replace(make_trial(5), outcome=Outcome(Status.HANG, "5 s")))
    return opened


def test_plans_rank_by_their_best_span(store: Store) -> None:
    rows = store.leaderboard()
    assert [(row.rank, row.plan, row.span_us) for row in rows] == [(1, FAST, 8.0), (2, MIDDLE, 9.0), (3, SERIAL, 12.0)]
    assert [row.speedup for row in rows] == pytest.approx([1.5, 12 / 9, 1.0])
    assert [row.builtin for row in rows] == ["", "", "serial"]
    assert [(row.source, row.number) for row in rows[:2]] == [("random", 3), ("tpe", 1)]
    assert rows[0].low_us < rows[0].span_us < rows[0].high_us
    assert {(row.workload, row.ops, row.shape, row.gpu, row.simulated) for row in rows} == {
        (WORKLOAD, ("A0", "B0"), SHAPE, "NVIDIA H200", False)
    }


def test_limit_and_filters(store: Store) -> None:
    assert [row.rank for row in store.leaderboard(limit=2)] == [1, 2]
    assert len(store.leaderboard(workload=WORKLOAD, ops=("B0", "A0"), shape=SHAPE, gpu="h200", study="s")) == 3
    for nothing in ({"workload": "x"}, {"ops": ("A0",)}, {"gpu": "H20"}, {"study": "x"}, {"simulated": True}):
        assert store.leaderboard(**nothing) == []


def test_the_served_winner_is_marked(store: Store) -> None:
    store.put_winner(None, make_winner(MIDDLE, 9.0))
    assert [row.winner for row in store.leaderboard()] == [False, True, False]


def test_a_winner_that_ran_in_no_trial_has_its_place_by_the_span_of_its_promotion(store: Store) -> None:
    structure = make_plan(stages=7)
    store.put_winner(store.find_study("s"), make_winner(structure, 8.7))
    rows = store.leaderboard()
    assert [(row.rank, row.plan, row.winner) for row in rows][:2] == [(1, FAST, False), (2, structure, True)]
    assert (rows[1].number, rows[1].study, rows[1].source, rows[1].builtin) == (None, "s", "promotion", "")
    assert rows[1].speedup == pytest.approx(1 / 0.8)
    assert rows[1].evidence == make_winner(structure, 8.7)
    assert len(store.leaderboard(study="s")) == 4
    make_study(store, "other")
    assert store.leaderboard(study="other") == []


def test_a_limit_never_hides_the_winner(store: Store) -> None:
    store.put_winner(None, make_winner(SERIAL, 12.0))
    assert [(row.rank, row.winner) for row in store.leaderboard(limit=1)] == [(1, False), (3, True)]


def test_winners_without_any_trial_are_listed(tmp_path: Path) -> None:
    with Store.open(tmp_path / "imported.db") as opened:
        opened.put_winner(None, make_winner(SERIAL, 9.0, kept_baseline=True, baseline="serial"))
        assert [(row.rank, row.winner, row.builtin, row.study) for row in opened.leaderboard()] == [
            (1, True, "serial", "")
        ]


def test_simulated_spans_never_rank_among_measured_ones(store: Store) -> None:
    study = make_study(store, "sim", backend="sim")
    store.add_trial(study, make_trial(0, SERIAL, 4.0, "builtin:serial", "sim"))
    store.add_trial(study, make_trial(1, FAST, 2.0, "tpe", "sim"))
    rows = store.leaderboard()
    assert [(row.simulated, row.rank, row.span_us) for row in rows] == [
        (False, 1, 8.0),
        (False, 2, 9.0),
        (False, 3, 12.0),
        (True, 1, 2.0),
        (True, 2, 4.0),
    ]
    assert rows[3].speedup == pytest.approx(2.0)


def test_other_shapes_and_gpus_are_other_problems(store: Store) -> None:
    small = make_study(store, "small", shape=Shape.from_m(8, 8192))
    store.add_trial(small, make_trial(0, make_plan(m=8), 3.0))
    other = make_study(store, "b300", device=B300)
    store.add_trial(other, make_trial(0, FAST, 5.0))
    rows = store.leaderboard()
    assert [row.rank for row in rows] == [1, 1, 1, 2, 3]
    assert [row.speedup for row in rows if row.study in ("small", "b300")] == [None, None]


def test_a_study_without_serial_borrows_that_of_the_same_problem(store: Store) -> None:
    later = make_study(store, "later")
    store.add_trial(later, make_trial(0, make_plan(stages=6), 6.0))
    assert store.leaderboard(limit=1)[0].speedup == pytest.approx(2.0)
    store.add_trial(later, make_trial(1, SERIAL, 15.0, "builtin:serial"))
    assert store.leaderboard(limit=1)[0].speedup == pytest.approx(2.5)  # its own first, although it is slower
