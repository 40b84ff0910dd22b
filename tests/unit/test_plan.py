"""Plans: one canonical JSON form, an id that follows it, and PlanError for every way to be malformed."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_values import make_plan

from mktune.errors import PlanError
from mktune.plan import CHAINS, EDGE_KINDS, GDC, TRIGGERS, KernelPlan, OpPlan, Plan
from mktune.shape import Shape

_names = st.text(st.characters(codec="utf-8", exclude_characters=">"), min_size=1, max_size=8)
_values = st.integers(-(2**63), 2**63) | st.text(max_size=8)
_kernel_plans = st.builds(
    KernelPlan,
    stream=st.integers(0, 3),
    priority=st.integers(-16, 16),
    gdc=st.sampled_from(GDC),
    trigger=st.sampled_from(TRIGGERS),
    l2_prefetch_bytes=st.integers(0, 1 << 24),
    chain=st.sampled_from(CHAINS),
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any plan that is well formed, however odd its names."""
    kernels = draw(st.lists(_names, min_size=1, max_size=6, unique=True))
    ops = draw(st.dictionaries(_names, st.dictionaries(_names, _values, max_size=4), min_size=1, max_size=4))
    pairs = [(first, second) for i, first in enumerate(kernels) for second in kernels[i + 1 :]]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    low = draw(st.integers(1, 16))
    return Plan(
        workload=draw(_names),
        contract=draw(st.integers(0, 9)),
        scale_format=draw(_names),
        shape=draw(st.builds(Shape, st.integers(1, 16), st.integers(1, 16), st.integers(16, 131072))),
        m_range=(low, low + draw(st.integers(0, 16))),
        kv_range=(1, draw(st.integers(1, 131072))),
        ops=tuple((name, OpPlan.of("impl", config)) for name, config in ops.items()),
        kernels=tuple((name, draw(_kernel_plans)) for name in kernels),
        order=tuple(draw(st.permutations(kernels))),
        edges=tuple((pair, draw(st.sampled_from(EDGE_KINDS))) for pair in edges),
    )


@given(plans())
def test_a_canonical_plan_survives_json(plan: Plan) -> None:
    once = plan.canonical()
    again = Plan.from_json(once.json)
    assert again == once
    assert again.json == once.json
    assert hash(again) == hash(once)


@given(plans())
def test_canonical_is_idempotent_and_ignores_the_order_of_pairs(plan: Plan) -> None:
    once = plan.canonical()
    assert once.canonical() == once
    shuffled = replace(plan, ops=plan.ops[::-1], kernels=plan.kernels[::-1], edges=plan.edges[::-1])
    assert shuffled.canonical() == once


@given(plans(), st.permutations([0, 1, 2, 3]))
def test_renaming_streams_gives_the_same_plan(plan: Plan, names: list[int]) -> None:
    renamed = tuple((name, replace(kernel, stream=names[kernel.stream])) for name, kernel in plan.kernels)
    assert replace(plan, kernels=renamed).canonical() == plan.canonical()


def test_json_is_sorted_and_tight_and_the_id_is_its_hash() -> None:
    plan = make_plan()
    data = json.loads(plan.json)
    assert plan.json == json.dumps(data, sort_keys=True, separators=(",", ":"))
    assert plan.plan_id == hashlib.sha256(plan.json.encode()).hexdigest()


