"""Assert-hit mode names the field of the key that differs; pin mode gives the plans of some ids and no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stored_values import B300, H200, WORKLOAD, make_plan
from test_book import ask, plan_of, reason, served

from mktune.errors import InputError, PlanNotFound
from mktune.jit.fingerprint import kernels_fingerprint
from mktune.plan import Plan
from mktune.runtime import Hit, Miss, PlanBook
from mktune.store import Store, write_bundle
from mktune.trial import Winner

STORED = served()


def _asserted(winners: list[Winner], **asked: Any) -> str:
    """What assert-hit mode says."""
    with pytest.raises(PlanNotFound) as caught:
        ask(PlanBook.of(winners, assert_hit=True), **asked)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.reason == ask(PlanBook.of(winners), **asked).reason
    return message


@pytest.mark.parametrize(
    ("winner", "asked", "words"),
    [
        (STORED, {"m": 24}, "m: asked 24, stored 16"),
        (STORED, {"m": 12, "tokens_per_request": 4}, "tokens_per_request: asked 4, stored 8; m: asked 12, stored 16"),
        (STORED, {"kv": 16384}, "kv: asked 16384, stored 1–8192"),
        (STORED, {"gpu": "NVIDIA H20"}, "gpu: asked NVIDIA H20, stored NVIDIA H200"),
        (STORED, {"gpu": replace(H200, sms=114)}, "sms: asked 114, stored 132"),
        (STORED, {"gpu": replace(H200, arch="sm_100a")}, "compute_capability: asked 10.0, stored 9.0"),
        (STORED, {"ops": ("A0",)}, "ops: asked A0, stored A0,B0"),
        (served(replace(make_plan(), contract=2)), {}, "contract: asked 1, stored 2"),
        (served(replace(make_plan(), scale_format="ue8m0")), {}, "scale_format: asked fp32, stored ue8m0"),
        (served(backend="sim"), {}, "simulated: asked measured, stored simulated"),
        (served(kernels="f" * 64), {}, "kernels ffffffffffff (here "),
        (STORED, {"gpu": replace(H200, driver="590.1")}, "driver 580.95 (here 590.1)"),
        (STORED, {"gpu": replace(H200, cuda="13.1")}, "CUDA 13.0 (here 13.1)"),
        (STORED, {"gpu": replace(H200, smem_per_block=1024)}, "smem: B0: "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_assert_hit_names_the_field_that_differs(winner: Winner, asked: dict[str, Any], words: str) -> None:
    message = _asserted([winner], **asked)
    assert f"nearest is plan {winner.plan.short_id}" in message
    assert message.partition("differs in ")[2].startswith(words)
    assert message.endswith("(MKTUNE_ASSERT_HIT)")


def test_the_nearest_plan_is_the_one_that_agrees_longest() -> None:
    others = [served(device=B300), served(make_plan(m=64, m_range=(33, 64))), served(make_plan(m=32, m_range=(17, 32)))]
    message = _asserted(others, m=40, kv=16384)
    assert others[1].plan.short_id in message
    assert message.partition("differs in ")[2].startswith("kv: asked 16384, stored 1–8192 (")


def test_an_empty_book_says_so() -> None:
    assert "no plan to compare with" in _asserted([])
    found = PlanBook.of([STORED], assert_hit=True)
    with pytest.raises(PlanNotFound, match="workload: asked other, stored glm52_attention_prefix"):
        found.lookup("other", m=16, kv=8192, gpu="H200")


def test_a_hit_is_the_same_with_and_without_it() -> None:
    assert ask(PlanBook.of([STORED], assert_hit=True)) == ask(PlanBook.of([STORED]))


@pytest.mark.parametrize(("value", "raises"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_the_variable_turns_it_on(monkeypatch: pytest.MonkeyPatch, value: str, raises: bool) -> None:
    monkeypatch.setenv("MKTUNE_ASSERT_HIT", value)
    book = PlanBook.of([STORED])
    assert ask(book)
    if raises:
        with pytest.raises(PlanNotFound, match="m: asked 24"):
            ask(book, m=24)
    else:
        assert reason(ask(book, m=24)) == "shape"
    assert reason(ask(PlanBook.of([STORED], assert_hit=False), m=24)) == "shape"


def test_every_tuned_cell_is_a_hit_of_its_own_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a search stores is what a look-up asks for: the two keys are made in the same way."""
    monkeypatch.setenv("MKTUNE_ASSERT_HIT", "1")
    winners = [served(make_plan(m, kv)) for m in (1, 2, 8, 12, 16, 256) for kv in (1024, 8192, 131072)]
    with Store.open(tmp_path / "x.db") as store:
        for winner in winners:
            store.put_winner(None, winner)
    write_bundle(tmp_path / "x.json", winners)
    for name in ("x.db", "x.json"):
        book = PlanBook.open(tmp_path / name)
        for winner in winners:
            for gpu in ("NVIDIA H200", H200):
                found = ask(book, m=winner.plan.shape.m, kv=winner.plan.shape.kv, gpu=gpu)
                assert isinstance(found, Hit)
                assert (found.plan.plan_id, found.shape) == (winner.plan.plan_id, winner.plan.shape)


