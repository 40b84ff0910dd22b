"""A stored plan whose bits repeat: what takes its place and is not known to repeat says so, and --deterministic keeps
it."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from stored_values import make_plan, make_winner
from test_import import bundle, own, stored

from mktune.backends.sim import SimBackend
from mktune.store import Merged, Store, read_bundle
from mktune.trial import Winner

YES = (("batch invariant", "yes"), ("deterministic", "yes"))
NO = (("batch invariant", "yes"), ("deterministic", "no: 2 of 540 replays differ in bits within tolerance"))


def repeating(span_us: float = 10.0, stages: int = 2, **changes: object) -> Winner:
    return own(span_us=span_us, stages=stages, extra=YES, **changes)


def other(span_us: float = 9.0, stages: int = 4, **changes: object) -> Winner:
    return own(span_us=span_us, stages=stages, **{"extra": NO} | changes)


def said(err: str, winner: Winner, replaced: Winner) -> bool:
    """Whether stderr is the one line that `winner` takes the place of `replaced`, whose bits repeat."""
    where = "mktune: M 16 (2 × 8), KV 8192, NVIDIA H200: "
    names = f"{winner.plan.short_id} takes the place of {replaced.plan.short_id}, whose bits repeat"
    return err == f"{where}{names}; its own are not known to (--deterministic keeps what repeats)\n"


def plans_of(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text)["plans"]
    return found


def test_a_store_tells_what_a_winner_takes_the_place_of(tmp_path: Path) -> None:
    slow, fast = repeating(11.0), other(9.0)
    with Store.open(tmp_path / "x.db") as store:
        assert store.put_winner(None, slow) == Merged(True)
        assert store.put_winner(None, fast) == Merged(True, replaced=slow)
        assert store.put_winner(None, slow) == Merged(False)
        assert not store.put_winner(None, slow)
        assert store.put_winner(None, slow, repeats=True) == Merged(True, replaced=fast)


def test_winners_that_are_merged_tell_it_too_and_what_repeats_may_come_first(tmp_path: Path) -> None:
    """In whatever order they come: the fastest whose bits repeat is served."""
    slow, middle, fast = repeating(11.0), repeating(10.0, stages=3), other(9.0)
    for number, order in enumerate(permutations((slow, middle, fast))):
        with Store.open(tmp_path / f"{number}.db") as store:
            for winner in order:
                store.merge_winners([winner], lambda _: True, repeats=True)
            assert store.winners() == [middle]
            assert len(store.winners(history=True)) == 3
            assert store.merge_winners([fast], lambda _: True) == [Merged(False, changed=False)]
    with Store.open(tmp_path / "x.db") as store:
        assert store.merge_winners([slow, fast], lambda _: True) == [Merged(True), Merged(True, replaced=slow)]
        assert store.merge_winners([slow], lambda _: True) == [Merged(False, changed=False)]
        assert store.merge_winners([slow], lambda _: True, repeats=True) == [Merged(True, replaced=fast)]
        assert store.merge_winners([slow], lambda _: True, repeats=True) == [Merged(True, changed=False)]
        assert store.winners() == [slow]
        assert sorted(store.winners(history=True), key=repr) == sorted([fast, slow], key=repr)


def test_a_record_that_says_of_a_plan_that_it_repeats_comes_before_a_faster_one(tmp_path: Path) -> None:
    faster, said_to = own(span_us=9.0, stages=2), repeating(10.0, stages=2)
    assert faster.plan == said_to.plan
    for repeats in (False, True):
        with Store.open(tmp_path / f"{repeats}.db") as store:
            store.merge_winners([faster], lambda _: True)
            store.merge_winners([said_to], lambda _: True, repeats=repeats)
            assert store.winners(history=True) == [said_to if repeats else faster]
            store.merge_winners([faster], lambda _: True, repeats=repeats)
            assert store.winners() == [said_to if repeats else faster]


def test_a_plan_of_this_build_keeps_its_place_against_one_of_another_that_repeats(tmp_path: Path) -> None:
    """That one could not be served."""
    mine, foreign = other(), repeating(kernels="1" * 64)
    with Store.open(tmp_path / "x.db") as store:
        store.merge_winners([mine], lambda _: True)
        (kept,) = store.merge_winners([foreign], lambda winner: winner == mine, repeats=True)
        assert kept == Merged(False)
        assert store.winners() == [mine]


def test_an_import_says_which_repeating_plan_it_displaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = str(tmp_path / "x.db")
    slow, fast = repeating(), other()
    first, second = bundle(tmp_path / "a.json", slow), bundle(tmp_path / "b.json", fast)
    text, err = run(capsys, "import", first, "--store", url, "--json")
    assert (plans_of(text)[0]["repeats"], plans_of(text)[0]["replaces"], err) == (True, None, "")
    text, err = run(capsys, "import", second, "--store", url, "--json")
    assert plans_of(text) == [
        {
            "plan_id": fast.plan.plan_id,
            "served": True,
            "unchanged": False,
            "repeats": False,
            "replaces": {"plan_id": slow.plan.plan_id, "repeats": True},
        }
    ]
    assert said(err, fast, slow)
    assert stored(url) == [fast]


def test_a_new_record_of_the_same_plan_that_loses_its_bits_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was found in one validation need not be found in the next."""
    url, plan = str(tmp_path / "x.db"), repeating().plan.short_id
    run(capsys, "import", bundle(tmp_path / "a.json", repeating()), "--store", url)
    again = own(span_us=9.0, stages=2, extra=NO)
    _, err = run(capsys, "import", bundle(tmp_path / "b.json", again), "--store", url)
    known = f"{plan} was known to repeat its bits, and by its new record is not (--deterministic keeps what repeats)"
    assert err == f"mktune: M 16 (2 × 8), KV 8192, NVIDIA H200: {known}\n"
    assert stored(url) == [again]


