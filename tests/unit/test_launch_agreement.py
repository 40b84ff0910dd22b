"""Launches agree with what ops say of them, every knob reaches the GPU, and every kind of tile compiles."""

from __future__ import annotations

import itertools
import math

import pytest

from mktune.backends.models import gpu_of
from mktune.device import ARCHITECTURES
from mktune.errors import InputError
from mktune.executors.arguments import check_tensor_map
from mktune.graph.builtin import make_plan
from mktune.graph.workload import workload
from mktune.jit import nvrtc
from mktune.jit.build import build
from mktune.jit.disassembly import disassemble
from mktune.jit.fingerprint import Sources, kernels_fingerprint
from mktune.jit.source import Source, load
from mktune.launch import BufferArg, ScalarArg, TensorMapArg
from mktune.measure.gate import disagreement, misplaced, undeclared
from mktune.ops.launch import dynamic_smem, launches_for
from mktune.ops.registry import all_ops
from mktune.plan import KernelPlan, OpPlan
from mktune.shape import Shape

OPS = all_ops()
H200 = gpu_of("sm_90a")
TITLES = sorted(OPS)
NEW = ("head_gate", "paged_indexer_score", "q_absorb")
SHAPES = (Shape(1, 1, 64), Shape(2, 8, 8192), Shape(3, 5, 100), Shape(1, 17, 65536), Shape(32, 8, 4096))
MMA = {"wgmma": {"HGMMA", "QGMMA"}, "mma_sync": {"HMMA", "QMMA"}}


def variants(title, arch="sm_90a"):
    """The default, and plans that differ from it in one field or in the implementation, as far as they exist."""
    op = OPS[title]
    default = op.default(arch)
    found = {"default": default}
    for impl, fields in op.choices(arch).items():
        found[impl] = OpPlan.of(impl, dict(default.config))
        for field, values in fields.items():
            for value in values:
                found[f"{impl} {field}={value}"] = OpPlan.of(impl, {**dict(default.config), field: value})
    device = gpu_of(arch)
    return {
        name: plan
        for name, plan in found.items()
        if not op.violations(plan, placed(op, plan), SHAPES[1], device) or name == "default"
    }


def placed(op, plan, gdc="prologue", trigger="exit"):
    return tuple(
        KernelPlan(gdc=gdc if gdc in op.gdc_values(plan, suffix) else "prologue", trigger=trigger)
        for suffix in op.kernels(plan)
    )


def launched(title, plan, shape=SHAPES[1], arch="sm_90a", **placement):
    return launches_for(title, plan, placed(OPS[title], plan, **placement), shape, gpu_of(arch))


@pytest.mark.parametrize("title", [*NEW, "qkv_a"])
def test_grids_threads_and_shared_memory_are_those_that_the_op_counts_with(title):
    op = OPS[title]
    for plan in variants(title).values():
        for shape in SHAPES:
            for launch, work, suffix in zip(
                launched(title, plan, shape), op.work(plan, shape), op.kernels(plan), strict=True
            ):
                assert math.prod(launch.grid) == work.ctas, (plan, shape)
                assert launch.block == work.threads
                assert launch.smem == dynamic_smem(title, plan, suffix) <= max(work.smem_bytes, 256)
                assert launch.grid[1] <= 65535
                assert launch.grid[2] <= 65535


@pytest.mark.parametrize("gdc", ["entry", "prologue", "prefetch"])
@pytest.mark.parametrize("title", TITLES)
def test_kernels_get_the_buffers_of_their_facts_and_may_read_early_what_those_allow(title, gdc):
    op = OPS[title]
    for plan in variants(title).values():
        facts = op.facts(plan, placed(op, plan, gdc))
        for launch, kernel in zip(launched(title, plan, gdc=gdc), facts, strict=True):
            buffers = {arg.buffer for arg in launch.args if not isinstance(arg, ScalarArg)}
            assert buffers == {access.buffer for access in kernel.accesses}, plan
            constant = {arg.buffer for arg in launch.args if not isinstance(arg, ScalarArg) and arg.constant}
            assert {access.buffer for access in kernel.accesses if not access.after_wait} <= constant
            assert not constant & {access.buffer for access in kernel.accesses if access.writes}


