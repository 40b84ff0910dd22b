"""CTAs of C0 and D2 that go through several tiles or pieces of tiles: configs that exist, launches, machine code."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_code import assert_as_declared

from mktune.backends.models import gpu_of
from mktune.backends.sim import model
from mktune.backends.sim_constants import CONSTANTS
from mktune.graph.builtin import make_plan
from mktune.graph.workload import workload
from mktune.jit import nvrtc
from mktune.jit.build import build
from mktune.jit.fingerprint import Sources, kernels_fingerprint
from mktune.launch import BufferArg, TensorMapArg
from mktune.ops.base import Violation
from mktune.ops.gemm import GemmOp
from mktune.ops.gemm_schedules import BF16_SOURCE, MAX_PIECES, PERSISTENT, STREAM_K, added_pieces, longest_steps
from mktune.ops.gemm_tiles import GemmConfig
from mktune.ops.launch import dynamic_smem, launches_for
from mktune.ops.registry import all_ops
from mktune.plan import GDC, TRIGGERS, KernelPlan, OpPlan, Plan
from mktune.shape import Shape
from mktune.space import SearchSpace, question_stem
from mktune.validity import check

WORKLOAD = workload("glm52_attention_prefix")
H200 = gpu_of("sm_90a")
SHAPE = Shape(2, 8, 8192)
SHAPES = (SHAPE, Shape(1, 1, 64), Shape(3, 5, 100), Shape(20, 5, 1000), Shape(32, 8, 4096))
SINGLE = {"head_gate": {"finalizer": "last_arriver"}, "q_absorb": {}}


def op_of(title: str) -> GemmOp:
    op = all_ops()[title]
    assert isinstance(op, GemmOp)
    return op


def config(title: str, schedule: str, ctas: int, arch: str = "sm_90a", **fields: int | str) -> OpPlan:
    default = op_of(title).default(arch)
    changed = {**SINGLE[title], "split_k": 1, "stages": 4, "schedule": schedule, "ctas": ctas, **fields}
    return OpPlan.of(default.impl, {**dict(default.config), **changed})


def plans(arch: str = "sm_90a") -> list[tuple[str, OpPlan]]:
    """One of each kind: each op and schedule, one or two warpgroups, rings beyond a tile, most sums."""
    some, most = (99, 132) if arch == "sm_90a" else (111, 148)
    return [
        ("head_gate", config("head_gate", "stream_k", 7, arch, stages=6)),
        ("head_gate", config("head_gate", "stream_k", 10, arch, warps=8)),
        ("q_absorb", config("q_absorb", "persistent", most, arch, stages=6)),
        ("q_absorb", config("q_absorb", "persistent", most, arch, block_m=128, stages=3)),
        ("q_absorb", config("q_absorb", "stream_k", some, arch, block_n=64, warps=8, stages=12)),
    ]


@pytest.mark.parametrize(("title", "schedule", "ctas", "fields", "message"), [
    ("head_gate", "persistent", 33, {}, "schedule = 'persistent'; allowed: stream_k"),
    ("head_gate", "stream_k", 7, {"finalizer": "cluster"}, "CTAs of a cluster have one tile: use finalizer = last"),
    ("head_gate", "stream_k", 7, {"split_k": 2}, "stream_k splits K by itself: split_k = 1"),
    ("head_gate", "stream_k", 20, {}, "tiles in up to 20 pieces, 16 can be added: use fewer ctas"),
    ("head_gate", "stream_k", 14, {"stages": 8}, "8 stages, but a CTA has only 7 steps of K"),
    ("q_absorb", "persistent", 264, {"stages": 2}, "264 CTAs for 256 tiles and splits: leave the schedule out"),
    ("q_absorb", "persistent", 132, {"stages": 8}, "8 stages, but a CTA has only 6 steps of K"),
    ("q_absorb", "persistent", 99, {"split_k": 3}, "whole tiles have three steps of K: leave splitting them"),
    ("q_absorb", "stream_k", 132, {}, "no CTA has fewer than the 6 steps of K of whole tiles: use persistent"),
    ("q_absorb", "stream_k", 264, {"stages": 2}, "no CTA has fewer than the 3 steps of K of whole tiles"),
])  # fmt: skip
def test_what_does_not_exist_is_named(title, schedule, ctas, fields, message):
    found: list[Violation] = op_of(title).config_violations(config(title, schedule, ctas, **fields), SHAPE, H200)
    assert message in found[0].message


def test_each_schedule_shortens_what_the_longest_cta_has():
    """Whole tiles of 64 columns over 99 CTAs are 18 steps for the longest, in a line 16. C0 in 7 pieces has 14."""
    longest = {}
    for title, plan in plans():
        assert op_of(title).config_violations(plan, SHAPE, H200) == []
        longest[title, *dict(plan.config).values()] = longest_steps(GemmConfig.of(plan), op_of(title).problem, 1)
    assert sorted(longest.values()) == [6, 6, 10, 14, 16]
    whole = GemmConfig.of(config("q_absorb", "persistent", 99, block_n=64))
    assert longest_steps(whole, op_of("q_absorb").problem, 1) == 18


@given(
    title=st.sampled_from(("head_gate", "q_absorb")),
    block_m=st.sampled_from((8, 16, 64)),
    m=st.integers(1, 256),
    ctas=st.integers(2, 300),
)
def test_pieces_are_counted_as_shares_begin_and_end_inside_tiles(title, block_m, m, ctas):
    problem, row_blocks = op_of(title).problem, -(-m // block_m)
    plan = GemmConfig(block_m, 64, 1, 4, 4, schedule=STREAM_K, ctas=ctas)
    steps, items = problem.steps, row_blocks * plan.column_blocks(problem) * problem.steps
    of_cta = [cta for cta in range(ctas) for _ in range(items // ctas + (cta < items % ctas))]  # of each step
    pieces = [len(set(of_cta[at : at + steps])) for at in range(0, items, steps)]
    assert added_pieces(plan, problem, row_blocks) == sum(count for count in pieces if count > 1)
    assert max(pieces) <= op_of(title).partial_sums(plan, Shape.from_m(m, 64))
    persistent = plan._replace(schedule=PERSISTENT)
    if row_blocks * plan.column_blocks(problem) > ctas:
        assert longest_steps(plan, problem, row_blocks) <= longest_steps(persistent, problem, row_blocks)


def placements(title: str, plan: OpPlan) -> tuple[KernelPlan, ...]:
    l2 = min(op_of(title).l2_limit(plan), 16384)
    found = [KernelPlan(gdc=gdc, trigger=trigger) for gdc, trigger in zip(GDC, TRIGGERS, strict=False)]
    return *found, KernelPlan(gdc="prefetch", trigger="before_epilogue", l2_prefetch_bytes=l2)


def test_launches_are_those_that_the_op_counts_with():
    existing = 0
    for title, plan in plans():
        op, kernels = op_of(title), (KernelPlan(),)
        for shape in SHAPES:
            if op.config_violations(plan, shape, H200):
                continue
            existing += 1
            (launch,) = launches_for(title, plan, kernels, shape, H200)
            (work,), (facts,) = op.work(plan, shape), op.facts(plan, kernels)
            assert launch.kernel.source == BF16_SOURCE
            assert launch.grid == (dict(plan.config)["ctas"], 1, 1)
            assert math.prod(launch.grid) == work.ctas
            assert launch.smem == dynamic_smem(title, plan, "") <= work.smem_bytes
            named = {arg.buffer for arg in launch.args if isinstance(arg, BufferArg | TensorMapArg)}
            assert named == {access.buffer for access in facts.accesses}
            in_pieces = dict(plan.config)["schedule"] == STREAM_K
            spaces = {space.port: space for space in op.workspaces(plan, shape)}
            assert spaces.keys() == ({"partials", "tile_counters"} if in_pieces else set())
            assert 1 + in_pieces <= op.partial_sums(GemmConfig.of(plan), shape) <= MAX_PIECES
            assert 0 < work.prefetch_bytes <= work.cold_bytes == op.bytes_read(shape)
            assert work.flops == op.flops(shape)
    assert existing > 15


def test_only_tiles_in_pieces_leave_partial_sums():
    """D2 at 99 CTAs: 768 steps, of which each CTA has 7 or 8; a CTA that begins inside a tile makes it one of two."""
    op, plan = op_of("q_absorb"), config("q_absorb", "stream_k", 99)
    whole = config("q_absorb", "persistent", 99)
    (one,), (other,) = op.work(plan, SHAPE), op.work(whole, SHAPE)
    begun = sum(1 for cta in range(99) if (7 * cta + min(cta, 75)) % 3)
    assert one.warm_bytes - other.warm_bytes == 2 * 4 * 16 * 128 * 2 * begun
    assert (one.ctas, one.cold_bytes, one.flops) == (other.ctas, other.cold_bytes, other.flops)


def test_what_runs_ahead_is_counted_over_the_tiles_of_a_cta():
    op = op_of("q_absorb")
    assert op.l2_limit(config("q_absorb", "persistent", 66, stages=6)) == (12 - 6) * 128 * 128
    assert op.l2_limit(config("q_absorb", "stream_k", 99, stages=6)) == (8 - 6) * 128 * 128
    assert op.l2_limit(op.default("sm_90a")) == 0


def test_the_model_sees_the_number_of_ctas():
    """Too few CTAs keep too few bytes of weights under way."""
    spans = []
    for ctas in (33, 66, 132):
        chosen = {"D2": config("q_absorb", "persistent", ctas, stages=6)}
        plan = make_plan(WORKLOAD, ("D0", "D2"), SHAPE, "sm_90a", "serial+pdl", chosen)
        spans.append(model(plan, H200, CONSTANTS["h200"])[0])
    assert spans == sorted(spans, reverse=True)
    assert len(set(spans)) == 3


def test_results_are_staged_where_the_ring_is_in_use():
    plan = config("q_absorb", "persistent", 132, stages=3)
    one_tile = op_of("q_absorb").default("sm_90a")
    assert dynamic_smem("q_absorb", plan, "") - dynamic_smem("q_absorb", one_tile, "") == 16 * 128 * 2


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_103a"])
def test_machine_code_is_as_declared(arch, monkeypatch, tmp_path):
    """At places to wait and to trigger; parameters as wide as the launch's; nothing spilt, no wgmma by itself."""
    told, parse = [], nvrtc.parse_log
    monkeypatch.setattr(nvrtc, "parse_log", lambda log: told.append(log) or parse(log))
    device, found = gpu_of(arch), []
    some = plans(arch)[:: 1 if arch == "sm_90a" else 2]  # each op and schedule
    for number, (title, plan) in enumerate(some):
        op, places = op_of(title), placements(title, plan)
        placed = places[number % len(places)] if number % 2 else places[-1]
        assert op.violations(plan, (placed,), SHAPE, device) == []
        (launch,) = launches_for(title, plan, (placed,), SHAPE, device)
        found.append((launch, placed, op.facts(plan, (placed,))[0]))
    kernels = build([launch.kernel for launch, _, _ in found], arch, cache_dir=tmp_path)
    for kernel, (launch, placed, declared) in zip(kernels, found, strict=True):
        assert_as_declared(kernel, launch, placed, declared)
    assert sum(log.count("Used ") for log in told) == len(found)
    assert [line for log in told for line in log.splitlines() if "serialized" in line] == []


