"""CTAs that go through several tiles: shares, configs that exist, launches, and what the machine code does."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_code import assert_as_declared

from mktune.backends.models import gpu_of
from mktune.graph.builtin import make_plan
from mktune.graph.workload import workload
from mktune.jit import nvrtc
from mktune.jit.build import build
from mktune.jit.fingerprint import Sources, kernels_fingerprint
from mktune.launch import BufferArg, Launch, ScalarArg, TensorMapArg
from mktune.ops.gemm import GemmOp
from mktune.ops.gemm_schedules import MAX_PIECES, Shares, partial_sums, work_items
from mktune.ops.gemm_tiles import GemmConfig
from mktune.ops.launch import dynamic_smem, launches_for
from mktune.ops.registry import all_ops
from mktune.ops.sharing import apart
from mktune.plan import GDC, TRIGGERS, KernelPlan, OpPlan, Plan
from mktune.shape import Shape
from mktune.space import SearchSpace, question_stem
from mktune.validity import check

WORKLOAD = workload("glm52_attention_prefix")
TITLES = ("qkv_a", "indexer_k", "main_q", "indexer_q")
SHAPE = Shape(2, 8, 8192)
H200 = gpu_of("sm_90a")
ARCHS = ("sm_90a", "sm_100a", "sm_103a")
LARGE = Shape(32, 8, 8192)
"""B1 has two tiles of 16 rows: too few for any schedule but at many rows."""
PERSISTENT = {
    "qkv_a": {"split_k": 3, "stages": 6},
    "indexer_k": {"split_k": 12},
    "main_q": {"block_n": 128, "stages": 6},
    "indexer_q": {"split_k": 4},
}


def op_of(title: str) -> GemmOp:
    op = all_ops()[title]
    assert isinstance(op, GemmOp)
    return op


def config(title: str, schedule: str, ctas: int, arch: str = "sm_90a", **fields: int | str) -> OpPlan:
    default = op_of(title).default(arch)
    split = {"split_k": 1} if schedule == "stream_k" else {}
    values = {**dict(default.config), "stages": 4, **split, "schedule": schedule, "ctas": ctas, **fields}
    return OpPlan.of(default.impl, values)


def rules(title: str, schedule: str, ctas: int, shape: Shape = SHAPE, **fields: int | str) -> list[str]:
    plan = config(title, schedule, ctas, **fields)
    return [f"{found.rule}: {found.message}" for found in op_of(title).config_violations(plan, shape, H200)]


@pytest.mark.parametrize(("title", "schedule", "ctas", "fields", "message"), [
    ("main_q", "persistent", 0, {}, "config: ctas = 0; allowed: 33, 66, 99, 132, 264"),
    ("main_q", "one_tile", 132, {}, "config: schedule = 'one_tile'; allowed: persistent, stream_k"),
    ("main_q", "persistent", 132, {}, "132 CTAs for 128 tiles and splits: leave the schedule out"),
    ("main_q", "stream_k", 132, {"split_k": 2}, "stream_k splits K by itself: split_k = 1"),
    ("qkv_a", "stream_k", 132, {"finalizer": "last_arriver"}, "not to finalizer = last_arriver"),
    ("indexer_q", "persistent", 66, {"finalizer": "cluster"}, "not to finalizer = cluster"),
    ("indexer_k", "stream_k", 99, {}, "99 CTAs share 96 steps of K: use fewer"),
    ("indexer_k", "stream_k", 33, {"stages": 2}, "tiles in up to 25 pieces, 16 can be added: use fewer ctas"),
    ("main_q", "stream_k", 99, {"block_m": 128, "block_n": 128}, "128 × 128 with 4 warps spills under a schedule"),
    ("indexer_q", "stream_k", 264, {}, "stages: 4 stages, but a CTA has only 4 steps of K"),
])  # fmt: skip
def test_what_does_not_exist_is_named(title, schedule, ctas, fields, message):
    found = rules(title, schedule, ctas, **fields)
    if message.startswith("stages"):
        assert found == []  # 1024 steps in 264 shares: four at most
        assert rules(title, schedule, ctas, **{**fields, "stages": 6}) == [message.replace("4 stages", "6 stages")]
    else:
        assert any(message in line for line in found), found


def test_a_schedule_and_its_ctas_belong_together():
    op, default = op_of("main_q"), op_of("main_q").default("sm_90a")
    for alone, message in (({"ctas": 132}, "with a schedule only"), ({"schedule": "stream_k"}, "needs the number")):
        plan = OpPlan.of(default.impl, {**dict(default.config), **alone})
        assert message in op.config_violations(plan, SHAPE, H200)[0].message


def test_a_line_that_divides_into_parts_of_tiles_needs_no_stream_k():
    shape = Shape(11, 8, 8192)  # 22 tiles of 48 steps
    assert rules("indexer_k", "stream_k", 33, shape, block_m=8) == []
    (found,) = rules("indexer_k", "stream_k", 66, shape, block_m=8)
    assert "each CTA has 16 of a tile's 48 steps of K: as with split_k or persistent" in found


@given(
    title=st.sampled_from(TITLES),
    block_m=st.sampled_from((8, 16, 32, 64, 128)),
    block_n=st.sampled_from((64, 128)),
    m=st.integers(1, 256),
    ctas=st.integers(1, 400),
    schedule=st.sampled_from(("persistent", "stream_k")),
    split=st.sampled_from((1, 2, 4)),
)
def test_shares_are_even_and_pieces_are_no_more_than_what_is_added(title, block_m, block_n, m, ctas, schedule, split):
    problem, row_blocks = op_of(title).problem, -(-m // block_m)
    split = 1 if schedule == "stream_k" else split
    config = GemmConfig(block_m, block_n, split, 4, 4, "kernel", schedule=schedule, ctas=ctas)
    items = work_items(config, problem, row_blocks)
    shares = Shares.of(config, problem, row_blocks)
    assert shares.ctas == min(ctas, items)
    assert shares.ctas * shares.share + shares.longer == items
    assert 0 <= shares.longer < shares.ctas
    assert all(tile * shares.m_tiles_inverse >> 32 == tile // row_blocks for tile in range(0, items, 7))
    if schedule == "stream_k":
        starts = [cta * shares.share + min(cta, shares.longer) for cta in range(shares.ctas)]
        steps = problem.steps
        pieces = [1 + sum(first < start < first + steps for start in starts) for first in range(0, items, steps)[:64]]
        assert max(pieces) <= partial_sums(config, problem, Shape.from_m(m, 64))


def shape_of(title: str) -> Shape:
    return LARGE if title == "indexer_k" else SHAPE


def launched(title: str, plan: OpPlan, arch: str = "sm_90a", **placed: str) -> tuple[Launch, ...]:
    op, shape = op_of(title), shape_of(title)
    kernels = (KernelPlan(**placed), KernelPlan(gdc="prologue"))[: len(op.kernels(plan))]
    assert op.violations(plan, kernels, shape, gpu_of(arch)) == []
    return launches_for(title, plan, kernels, shape, gpu_of(arch))


def plans(title: str, arch: str = "sm_90a") -> list[OpPlan]:
    """One of each schedule; of D0 also one with splits."""
    few, many = (33, 132) if arch == "sm_90a" else (37, 148)
    found = [config(title, "persistent", few, arch, **PERSISTENT[title])]
    found.append(config(title, "stream_k", many, arch, block_n=64))
    if title == "main_q":
        found.append(config(title, "persistent", many, arch, split_k=2, block_n=64))
    return found


@pytest.mark.parametrize("title", TITLES)
def test_launches_are_those_that_the_op_counts_with(title):
    op = op_of(title)
    assert {dict(plan.config)["schedule"] for plan in plans(title)} == {"persistent", "stream_k"}
    for plan in plans(title):
        kernels = (KernelPlan(),) * len(op.kernels(plan))
        for shape in (shape_of(title), Shape(3, 5, 100), Shape(32, 8, 4096)):
            if op.config_violations(plan, shape, H200):
                continue
            found = launches_for(title, plan, kernels, shape, H200)
            for launch, work, facts in zip(found, op.work(plan, shape), op.facts(plan, kernels), strict=True):
                assert math.prod(launch.grid) == work.ctas
                assert launch.smem == dynamic_smem(title, plan, facts.name) <= max(work.smem_bytes, 256)
                named = {arg.buffer for arg in launch.args if isinstance(arg, BufferArg | TensorMapArg)}
                assert named == {access.buffer for access in facts.accesses}
            assert found[0].grid[0] == dict(plan.config)["ctas"]
            assert 0 < op.work(plan, shape)[0].prefetch_bytes <= op.bytes_read(shape)
            pieces = op.partial_sums(GemmConfig.of(plan), shape)
            assert 1 <= pieces <= MAX_PIECES
            if len(found) == 2:
                assert (
                    f"_finalizer<{dict(plan.config)['finalizer_threads']}, {pieces}, "
                    in found[1].kernel.name_expression
                )


def test_what_runs_ahead_is_counted_over_the_tiles_of_a_cta():
    op = op_of("main_q")
    plan = config("main_q", "persistent", 33, block_n=64, stages=8)
    steps = -(-256 // 33) * 16
    assert op.l2_limit(plan) == (steps - 8) * 128 * 64
    assert op.l2_limit(config("main_q", "stream_k", 132, block_n=64, stages=8)) == (32 - 8) * 128 * 64
    asked = KernelPlan(gdc="prefetch", l2_prefetch_bytes=op.l2_limit(plan))
    (launch,) = launches_for("main_q", plan, (asked,), SHAPE, H200)
    assert ScalarArg(steps - 8) in launch.args


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("title", TITLES)
def test_machine_code_is_as_declared(title, arch):
    """At each place to wait and to trigger; parameters as many and as wide as the launch's; nothing spilt."""
    op, found = op_of(title), []
    for i, (gdc, trigger) in enumerate([*zip(GDC, TRIGGERS, strict=False), ("prefetch", "before_epilogue")]):
        plan = plans(title, arch)[i % len(plans(title, arch))]
        placed = KernelPlan(gdc=gdc, trigger=trigger)
        launch = launched(title, plan, arch, gdc=gdc, trigger=trigger)[0]
        declared = op.facts(plan, (placed, KernelPlan(gdc="prologue"))[: len(op.kernels(plan))])[0]
        found.append((launch, placed, declared))
    for kernel, (launch, placed, declared) in zip(
        build([entry[0].kernel for entry in found], arch), found, strict=True
    ):
        assert_as_declared(kernel, launch, placed, declared)