@pytest.mark.parametrize("title", TITLES)
def test_every_value_of_every_knob_is_another_launch(title):
    plans = dict.fromkeys(variants(title).values())
    launches = {launched(title, plan) for plan in plans}
    assert len(launches) == len(plans)
    default = OPS[title].default("sm_90a")
    suffix = OPS[title].kernels(default)[0]
    placements = [
        (gdc, trigger)
        for gdc in OPS[title].gdc_values(default, suffix)
        for trigger in OPS[title].trigger_values(default, suffix)
    ]
    names = {
        launched(title, default, gdc=gdc, trigger=trigger)[0].kernel.name_expression for gdc, trigger in placements
    }
    assert len(names) == len(placements)


def test_a_norm_has_nothing_to_prefetch():
    with pytest.raises(InputError, match="no weights"):
        launches_for(
            "add_rmsnorm_quant",
            OPS["add_rmsnorm_quant"].default("sm_90a"),
            (KernelPlan(gdc="prefetch"),),
            SHAPES[0],
            gpu_of("sm_90a"),
        )


def test_tensor_maps_cover_their_buffers():
    """Rows and columns of the maps are those of the ports (pools: see below); boxes are one swizzle atom wide."""
    shape = SHAPES[2]
    bytes_of = {"bf16": 2, "u8": 1, "f32": 4}
    for title in NEW:
        op = OPS[title]
        for launch in launched(title, op.default("sm_90a"), shape):
            for arg in launch.args:
                if isinstance(arg, TensorMapArg):
                    size = math.prod(arg.dims) * bytes_of[arg.dtype]
                    assert arg.buffer == "index_k_cache" or size == op.ports[arg.buffer].nbytes(shape)
                    assert arg.box[0] * bytes_of[arg.dtype] == 128


def test_prefetched_pages_are_read_early_only_where_the_plan_says_so():
    plan = OPS["paged_indexer_score"].default("sm_90a")
    for gdc in ("entry", "prologue", "prefetch"):
        (launch,) = launched("paged_indexer_score", plan, gdc=gdc)
        pages = [arg for arg in launch.args if isinstance(arg, TensorMapArg) and arg.buffer == "index_k_cache"]
        assert {arg.constant for arg in pages} == {gdc == "prefetch"}


def test_the_gate_needs_scratch_memory_only_for_splits_that_go_through_memory():
    config = {**dict(OPS["head_gate"].defaults), "block_m": 16}
    buffers = {}
    for finalizer, split_k in (("last_arriver", 1), ("last_arriver", 4), ("cluster", 4)):
        plan = OpPlan.of("wgmma", {**config, "finalizer": finalizer, "split_k": split_k})
        (launch,) = launched("head_gate", plan)
        buffers[finalizer, split_k] = [arg.buffer for arg in launch.args if isinstance(arg, BufferArg)]
        assert launch.cluster == (split_k if finalizer == "cluster" else 1)
        assert launch.grid[0] % launch.cluster == 0
    assert buffers["last_arriver", 1] == ["g", "g", "g"]
    assert buffers["last_arriver", 4] == ["partials", "tile_counters", "g"]
    assert buffers["cluster", 4] == ["g"]


@pytest.mark.parametrize(("title", "block_n", "split_k", "ctas"), [
    ("indexer_k", 64, 8, 16), ("indexer_k", 128, 12, 12), ("indexer_q", 64, 1, 2), ("indexer_q", 128, 4, 4),
])  # fmt: skip
def test_a_cluster_has_every_tile_and_split_of_a_head(title, block_n, split_k, ctas):
    changed = {"block_n": block_n, "split_k": split_k, "stages": 4, "finalizer": "cluster"}
    plan = OpPlan.of("wgmma", {**dict(OPS[title].default("sm_90a").config), **changed})
    assert OPS[title].violations(plan, placed(OPS[title], plan), SHAPES[1], H200) == []
    (launch,) = launched(title, plan)
    heads = OPS[title].problem.n // 128
    assert launch.cluster == ctas
    assert launch.grid == (ctas, heads, 1)


def test_a_cluster_has_at_least_two_ctas_and_at_most_sixteen():
    for title, block_n, split_k in (("indexer_k", 64, 12), ("indexer_q", 128, 1), ("head_gate", 64, 1)):
        changed = {"block_n": block_n, "split_k": split_k, "stages": 2, "finalizer": "cluster"}
        plan = OpPlan.of("wgmma", {**dict(OPS[title].default("sm_90a").config), **changed})
        found = OPS[title].violations(plan, placed(OPS[title], plan), SHAPES[1], H200)
        assert [violation.rule for violation in found] == ["cluster"]


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("title", NEW)
def test_defaults_compile_without_spills_and_do_what_their_facts_say(title, arch, tmp_path):
    compiled_without_spills_and_true_to_facts(title, OPS[title].default(arch), arch, tmp_path)