NORM = make_plan(ops=("A0",))
BOOK = [served(), served(make_plan(stages=9), 1.0), served(make_plan(m=32, m_range=(9, 32)))]


def _pinned(plan: Plan, **more: Any) -> PlanBook:
    return PlanBook.of(BOOK, pin=plan.plan_id, **more)


@pytest.mark.parametrize("winner", BOOK, ids=lambda winner: winner.plan.short_id)
def test_a_pinned_plan_is_given_whatever_else_would_be(winner: Winner) -> None:
    assert plan_of(ask(_pinned(winner.plan))) == winner.plan


def test_a_pin_may_be_the_beginning_of_an_id_and_several() -> None:
    first, second, third = (winner.plan for winner in BOOK)
    assert plan_of(ask(PlanBook.of(BOOK, pin=first.plan_id[:8].upper()))) == first
    book = PlanBook.of(BOOK, pin=[second.plan_id[:12], third.plan_id])
    assert plan_of(ask(book)) == second
    assert plan_of(ask(book, m=32)) == third


def test_a_pin_is_never_served_for_what_it_may_not_do() -> None:
    small = replace(H200, smem_per_block=1024)
    for asked, why in (({"m": 24}, "shape"), ({"gpu": "B300"}, "device"), ({"gpu": small}, "constraints")):
        found = ask(_pinned(BOOK[0].plan), **asked)
        assert reason(found) == why
        assert isinstance(found, Miss)
        assert found.message.startswith(f"pinned to {BOOK[0].plan.plan_id}: ")


def test_a_pin_that_is_not_there_misses_always() -> None:
    book = PlanBook.of(BOOK, pin="0123456789ab")
    assert reason(ask(book)) == "pin"
    assert len(book) == 0


def test_a_pinned_plan_is_served_in_another_build_and_says_so() -> None:
    other = served(make_plan(stages=5), kernels="f" * 64)
    book = PlanBook.of([*BOOK, other], pin=other.plan.plan_id)
    found = ask(book, gpu=replace(H200, driver="590.1"))
    assert isinstance(found, Hit)
    assert [text.split()[0] for text in found.differs] == ["kernels", "driver"]


def test_a_pinned_plan_of_fewer_ops_is_given() -> None:
    norm = served(NORM, kernels=kernels_fingerprint(WORKLOAD, ("A0",)))
    assert plan_of(ask(PlanBook.of([*BOOK, norm], pin=NORM.plan_id))) == NORM


@pytest.mark.parametrize("pin", ["", "abc", "xyz12345", "../../etc", "12345 678"])
def test_what_is_no_beginning_of_an_id_is_refused(pin: str) -> None:
    with pytest.raises(InputError, match="hexadecimal"):
        PlanBook.of(BOOK, pin=pin)


def test_the_beginning_of_several_ids_is_refused() -> None:
    plans: dict[str, Plan] = {}
    for kv in range(8, 5000):  # two ids with the same four first digits
        plan = make_plan(kv=kv)
        if (other := plans.setdefault(plan.plan_id[:4], plan)) is not plan:
            with pytest.raises(InputError, match="2 plans start with"):
                PlanBook.of([served(plan), served(other)], pin=plan.plan_id[:4])
            return
    pytest.fail("no two ids begin alike")


@pytest.mark.parametrize("name", ["x.db", "x.json"])
def test_the_variable_pins_a_book_that_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with Store.open(tmp_path / "x.db") as store:
        store.put_winner(None, BOOK[0])
        store.put_winner(None, BOOK[2])
    write_bundle(tmp_path / "x.json", [BOOK[0], BOOK[2]])
    assert plan_of(ask(PlanBook.open(tmp_path / name))) == BOOK[0].plan
    monkeypatch.setenv("MKTUNE_PIN", f" {BOOK[2].plan.short_id}, ")
    book = PlanBook.open(tmp_path / name)
    assert plan_of(ask(book)) == BOOK[2].plan
    assert plan_of(ask(book.refresh())) == BOOK[2].plan
    assert plan_of(ask(PlanBook.open(tmp_path / name, pin=()))) == BOOK[0].plan
