"""Ranges: what a tuned plan claims, who answers between two tuned shapes, and that every hit is checked again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_values import H200, WORKLOAD, make_plan
from test_book import ask, plan_of, reason, served

from mktune.device import Device
from mktune.errors import InputError
from mktune.graph.builtin import MODES
from mktune.graph.builtin import make_plan as built_in
from mktune.graph.workload import workload
from mktune.jit.fingerprint import kernels_fingerprint
from mktune.ops.base import Violation
from mktune.ops.paged_indexer_score import PagedIndexerScore
from mktune.plan import OpPlan, Plan
from mktune.runtime import Hit, Miss, PlanBook
from mktune.shape import MAX_KV, MAX_M, Shape
from mktune.trial import Winner
from mktune.validity import check

PREFIX = workload(WORKLOAD)
WHOLE = kernels_fingerprint(WORKLOAD)


def tuned(m: int, kv: int = 8192, tokens: int | None = None, **changes: Any) -> Winner:
    """A plan of the whole workload as a search stores it."""
    plan = built_in(PREFIX, None, Shape.from_m(m, kv, tokens), "sm_90a", "branches+pdl")
    return served(replace(plan, **changes), kernels=WHOLE)


def test_m_of_12_is_served_by_the_plan_tuned_at_16_and_built_for_12() -> None:
    book = PlanBook.of([tuned(16, tokens=4)])
    found = ask(book, m=12)
    assert isinstance(found, Hit)
    assert (found.plan.shape.m, found.shape) == (16, Shape(3, 4, 8192))
    assert [m for m in range(1, MAX_M + 1) if ask(book, m=m, tokens_per_request=4 if m % 4 == 0 else 1)] == [12, 16]


def test_a_miss_names_the_rows_that_are_served() -> None:
    book = PlanBook.of([tuned(16, tokens=4), tuned(64, tokens=8)])
    missed = ask(book, m=10, tokens_per_request=1)
    assert isinstance(missed, Miss)
    assert "M 12, 16 KV 4–8192 with 4; M 40, 48, 56, 64 KV 8–8192 with 8" in missed.message


@pytest.mark.parametrize("m", [24, 20, 32])
def test_between_two_tuned_shapes_the_larger_answers(m: int) -> None:
    book = PlanBook.of([tuned(16, tokens=4), tuned(32, tokens=4)])
    assert plan_of(ask(book, m=m, tokens_per_request=4)).shape.m == 32


def test_what_was_tuned_only_at_8_answers_for_few_others_and_for_no_single_row() -> None:
    book = PlanBook.of([tuned(8, tokens=1)])
    hits = [m for m in (1, 2, 3, 4, 5, 8, 9, 16, 2048, 2**30) if ask(book, m=m, tokens_per_request=1)]
    assert hits == [5, 8]


@given(st.data())
def test_a_hit_may_be_built_for_what_was_asked(data: st.DataObject) -> None:
    """The same verdict, asked of the checks directly."""
    tokens = data.draw(st.sampled_from([1, 2, 4, 8]))
    m = tokens * data.draw(st.integers(1, MAX_M // tokens))
    kv = data.draw(st.integers(tokens, MAX_KV))
    found = ask(_GRID, m=m, kv=kv, tokens_per_request=tokens)
    if isinstance(found, Miss):
        assert reason(found) == "shape"
        return
    plan = found.plan
    assert plan.shape.tokens_per_request == tokens
    assert plan.shape.m // 2 < m <= plan.shape.m
    assert kv <= plan.shape.kv
    assert check(replace(plan, shape=found.shape), H200) == []


_GRID = PlanBook.of([tuned(m, kv, t) for m in (8, 16, 64, 256) for kv in (1024, 16384) for t in (1, 8)])


@pytest.mark.parametrize("mode", MODES)
def test_every_shape_in_the_range_of_a_built_in_plan_is_valid(mode: str) -> None:
    for m in (1, 2, 3, 16, 24, 100, 256):
        plan = built_in(PREFIX, None, Shape.from_m(m, 8192, 1), "sm_90a", mode)
        for rows in {plan.m_range[0], (plan.m_range[0] + m) // 2, m}:
            for kv in plan.kv_range:
                assert check(replace(plan, shape=Shape(rows, 1, kv)), H200) == []


def _with_config(plan: Plan, op: str, **fields: Any) -> Plan:
    changed = OpPlan.of(plan.op[op].impl, {**dict(plan.op[op].config), **fields})
    return replace(plan, ops=tuple((name, changed if name == op else own) for name, own in plan.ops)).canonical()


TOO_LARGE = _with_config(make_plan(), "B0", block_m=128, block_n=128, stages=12, split_k=1)


@pytest.mark.parametrize("gpu", ["NVIDIA H200", H200], ids=["name", "device"])
def test_a_plan_that_needs_more_shared_memory_than_there_is_misses(gpu: str | Device) -> None:
    found = ask(PlanBook.of([served(TOO_LARGE)]), gpu=gpu)
    assert reason(found) == "constraints"
    assert isinstance(found, Miss)
    assert "shared memory" in found.message
    assert TOO_LARGE.short_id in found.message
    assert plan_of(ask(PlanBook.of([served(TOO_LARGE, 1.0), served()]), gpu=gpu)) == make_plan()


def test_the_limits_are_those_of_the_device_that_asks() -> None:
    small = replace(H200, smem_per_block=16 * 1024)
    assert plan_of(ask(PlanBook.of([served()]), gpu=H200)) == make_plan()
    assert reason(ask(PlanBook.of([served()]), gpu=small)) == "constraints"


def test_an_unsafe_edge_is_never_served() -> None:
    plan = make_plan()
    kernels = tuple(
        (name, replace(own, trigger="start") if name == "B0p" else replace(own, gdc="prefetch"))
        for name, own in plan.kernels
    )
    unsafe = replace(plan, kernels=kernels, edges=((("A0", "B0p"), "programmatic"), (("B0p", "B0f"), "launch_order")))
    assert check(unsafe, H200)
    assert reason(ask(PlanBook.of([served(unsafe)]))) == "constraints"


def test_a_constraint_on_kv_is_asked_at_the_kv_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    book = PlanBook.of([tuned(16)])
    usual = PagedIndexerScore.config_violations

    def whole_pages(self: PagedIndexerScore, plan: OpPlan, shape: Shape, device: Device) -> list[Violation]:
        wrong = [Violation("kv", "", "KV must be whole pages of 64")] if shape.kv % 64 else []
        return wrong or usual(self, plan, shape, device)

    monkeypatch.setattr(PagedIndexerScore, "config_violations", whole_pages)
    assert plan_of(ask(book, kv=4096))
    assert reason(ask(book, kv=4097)) == "constraints"


@pytest.mark.parametrize("field", ["m_range", "kv_range"])
def test_a_range_beyond_what_exists_gives_no_plan_there(field: str) -> None:
    endless = served(replace(make_plan(), **{field: (1, 10**8)}))
    book = PlanBook.of([endless])
    for sizes in ({"m": 2**20, "tokens_per_request": 8}, {"kv": 10**7}):
        assert reason(ask(book, **sizes)) == "shape"


def test_a_hit_is_loaded_for_the_shape_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as a machine without a GPU goes: tensors of M = 12 have the right size for a plan tuned at 16."""
    pytest.importorskip("torch")
    from mktune.ops.inputs import make_inputs
    from mktune.runtime import load

    monkeypatch.setattr("mktune.runtime.replay.find_device", lambda index: H200)
    found = ask(PlanBook.of([tuned(16, kv=64, tokens=4)]), m=12, kv=64)
    assert isinstance(found, Hit)
    tensors = make_inputs(PREFIX.subgraph(("A0",)), Shape.from_m(12, 64), device="cpu")
    needed = [name for name, spec in PREFIX.graph.tensors.items() if spec.kind in ("arg", "weight", "cache")]
    for loaded, wrong in ((found, "is on cpu"), (found.plan, r"is \[12, .*, not \[16,")):
        with pytest.raises(InputError, match=wrong):
            load(loaded, {**tensors, **{name: tensors["x"] for name in needed if name not in tensors}}, 0)