@pytest.mark.parametrize("ahead", ["half", "page", "turns"])
def test_scores_that_multiply_ahead_do_what_their_facts_say(ahead, tmp_path):
    plan = OpPlan.of("mktune", {"kv_split": 1024, "q_block": 8, "stages": 4, "ahead": ahead})
    compiled_without_spills_and_true_to_facts("paged_indexer_score", plan, "sm_90a", tmp_path)


def compiled_without_spills_and_true_to_facts(title, plan, arch, tmp_path):
    op = OPS[title]
    placements = [("entry", "start"), ("prologue", "after_wait"), ("prefetch", "before_epilogue"), ("prologue", "exit")]
    found = {
        placement: launched(title, plan, arch=arch, gdc=placement[0], trigger=placement[1]) for placement in placements
    }
    kernels = build([launch.kernel for (launch,) in found.values()], arch, cache_dir=tmp_path)
    # E1 multiplies by what the architecture has, and short contexts by mma.sync.
    allowed = MMA[plan.impl] if plan.impl in MMA else MMA["mma_sync"] | ({"QGMMA"} if arch == "sm_90a" else set())
    for (gdc, trigger), kernel in zip(found, kernels, strict=True):
        assert kernel.spill_bytes == kernel.stack_bytes == 0
        assert kernel.facts is not None
        assert set(kernel.facts.mma) <= allowed
        assert kernel.facts.mma
        assert kernel.facts.tma
        (facts,) = op.facts(plan, placed(op, plan, gdc, trigger))
        assert disagreement(facts, kernel.facts, starts_early=True) == ""
        launch = found[gdc, trigger][0]
        assert undeclared(facts, launch, kernel.facts, starts_early=True) == ""
        assert misplaced(KernelPlan(gdc=gdc, trigger=trigger), facts, launch, kernel.facts) == ""
        assert (kernel.facts.loads_before_wait > 0) == (gdc == "prefetch")


def tiles(title, arch):
    """Every kind of code of CTAs with one tile: each implementation and tile, the other fields as they come."""
    op, device = OPS[title], gpu_of(arch)
    found = []
    for impl, fields in op.choices(arch).items():
        free = {"split_k", "stages", "kv_split", *(op.implied if "schedule" in fields else ())}
        plans = [dict(op.default(arch).config)]
        for field, values in fields.items():
            if field not in free:
                chosen = [{field: value} for value in values] + [{}] * (field in op.implied)
                plans = [{**plan, **some} for plan in plans for some in chosen]
        for config in plans:
            plan = OpPlan.of(impl, {**config, "stages": 2})
            if not op.violations(plan, placed(op, plan), SHAPES[1], device):
                found.append(plan)
    return found


@pytest.mark.parametrize("arch", ["sm_90a", "sm_103a"])
@pytest.mark.parametrize("title", NEW)
def test_every_tile_compiles_without_spills(title, arch, tmp_path):
    specs = {launched(title, plan, arch=arch)[0].kernel for plan in tiles(title, arch)}
    assert len(specs) >= 4
    for kernel in build(sorted(specs, key=str), arch, cache_dir=tmp_path, facts=False):
        assert kernel.spill_bytes == kernel.stack_bytes == 0, kernel.spec.name_expression


@pytest.mark.parametrize("title", NEW)
def test_knobs_and_placements_change_the_instructions(title, tmp_path):
    op = OPS[title]
    default = op.default("sm_90a")
    config = dict(default.config)
    fields = {"stages": (2, 3), "warps": (4, 8), "block_m": (8, 64), "block_n": (64, 128), "split_k": (1, 4)}
    fields |= {"q_block": (1, 2, 4, 8), "ahead": ("half", "page", "turns")}
    known = {*config, *op.implied}
    chosen = {(field, value) for field, values in fields.items() if field in known for value in values}
    plans = {OpPlan.of(default.impl, {**config, field: value}) for field, value in chosen}
    plans = {plan for plan in plans | {default} if not op.violations(plan, placed(op, plan), SHAPES[1], H200)}
    specs = {launched(title, plan)[0].kernel for plan in plans}
    specs |= {launched(title, default, gdc=gdc)[0].kernel for gdc in ("entry", "prologue", "prefetch")}
    triggers = op.trigger_values(default, "")
    specs |= {launched(title, default, gdc="prefetch", trigger=trigger)[0].kernel for trigger in triggers}
    kernels = build(sorted(specs, key=str), "sm_90a", cache_dir=tmp_path, facts=False)
    listings = {cubin: disassemble(cubin) for cubin in {kernel.cubin for kernel in kernels}}
    assert len({listings[kernel.cubin][kernel.symbol] for kernel in kernels}) == len(kernels) >= 8


