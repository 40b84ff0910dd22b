"""Studies: made once, gone on with only for the same problem, and names that are stored as they are or refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from stored_values import B300, H200, SHAPE, WORKLOAD, make_study, make_trial

from mktune.errors import InputError, StoreError
from mktune.shape import Shape
from mktune.store import Store


def test_a_study_reads_back_as_it_was_made(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.db") as store:
        made = make_study(store, seed=2**40)
    with Store.open(tmp_path / "x.db", write=False) as store:
        assert store.studies() == [made]
        assert store.find_study("s") == made
    assert made.problem.workload == WORKLOAD
    assert made.problem.ops == ("A0", "B0")
    assert made.problem.shape == SHAPE
    assert made.problem.device == H200
    assert (made.sampler, made.seed, made.invalid, made.duplicate) == ("tpe", 2**40, 0, 0)


def test_a_taken_name_asks_for_resume(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.db") as store:
        make_study(store)
        with pytest.raises(InputError, match="--resume"):
            make_study(store)


def test_resume_of_nothing_is_refused(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.db") as store:
        with pytest.raises(InputError, match="no study 's' to resume"):
            make_study(store, resume=True)
        assert store.studies() == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"workload": "other"}, "workload"),
        ({"contract": 2}, "contract"),
        ({"ops": ("A0",)}, "ops"),
        ({"shape": Shape.from_m(8, 8192)}, "shape"),
        ({"shape": Shape(4, 4, 8192)}, "shape"),
        ({"device": B300}, "GPU"),
        ({"device": replace(H200, sms=66)}, "GPU"),
        ({"backend": "sim"}, "backend"),
        ({"build": "b" * 64}, "build"),
    ],
    ids=str,
)
def test_resume_of_another_problem_is_refused(tmp_path: Path, change: dict[str, object], named: str) -> None:
    with Store.open(tmp_path / "x.db") as store:
        make_study(store, build="a" * 64)
        with pytest.raises(InputError, match=named):
            make_study(store, resume=True, **({"build": "a" * 64} | change))


@pytest.mark.parametrize(
    "change",
    [
        {"ops": ("B0", "A0")},
        {"device": replace(H200, uuid="GPU-2", driver="590.1")},
        {"sampler": "random"},
        {"seed": 8},
    ],
    ids=str,
)
def test_resume_goes_on_where_only_the_search_differs(tmp_path: Path, change: dict[str, object]) -> None:
    with Store.open(tmp_path / "x.db") as store:
        first = make_study(store)
        store.add_trial(first, make_trial(0))
        again = make_study(store, resume=True, **change)
        assert again.id == first.id
        assert len(store.trials(again)) == 1


def test_counts_add_up(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.db") as store:
        study = make_study(store)
        store.add_counts(study, invalid=3, duplicate=1)
        store.add_counts(study, invalid=2)
        found = store.find_study("s")
    assert (found.invalid, found.duplicate) == (5, 1)


@pytest.mark.parametrize(
    "name",
    [
        "x'; DROP TABLE mktune_plans;--",
        "a/../../b",
        "-rf",
        '"; --',
        "🚀 測試 ü",
        "100%#?",
        " padded ",
        "%s {0}",
        "n" * 200,
    ],
)
def test_odd_names_are_stored_verbatim(tmp_path: Path, name: str) -> None:
    with Store.open(tmp_path / "x.db") as store:
        make_study(store, "other")
        study = make_study(store, name)
        store.add_trial(study, make_trial(0))
        assert store.find_study(name).name == name
        assert [found.name for found in store.studies()] == ["other", name]
        assert len(store.leaderboard(study=name)) == 1
        assert store.winners() == []
    assert [path.name for path in tmp_path.iterdir()] == ["x.db"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "not empty"),
        ("  ", "not empty"),
        ("n" * 201, "200"),
        ("n" * 10_000, "200"),
        ("a\0b", r"x00"),
        ("a\nb", r"\\n"),
        ("a\x1b[31m", r"x1b"),
        ("\ud800", "ud800"),
    ],
    ids=lambda value: repr(value[:6]),
)
def test_names_that_cannot_be_stored_are_refused_with_a_reason(tmp_path: Path, name: str, reason: str) -> None:
    with Store.open(tmp_path / "x.db") as store:
        with pytest.raises(InputError, match=reason):
            make_study(store, name)
        assert store.studies() == []


def test_an_unknown_study_is_named(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.db") as store, pytest.raises(InputError, match="no study 'nope'"):
        store.find_study("nope")


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "x.db")
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.studies()


def test_resume_that_may_start_makes_the_study_once(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.db") as store:
        first = make_study(store, resume=True, start=True)
        assert make_study(store, resume=True, start=True) == first
        assert store.studies() == [first]


def test_of_threads_that_ask_for_one_study_one_makes_it_and_the_others_go_on(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.db") as store, ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: make_study(store, resume=True, start=True), range(16)))
        assert len(set(made)) == 1
        assert store.studies() == made[:1]


@pytest.mark.parametrize("name", ["\udcff", "a\0b"])
def test_a_name_that_no_database_holds_is_the_name_of_no_study(tmp_path: Path, name: str) -> None:
    with Store.open(tmp_path / "x.db") as store:
        study = make_study(store)
        assert store.leaderboard(study=name) == []
        with pytest.raises(InputError, match="has no study"):
            store.find_study(name)
        with pytest.raises(InputError, match="there is no study"):
            store.join(name, device=study.problem.device, build="")