@pytest.mark.parametrize(
    ("before", "after"),
    [(repeating(), repeating(9.0, stages=4)), (other(), other(8.0, stages=6)), (other(), repeating(8.0))],
)
def test_nothing_is_said_where_no_bits_are_lost(
    before: Winner, after: Winner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = str(tmp_path / "x.db")
    for winner in (before, after):
        _, err = run(capsys, "import", bundle(tmp_path / "a.json", winner), "--store", url)
        assert err == ""
    assert stored(url) == [after]


def test_an_import_of_what_repeats_keeps_such_a_plan_and_lists_what_it_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = str(tmp_path / "x.db")
    slow, fast = repeating(), other()
    run(capsys, "import", bundle(tmp_path / "a.json", slow), "--store", url)
    both = bundle(tmp_path / "b.json", fast, repeating(12.0, m=8))
    out, err = run(capsys, "import", both, "--deterministic", "--store", url)
    left = f"left out: {fast.plan.short_id}, M 16 (2 × 8), KV 8192, NVIDIA H200: not known to repeat its bits"
    assert out.splitlines()[1] == left
    assert err == ""
    assert stored(url, history=True) == [repeating(12.0, m=8), slow]
    _, err = run(
        capsys, "import", bundle(tmp_path / "c.json", fast), "--deterministic", "--store", url, "--json", code=5
    )
    assert err == "mktune: error: nothing was imported; 1 reason listed\n"


def test_an_import_of_what_repeats_takes_the_place_of_what_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A faster one, for which a plain import keeps the repeating plan as history."""
    url, file = str(tmp_path / "x.db"), bundle(tmp_path / "a.json", repeating())
    run(capsys, "import", bundle(tmp_path / "b.json", other()), "--store", url)
    out, _ = run(capsys, "import", file, "--store", url)
    assert "kept as history" in out
    out, err = run(capsys, "import", file, "--deterministic", "--store", url)
    assert "now served" in out
    assert err == ""
    assert stored(url) == [repeating()]


def test_an_export_into_a_file_says_which_repeating_plan_it_displaced_and_may_keep_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow, fast, out = repeating(), other(), tmp_path / "plans.json"
    with Store.open(tmp_path / "fast.db") as store:
        store.put_winner(None, fast)
        store.put_winner(None, repeating(7.0, m=8))
    with Store.open(tmp_path / "slow.db") as store:
        store.put_winner(None, slow)
    into = ("--out", str(out), "--merge", "--json")
    run(capsys, "export", "--store", str(tmp_path / "slow.db"), *into)
    text, err = run(capsys, "export", "--store", str(tmp_path / "fast.db"), "--deterministic", *into)
    assert (json.loads(text)["holds"], json.loads(text)["replaced"], err) == (2, [], "")
    assert read_bundle(out) == [repeating(7.0, m=8), slow]
    text, err = run(capsys, "export", "--store", str(tmp_path / "fast.db"), *into)
    lost = {"plan_id": slow.plan.plan_id, "repeats": True}
    assert json.loads(text)["replaced"] == [{"plan_id": fast.plan.plan_id, "repeats": False, "replaces": lost}]
    assert said(err, fast, slow)
    text, err = run(capsys, "export", "--store", str(tmp_path / "slow.db"), "--deterministic", *into)
    assert err == ""
    assert read_bundle(out) == [repeating(7.0, m=8), slow]


def test_an_export_of_what_repeats_where_nothing_does_is_not_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store.open(tmp_path / "x.db") as store:
        store.put_winner(None, other())
    out, err = run(capsys, "export", "--deterministic", "--store", str(tmp_path / "x.db"), code=5)
    assert out == ""
    assert "of 1 winner none is known to repeat its bits" in err
    assert err.count("\n") == 1


def test_a_search_says_which_repeating_plan_it_displaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = str(tmp_path / "x.db")
    device = SimBackend().device
    slow = make_winner(make_plan(stages=2), 99.0, backend="sim", device=device, extra=YES)
    with Store.open(url) as store:
        store.put_winner(None, slow)
    question = ["tune", slow.plan.workload, "--ops", "A0,B0", "--m", "16", "--kv", "8192", "--backend", "sim"]
    out, err = run(capsys, *question, "--trials", "4", "--sampler", "random", "--store", url, "--json")
    (cell,) = json.loads(out)["cells"]
    assert (cell["stored"], cell["repeats"]) == (True, False)
    assert cell["replaces"] == {"plan_id": slow.plan.plan_id, "repeats": True}
    assert said(err.splitlines(keepends=True)[-1], stored(url)[0], slow)
    out, err = run(capsys, *question, "--trials", "4", "--sampler", "random", "--store", url)
    assert "takes the place" not in err