def test_a_plan_says_which_schedule_it_has():
    ops = ("A0", "B0", "C0", "D0", "D2")
    chosen = {"C0": config("head_gate", "stream_k", 10), "D2": config("q_absorb", "stream_k", 99, stages=6)}
    plan = make_plan(WORKLOAD, ops, SHAPE, "sm_90a", "serial+pdl", chosen)
    assert check(plan, H200) == []
    assert Plan.from_json(plan.json) == plan
    own, _, shared = kernels_fingerprint(*Sources.of(plan)).partition("+")
    assert own == kernels_fingerprint(plan.workload, plan.op_names) != shared != ""
    space = SearchSpace.load(WORKLOAD, ops, SHAPE, H200)
    choices = space.to_choices(plan)
    taken = {question_stem(name): label for name, label in choices.items()}
    assert taken["C0.schedule"] == "schedule=stream_k ctas=10"
    assert taken["D2.schedule"] == "schedule=stream_k ctas=99"
    assert dict(space.to_plan(choices).ops) == dict(plan.ops)


def test_plans_without_a_schedule_do_not_name_one():
    plan = make_plan(WORKLOAD, ("A0", "B0", "C0", "D0", "D2"), SHAPE, "sm_90a", "serial")
    assert not {"schedule", "ctas"} & {name for _, op in plan.ops for name, _ in op.config}
    assert op_of("q_absorb").facts(plan.op["D2"], (KernelPlan(),))[0].accesses == (
        op_of("q_absorb").facts(config("q_absorb", "persistent", 132), (KernelPlan(),))[0].accesses
    )


@pytest.mark.parametrize("impl", ["wgmma", "mma_sync", "deep_gemm"])
def test_rings_beyond_a_tile_are_offered_where_some_schedule_fills_them(impl):
    """Every option of a group that is offered is one that some option of the next group completes."""
    space = SearchSpace.load(WORKLOAD, ("D2",), SHAPE, H200)
    if impl == "deep_gemm" and op_of("q_absorb").missing(impl):
        pytest.skip(op_of("q_absorb").missing(impl))
    seen: dict[str, set[str]] = {}

    def pick(question):
        stem = question_stem(question.name)
        fitting = [label for label in question.options if stem != "D2.tile" or f"impl={impl} " in label]
        options = seen.setdefault(stem, set(fitting))
        return next((label for label in options if "stages=12" in label), fitting[0])

    _, plan = space.walk(pick)
    assert check(plan, H200) == []
    rings = {dict(part.split("=") for part in label.split())["stages"] for label in seen["D2.ring"]}
    assert rings == ({"2", "3", "4", "5", "6"} if impl == "deep_gemm" else {"2", "3", "4", "6", "8", "12"})
    assert all("one_tile" not in label for label in seen["D2.schedule"])