@pytest.mark.parametrize(
    "change",
    [
        {"workload": "other"},
        {"contract": 2},
        {"scale_format": "ue8m0"},
        {"shape": Shape.from_m(8, 8192)},
        {"m_range": (9, 16)},
        {"kv_range": (2, 8192)},
        {"order": ("B0p", "A0", "B0f")},
        {"edges": ((("A0", "B0p"), "full"), (("B0p", "B0f"), "full"))},
        {"kernels": tuple((name, KernelPlan(l2_prefetch_bytes=4096)) for name in ("A0", "B0f", "B0p"))},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_is_part_of_the_id(change: dict[str, Any]) -> None:
    plan = make_plan()
    assert replace(plan, **change).plan_id != plan.plan_id


def test_a_chain_that_decides_nothing_is_reset() -> None:
    first, second = KernelPlan(), KernelPlan(chain="programmatic")
    plan = replace(make_plan(), kernels=(("A0", first), ("B0f", second), ("B0p", second)))
    assert plan.canonical().kernel["B0p"].chain == "full"  # the data edge A0 -> B0p decides
    loose = replace(plan, edges=())
    assert loose.canonical().kernel["B0p"].chain == "programmatic"  # only the stream orders them now
    alone = tuple((name, replace(kernel, stream=i)) for i, (name, kernel) in enumerate(loose.kernels))
    assert {kernel.chain for _, kernel in replace(loose, kernels=alone).canonical().kernels} == {"full"}


def _without(*path: str) -> Callable[[dict[str, Any]], None]:
    def edit(data: dict[str, Any]) -> None:
        for name in path[:-1]:
            data = data[name]
        del data[path[-1]]

    return edit


def _with(value: Any, *path: str) -> Callable[[dict[str, Any]], None]:
    def edit(data: dict[str, Any]) -> None:
        for name in path[:-1]:
            data = data[name]
        data[path[-1]] = value

    return edit


_FIELDS = tuple(make_plan().to_dict())
_MALFORMED = {
    "nothing to compute": lambda data: data.update(ops={}, kernels={}, order=[], edges={}),
    "no ops": lambda data: data.update(ops={}),
    **{f"no {name}": _without(name) for name in _FIELDS},
    **{f"{name} null": _with(None, name) for name in _FIELDS},
    **{f"{name} of another type": _with(1.5, name) for name in _FIELDS},
    "unknown field": _with(1, "extra"),
    "newer schema": _with(99, "schema"),
    "schema true": _with(True, "schema"),
    "schema 1.0": _with(1.0, "schema"),
    "empty workload": _with("", "workload"),
    "contract true": _with(True, "contract"),
    "negative contract": _with(-1, "contract"),
    "shape without kv": _without("shape", "kv"),
    "shape with more": _with(1, "shape", "m"),
    "shape of text": _with("8", "shape", "kv"),
    "shape true": _with(True, "shape", "requests"),
    "shape out of range": _with(10**6, "shape", "requests"),
    "tokens beyond kv": _with(4, "shape", "kv"),
    "m_range of one": _with([1], "m_range"),
    "m_range of three": _with([1, 2, 3], "m_range"),
    "m_range reversed": _with([16, 1], "m_range"),
    "m_range from 0": _with([0, 16], "m_range"),
    "kv_range of text": _with(["1", "2"], "kv_range"),
    "unknown executor": _with("threads", "executor"),
    "executor a list": _with([], "executor"),
    "op without impl": _without("ops", "A0", "impl"),
    "op without config": _without("ops", "A0", "config"),
    "op with more": _with(1, "ops", "A0", "extra"),
    "op null": _with(None, "ops", "A0"),
    "impl empty": _with("", "ops", "A0", "impl"),
    "config a list": _with([], "ops", "A0", "config"),
    "config value true": _with(True, "ops", "A0", "config", "threads"),
    "config value 1.5": _with(1.5, "ops", "A0", "config", "threads"),
    "config value NaN": _with(float("nan"), "ops", "A0", "config", "threads"),
    "config value a list": _with([1], "ops", "A0", "config", "threads"),
    "kernel null": _with(None, "kernels", "A0"),
    "kernel with more": _with(1, "kernels", "A0", "extra"),
    **{f"kernel without {name}": _without("kernels", "A0", name) for name in vars(KernelPlan())},
    **{f"kernel {name} null": _with(None, "kernels", "A0", name) for name in vars(KernelPlan())},
    "stream -1": _with(-1, "kernels", "A0", "stream"),
    "stream true": _with(True, "kernels", "A0", "stream"),
    "priority too low": _with(-17, "kernels", "A0", "priority"),
    "unknown gdc": _with("late", "kernels", "A0", "gdc"),
    "unknown trigger": _with("never", "kernels", "A0", "trigger"),
    "unknown chain": _with("launch_order", "kernels", "A0", "chain"),
    "negative prefetch": _with(-1, "kernels", "A0", "l2_prefetch_bytes"),
    "order of numbers": _with([1, 2, 3], "order"),
    "order a text": _with("A0", "order"),
    "order too short": _with(["A0", "B0p"], "order"),
    "order with a stranger": _with(["A0", "B0p", "X"], "order"),
    "order with one twice": _with(["A0", "B0p", "B0f", "A0"], "order"),
    "edge without arrow": _with("full", "edges", "A0B0p"),
    "edge from a stranger": _with("full", "edges", "X->A0"),
    "edge to a stranger": _with("full", "edges", "A0->X"),
    "edge of unknown kind": _with("half", "edges", "A0->B0p"),
    "edge null": _with(None, "edges", "A0->B0p"),
    "edge a list": _with([], "edges", "A0->B0p"),
}


@pytest.mark.parametrize("edit", _MALFORMED.values(), ids=_MALFORMED.keys())
def test_a_malformed_plan_is_a_plan_error_of_one_line(edit: Callable[[dict[str, Any]], None]) -> None:
    data = copy.deepcopy(make_plan().to_dict())
    edit(data)
    with pytest.raises(PlanError) as caught:
        Plan.from_json(json.dumps(data))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "1", '"text"', "{}{}", "\0", "[" * 100_000], ids=lambda text: repr(text[:8])
)
def test_text_that_is_no_plan_is_a_plan_error(text: str) -> None:
    with pytest.raises(PlanError):
        Plan.from_json(text)


def test_a_newer_schema_names_both_versions() -> None:
    with pytest.raises(PlanError, match=r"99.*reads 1.*newer"):
        Plan.from_dict(make_plan().to_dict() | {"schema": 99})


_json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=4), children, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_any_value_in_any_place_is_a_plan_or_a_plan_error(data: st.DataObject) -> None:
    document = copy.deepcopy(make_plan().to_dict())
    place: Any = document
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else list(range(len(place)))))
        if isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
            place = place[key]
        else:
            break
    place[key] = data.draw(_json_values)
    try:
        plan = Plan.from_json(json.dumps(document))
    except PlanError:
        return
    assert Plan.from_json(plan.json) == plan