def test_shared_memory_is_what_the_kernels_lay_out():
    lines = ['#include "ops/bf16_gemm.cuh"', '#include "ops/paged_indexer_score.cuh"', "using namespace mktune;"]
    for block_m, block_n, stages, warps in ((8, 64, 12, 4), (16, 64, 6, 8), (16, 128, 3, 4), (128, 64, 2, 8)):
        values = {"block_m": block_m, "block_n": block_n, "split_k": 1, "stages": stages, "warps": warps}
        kind = f"Bf16Gemm<Mma::kWgmma, Major::kK, {block_m}, {block_n}, {stages}, {warps}>"
        bytes_ = dynamic_smem("head_gate", OpPlan.of("wgmma", values), "")
        lines.append(f'static_assert({kind}::kBytes == {bytes_}, "shared memory");')
    for q_block, stages in itertools.product((1, 2, 4, 8), (2, 3, 12)):
        plan = OpPlan.of("mktune", {"kv_split": 1024, "q_block": q_block, "stages": stages})
        bytes_ = dynamic_smem("paged_indexer_score", plan, "")
        kind = f"PagedIndexerScore<Mma::kWgmma, {q_block}, {stages}>"
        lines.append(f'static_assert({kind}::kBytes == {bytes_}, "shared memory");')
    lines.append("template <int> __global__ void nothing() {}")
    files = {**dict(load("ops/bf16_gemm.cuh").files), **dict(load("ops/paged_indexer_score.cuh").files)}
    source = Source("sizes.cu", (("sizes.cu", "\n".join(lines)), *files.items()))
    nvrtc.compile_program(source, ["nothing<0>"], "sm_90a", ())


def test_scores_that_multiply_ahead_have_sources_of_their_own():
    """What was stored without them stays valid when they change."""
    work = workload("glm52_attention_prefix")
    config = {"kv_split": 1024, "q_block": 8, "stages": 4}
    for more in ({}, {"ahead": "half"}, {"ahead": "page"}):
        op = OpPlan.of("mktune", config | more)
        plan = make_plan(work, ("E1",), SHAPES[1], "sm_90a", "serial", {"E1": op})
        own, _, rest = kernels_fingerprint(*Sources.of(plan)).partition("+")
        assert own == kernels_fingerprint(work.name, ("E1",)) != rest
        assert bool(rest) == Sources.of(plan).own == bool(more)


@pytest.mark.parametrize("ahead", ["", "half", "page", "turns"])
def test_products_of_scores_are_waited_for_by_the_page(ahead, tmp_path):
    """ptxas may have the tensor cores wait for every single one of the four of a page, and then nothing runs ahead."""
    specs = {}
    for q_block, stages in itertools.product((1, 2, 4, 8), (3, 4)):
        config = {"kv_split": 1024, "q_block": q_block, "stages": stages} | ({"ahead": ahead} if ahead else {})
        plan = OpPlan.of("mktune", config)
        if not OPS["paged_indexer_score"].violations(plan, (KernelPlan(),), SHAPES[1], H200):
            specs[q_block, stages] = launched("paged_indexer_score", plan)[0].kernel
    assert len(specs) == (4 if ahead in ("half", "turns") else 8)
    for kernel in build(list(specs.values()), "sm_90a", cache_dir=tmp_path, facts=False):
        assert kernel.spill_bytes == kernel.stack_bytes == 0
        products = [i for i in disassemble(kernel.cubin)[kernel.symbol] if i.name == "QGMMA"]
        awaited = [i for i in products if any("gsb0" in operand for operand in i.operands)]
        assert len(products) == 4 * len(awaited) > 0, kernel.spec.name_expression


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scores_can_read_every_page_of_an_engines_pool(shape):
    """Which is larger than what a step of that shape needs: beyond a map's end keys would be zeros."""
    (launch,) = launched("paged_indexer_score", OPS["paged_indexer_score"].default("sm_90a"), shape)
    maps = [arg for arg in launch.args if isinstance(arg, TensorMapArg) and arg.buffer == "index_k_cache"]
    assert len(maps) == 2
    for arg in maps:
        pages, rest = divmod(arg.dims[1], 66)
        assert rest == 0
        assert pages > 10_000_000
        assert arg.dims[1] < 2**31  # rows are counted in a signed number
        check_tensor_map(arg, 0)