@pytest.mark.parametrize(("block_m", "block_n", "warps", "stages"), [(16, 64, 4, 8), (16, 128, 4, 6), (64, 128, 8, 4)])
def test_several_tiles_need_few_more_registers_than_one(block_m, block_n, warps, stages):
    """The next part's scales, and where the CTA is on its way: 8 to 20 of them."""
    tile = {"block_m": block_m, "block_n": block_n, "warps": warps, "stages": stages}
    default = op_of("main_q").default("sm_90a")
    one = OpPlan.of(default.impl, {**dict(default.config), **tile})
    several = [config("main_q", schedule, 99, **tile) for schedule in ("persistent", "stream_k")]
    launches = [launched("main_q", plan, gdc="prefetch", trigger="start")[0] for plan in (one, *several)]
    base, *rest = build([launch.kernel for launch in launches], "sm_90a", facts=False)
    assert all(kernel.registers <= base.registers + 24 for kernel in rest), [
        kernel.registers for kernel in (base, *rest)
    ]
    assert all(kernel.spill_bytes == 0 for kernel in rest)


def test_products_stay_under_way_together(monkeypatch, tmp_path):
    """The compiler tells where it lets tensor cores work at one wgmma at a time: where it cannot prove that a warpgroup
    goes round a loop together."""
    told, parse = [], nvrtc.parse_log
    monkeypatch.setattr(nvrtc, "parse_log", lambda log: told.append(log) or parse(log))
    found = []
    for block_n, warps, stages in ((64, 4, 8), (64, 8, 8), (128, 4, 6), (128, 8, 4)):
        tile = {"block_n": block_n, "warps": warps, "stages": stages}
        found += [config("main_q", schedule, 66, **tile) for schedule in ("persistent", "stream_k")]
        found.append(config("main_q", "persistent", 66, split_k=2, **tile))
    launches = [launched("main_q", plan, gdc="prefetch", trigger="start")[0] for plan in found]
    launches += [launched("qkv_a", plan, gdc="prefetch", trigger="start")[0] for plan in plans("qkv_a")]
    build([launch.kernel for launch in launches], "sm_90a", cache_dir=tmp_path, facts=False)
    assert sum(log.count("Used ") for log in told) == len(launches)
    assert [line for log in told for line in log.splitlines() if "serialized" in line] == []


def test_plans_without_a_schedule_do_not_name_one():
    space = SearchSpace.load(WORKLOAD, ("A0", "B0", "D0"), SHAPE, H200)
    plan = make_plan(WORKLOAD, ("A0", "B0", "D0"), SHAPE, "sm_90a", "serial")
    assert not {"schedule", "ctas"} & {name for _, op in plan.ops for name, _ in op.config}
    choices = space.to_choices(plan)
    taken = {question_stem(name): label for name, label in choices.items()}
    assert taken["B0.schedule"] == taken["D0.schedule"] == "schedule=one_tile ctas=0"


def test_what_goes_through_several_tiles_shares_no_launch():
    one, two = ({"impl": "wgmma", "warps": 4, **beside} for beside in ({}, {"schedule": "persistent", "ctas": 66}))
    assert apart([one, one]) == apart([two]) == ""
    assert "leave the schedule out" in apart([one, two])


def test_a_plan_says_which_schedule_it_has():
    chosen = {"B0": config("qkv_a", "stream_k", 132), "D0": config("main_q", "persistent", 99)}
    plan = make_plan(WORKLOAD, ("A0", "B0", "D0"), SHAPE, "sm_90a", "serial+pdl", chosen)
    assert check(plan, H200) == []
    assert Plan.from_json(plan.json) == plan
    assert '"schedule":"stream_k"' in plan.json.replace(" ", "")
    own, _, shared = kernels_fingerprint(*Sources.of(plan)).partition("+")
    assert own == kernels_fingerprint(plan.workload, plan.op_names) != shared != ""
    space = SearchSpace.load(WORKLOAD, ("A0", "B0", "D0"), SHAPE, H200)
    choices = space.to_choices(plan)
    taken = {question_stem(name): label for name, label in choices.items()}
    assert taken["B0.schedule"] == "schedule=stream_k ctas=132"
    assert dict(space.to_plan(choices).ops) == dict(plan.ops)


@pytest.mark.parametrize("ctas", [66, 132])
@pytest.mark.parametrize("schedule", ["persistent", "stream_k"])
def test_kinds_decide_facts(schedule, ctas):
    """A stream_k GEMM does what one with splits does; a persistent one what its splits say."""
    op = op_of("main_q")
    split = config("main_q", "persistent", ctas, block_n=64, split_k=2)
    plan = config("main_q", schedule, ctas, block_n=64)
    ports = {access.buffer for access in op.facts(plan, (KernelPlan(),))[0].accesses}
    assert ({"partials", "tile_counters"} <= ports) == (schedule == "stream_k")
    assert (op.kind(plan) == op.kind(split)) == (schedule == "stream_k")
