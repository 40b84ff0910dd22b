"""DeepGEMM's GEMM templates as kernels of a plan: compiled, launched with what they read, judged by what they do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_bench import H200, WORKLOAD

from mktune import deep_gemm
from mktune.backends.models import gpu_of
from mktune.errors import CandidateError
from mktune.executors import arguments
from mktune.executors.arguments import check_tensor_map
from mktune.graph.builtin import MODES, make_plan
from mktune.jit.build import build
from mktune.jit.control_flow import is_wait
from mktune.jit.cubin import parameters
from mktune.jit.disassembly import disassemble
from mktune.jit.sass import read_facts
from mktune.launch import CompiledKernel, KernelSpec, Launch, ScalarArg, TensorMapArg
from mktune.lowering.graph import lower
from mktune.measure.compile_ahead import CompileAhead
from mktune.measure.gate import check_facts, disagreement, misplaced, undeclared
from mktune.measure.op_bench import plans
from mktune.ops.deep_gemm import TEMPLATE, WithDeepGemm
from mktune.ops.deep_gemm.heuristic import Desired, pick
from mktune.ops.deep_gemm.tiles import Tiles
from mktune.ops.gemm_tiles import Problem
from mktune.ops.launch import dynamic_smem, launches_for
from mktune.ops.registry import all_ops
from mktune.plan import TRIGGERS, KernelPlan, OpPlan
from mktune.shape import Shape
from mktune.space import SearchSpace
from mktune.validity import check

pytestmark = pytest.mark.skipif(bool(deep_gemm.missing()), reason=deep_gemm.missing())

OPS = {title: op for title, op in all_ops().items() if isinstance(op, WithDeepGemm)}
FP8 = ("indexer_k", "indexer_q", "main_q", "qkv_a")
SIZES = {"i32": 4, "u32": 4, "u64": 8, "i64": 8, "f32": 4}
SHAPE = Shape.from_m(16, 8192)
ROWS = (1, 2, 7, 16, 17, 32, 64, 100, 128, 256)


def config(title: str, trigger: str = "exit", **fields: int | str) -> tuple[OpPlan, tuple[KernelPlan, ...]]:
    """The op's heuristic config at M = 16 with other fields, and how its kernels are launched."""
    op = OPS[title]
    plan = op.heuristic(SHAPE, H200)
    plan = OpPlan.of(plan.impl, {**dict(plan.config), **fields})
    placed = tuple(op.plainest(plan, suffix) for suffix in op.kernels(plan))
    return plan, tuple(
        replace(one, trigger=trigger) if op.gdc_values(plan, suffix) == TEMPLATE[0] else one
        for one, suffix in zip(placed, op.kernels(plan), strict=True)
    )


def launched(title: str, rows: int = 16, trigger: str = "exit", **fields: int | str) -> tuple[Launch, ...]:
    """Launches of a config that exists."""
    plan, placed = config(title, trigger, **fields)
    shape = Shape.from_m(rows, 8192)
    assert OPS[title].violations(plan, placed, shape, H200) == []
    return launches_for(title, plan, placed, shape, H200)


def template(title: str, rows: int = 16, trigger: str = "exit", **fields: int | str) -> Launch:
    """The one of them that is DeepGEMM's."""
    (launch,) = (
        launch for launch in launched(title, rows, trigger, **fields) if "deep_gemm::" in launch.kernel.name_expression
    )
    return launch


# Few, since each takes seconds: rows below an MMA's, one and two warpgroups, scales of one and of two weight groups,
# with and without multicast.
CASES: tuple[tuple[str, str, dict[str, int | str]], ...] = (
    ("qkv_a", "exit", {}),
    ("main_q", "exit", {"block_m": 128, "block_n": 160, "stages": 3, "multicast": "weights"}),
    ("main_q", "after_wait", {"block_m": 32, "block_n": 96, "stages": 3, "multicast": "activations"}),
    ("indexer_k", "after_wait", {}),
    ("head_gate", "exit", {"block_n": 32, "stages": 12}),
    ("q_absorb", "after_wait", {"block_m": 64, "block_n": 128, "stages": 3}),
    ("paged_indexer_score", "exit", {"q_block": 2, "stages": 4}),
)
MMA = {"head_gate": "HGMMA", "q_absorb": "HGMMA"}  # of e4m3 else


@pytest.fixture(scope="module")
def compiled() -> list[tuple[Launch, CompiledKernel]]:
    """The provider's kernel of every case."""
    found = [template(title, trigger=trigger, **fields) for title, trigger, fields in CASES]
    return list(zip(found, build([launch.kernel for launch in found], "sm_90a"), strict=True))


def test_every_class_of_tile_multiplies_and_does_not_spill(compiled: list[tuple[Launch, CompiledKernel]]) -> None:
    for (title, _, _), (launch, kernel) in zip(CASES, compiled, strict=True):
        assert kernel.facts is not None
        assert kernel.facts.mma == (MMA.get(title, "QGMMA"),)
        assert kernel.facts.tma
        assert (kernel.spill_bytes, kernel.stack_bytes, kernel.static_smem) == (0, 0, 0)
        assert kernel.registers * launch.block <= 65536


def test_machine_code_waits_triggers_and_loads_as_declared(compiled: list[tuple[Launch, CompiledKernel]]) -> None:
    for (title, trigger, fields), (launch, kernel) in zip(CASES, compiled, strict=True):
        plan, placed = config(title, trigger, **fields)
        place = next(i for i, one in enumerate(placed) if one.trigger == trigger and one.gdc == "prologue")
        declared = OPS[title].facts(plan, placed)[place]
        facts = kernel.facts
        assert facts is not None
        assert (facts.waits, facts.loads_before_wait, facts.unproven, facts.local_accesses) == ("always", 0, (), 0)
        assert (facts.trigger, facts.trigger_place) == (trigger, trigger)
        assert disagreement(declared, facts, starts_early=True) == ""
        assert undeclared(declared, launch, facts, starts_early=True) == ""
        assert misplaced(placed[place], declared, launch, facts) == ""


def test_the_gate_sees_a_template_that_does_not_wait(compiled: list[tuple[Launch, CompiledKernel]]) -> None:
    for launch, kernel in (compiled[0], compiled[-1]):
        listing = disassemble(kernel.cubin)[kernel.symbol]
        bare = tuple(replace(one, opcode="NOP") if is_wait(one) else one for one in listing)
        found = read_facts(kernel, {kernel.symbol: bare})
        assert found.waits == "never"
        produced = {i for i, arg in enumerate(launch.args) if not isinstance(arg, ScalarArg) and not arg.constant}
        assert any(f"parameter {index}," in reason for index in produced for reason in found.unproven)


OWN = [("q_absorb", gdc, trigger) for gdc in ("entry", "prologue") for trigger in TRIGGERS]
OWN += [("paged_indexer_score", gdc, trigger) for gdc in ("entry", "prologue") for trigger in TRIGGERS[:3]]


def test_kernels_of_ours_beside_them_are_as_declared_too() -> None:
    found = []
    for title, gdc, trigger in OWN:
        plan, placed = config(title)
        place = next(i for i, suffix in enumerate(OPS[title].kernels(plan)) if suffix)
        kernels = tuple(replace(one, gdc=gdc, trigger=trigger) if i == place else one for i, one in enumerate(placed))
        assert OPS[title].launch_violations(plan, kernels) == []
        launch = launches_for(title, plan, kernels, SHAPE, H200)[place]
        found.append((kernels[place], OPS[title].facts(plan, kernels)[place], launch))
    built = build([launch.kernel for _, _, launch in found], "sm_90a")
    for (placed_one, declared, launch), kernel in zip(found, built, strict=True):
        facts = kernel.facts
        assert facts is not None
        assert (facts.waits, facts.unproven, kernel.spill_bytes, facts.local_accesses) == ("always", (), 0, 0)
        assert disagreement(declared, facts, starts_early=True) == ""
        assert undeclared(declared, launch, facts, starts_early=True) == ""
        assert misplaced(placed_one, declared, launch, facts) == ""
        assert parameters(kernel.cubin, kernel.symbol).ranges == packed(launch, PARAMETERS_START)


PARAMETERS_START = 0x210  # of the bank of constants, on Hopper


def packed(launch: Launch, start: int) -> tuple[tuple[int, int], ...]:
    """(first byte, one past the last) of each argument in the bank of constants, from `start` on, as it is aligned."""
    found, at = [], start
    for arg in launch.args:
        size, align = (128, 64) if isinstance(arg, TensorMapArg) else (8, 8)
        if isinstance(arg, ScalarArg):
            size = align = SIZES[arg.ctype]
        at = -(-at // align) * align
        found.append((at, at + size))
        at += size
    return tuple(found)


def test_arguments_are_those_that_the_kernels_declare(compiled: list[tuple[Launch, CompiledKernel]]) -> None:
    for launch, kernel in compiled:
        found = parameters(kernel.cubin, kernel.symbol)
        assert found.ranges == packed(launch, found.start)


# Read off the rules for one launch of each op by hand: dims, strides, box, swizzle of the maps of activations, weights,
# results and row scales.
MAPS = {
    "head_gate": (
        ("h", "bf16", (6144, 17), (12288,), (64, 32), 128),
        ("W_g", "bf16", (6144, 32), (12288,), (64, 16), 128),
        ("g", "f32", (32, 17), (128,), (16, 32), 0),
    ),
    "q_absorb": (
        ("q", "bf16", (192, 17, 64), (32768, 512), (64, 32, 1), 128),
        ("W_uk", "bf16", (512, 192, 64), (1024, 196608), (64, 64, 1), 128),
        ("mla_q", "bf16", (512, 17, 64), (73728, 1152), (64, 32, 1), 128),
    ),
    "qkv_a": (
        ("h_q", "u8", (6144, 17), (6144,), (128, 32), 128),
        ("W_a", "u8", (6144, 2624), (6144,), (128, 96), 128),
        ("y", "bf16", (2624, 17), (5248,), (32, 32), 64),
        ("h_s", "f32", (20, 48), (80,), (32, 1), 0),
    ),
    "main_q": (
        ("q_lora_q", "u8", (2048, 17), (2048,), (128, 32), 128),
        ("W_qb", "u8", (2048, 16384), (2048,), (128, 96), 128),
        ("q", "bf16", (16384, 17), (32768,), (32, 32), 64),
        ("q_lora_s", "f32", (20, 16), (80,), (32, 1), 0),
    ),
}


@pytest.mark.parametrize("title", MAPS)
def test_tensor_maps_are_what_the_template_reads(title: str) -> None:
    block_n = {"head_gate": 16, "q_absorb": 128}.get(title, 96)
    maps = maps_of(template(title, rows=17, block_m=32, block_n=block_n, stages=4))
    found = tuple((m.buffer, m.dtype, m.dims, m.strides, m.box, m.swizzle) for m in maps)
    assert found == MAPS[title]
    assert [m.l2 for m in maps] == [256] * len(maps)
    assert [m.constant for m in maps] == [False, True, False, False][: len(maps)]
    for arg in maps:
        check_tensor_map(arg, 0)


@pytest.mark.parametrize("tokens", [1, 2])
def test_tensor_maps_of_the_scores_reach_any_page_of_a_pool(tokens: int) -> None:
    q, keys, scales, w = maps_of(template("paged_indexer_score", q_block=tokens))
    assert (q.buffer, q.dtype, q.dims, q.strides) == ("qi", "u8", (128, 16 * 32), (128,))
    assert (q.box, q.swizzle) == ((128, tokens * 32), 128)
    assert (w.buffer, w.dtype, w.dims, w.strides) == ("w", "f32", (32, 16), (128,))
    assert (w.box, w.swizzle) == ((32, tokens), 0)
    assert (keys.buffer, keys.dtype, keys.strides, keys.box) == ("index_k_cache", "u8", (128, 8448), (128, 64, 1))
    assert (keys.swizzle, keys.offset) == (128, 0)
    assert (scales.buffer, scales.dtype, scales.strides, scales.box) == ("index_k_cache", "f32", (8448,), (64, 1))
    assert (scales.swizzle, scales.offset) == (0, 64 * 128)
    assert keys.dims == (128, 64, keys.dims[2])
    assert scales.dims == (64, keys.dims[2])
    assert keys.dims[2] > 32_000_000
    for arg in (q, keys, scales, w):
        check_tensor_map(arg, arg.offset)


def test_scores_are_made_by_groups_of_tokens_that_the_schedule_has_laid_out() -> None:
    shape = Shape(3, 4, 1000)
    plan, placed = config("paged_indexer_score", q_block=2, ctas=96)
    assert OPS["paged_indexer_score"].violations(plan, placed, shape, H200) == []
    schedule, scores = launches_for("paged_indexer_score", plan, placed, shape, H200)
    assert (schedule.grid, scores.grid, scores.block) == ((7, 1, 1), (96, 1, 1), 640)
    assert [arg.value for arg in schedule.args if isinstance(arg, ScalarArg)] == [6, 2, 16]
    scalars = [arg.value for arg in scores.args if isinstance(arg, ScalarArg)]
    assert scalars == [6, 1024, 16, 0]  # groups, stride of a row of logits, pages of a group's row, nothing
    sizes = {space.port: space.bytes for space in OPS["paged_indexer_score"].workspaces(plan, shape)}
    assert sizes["lens"] == 4 * 6
    assert sizes["tables"] == 4 * 6 * 16
    assert sizes["schedule"] >= 8 * 97
    odd = Shape(2, 3, 1000)
    assert [one.rule for one in OPS["paged_indexer_score"].config_violations(plan, odd, H200)] == ["q_block"]


def test_the_offset_of_a_map_is_added_to_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(arguments, "encode_tensor_map", lambda arg, address: seen.append(address) or bytes(128))
    arguments.pack(
        maps_of(template("paged_indexer_score")), {"qi": 1 << 20, "w": 2 << 20, "index_k_cache": 3 << 20}.get
    )
    assert seen == [1 << 20, 3 << 20, (3 << 20) + 8192, 2 << 20]


def maps_of(launch: Launch) -> list[TensorMapArg]:
    return [arg for arg in launch.args if isinstance(arg, TensorMapArg)]


def test_swizzle_of_results_is_the_widest_that_divides_a_row_of_the_tile() -> None:
    widths = {16: 32, 32: 64, 48: 32, 64: 128, 80: 32, 96: 64, 112: 32, 128: 128, 144: 32, 160: 64, 192: 128}
    assert {n: Tiles(16, n, 4, 132).result_swizzle(2) for n in widths} == widths
    assert Tiles(16, 32, 4, 132).result_swizzle(4) == 0


def test_scalars_grid_and_instance() -> None:
    launch = launched("qkv_a", rows=17, block_m=32, block_n=96, stages=4, ctas=64)[0]
    scalars = [(arg.value, arg.ctype) for arg in launch.args if isinstance(arg, ScalarArg)]
    assert scalars == [(0, "u64"), (17, "u32"), (2624, "u32"), (6144, "u32")]
    assert (launch.grid, launch.block, launch.cluster) == ((28, 1, 1), 256, 1)  # 2624 / 96 columns
    assert launch.kernel.name_expression == (
        "deep_gemm::sm90_fp8_gemm_1d2d_impl<cute::UMMA::Major::K, 0, 2624, 6144, 1, 32, 96, 128, 128, 128, 64, 4, 128, "
        "128, 1, false, 64, deep_gemm::GemmType::Normal, cutlass::bfloat16_t, "
        "deep_gemm::epilogue::transform::EpilogueIdentity>"
    )
    assert launch.kernel.defines == ()
    assert launched("qkv_a", trigger="after_wait")[0].kernel.defines == (("MKTUNE_TRIGGER_AFTER_WAIT", "1"),)
    paired = launched("main_q", rows=256, block_m=128, block_n=64, stages=4, multicast="weights")[0]
    assert (paired.grid, paired.block, paired.cluster) == ((132, 1, 1), 384, 2)
    assert ", 256, 2, false, 132, " in paired.kernel.name_expression


def test_a_kernel_serves_every_number_of_rows() -> None:
    one, other = (launched("main_q", rows=rows)[0] for rows in (1, 16))
    assert one.kernel == other.kernel
    assert one.args != other.args


# results + stages × (tiles, row scales, two barriers) + weight scales of all K
SMEM = {
    ("head_gate", 16, 32, 8): 2048 + 8 * (2048 + 4096 + 16),
    ("q_absorb", 64, 128, 3): 16384 + 3 * (8192 + 16384 + 16),
    ("qkv_a", 16, 64, 8): 2048 + 8 * (2048 + 8192 + 128 + 16) + 48 * 4,
    ("qkv_a", 64, 96, 4): 12288 + 4 * (8192 + 12288 + 256 + 16) + 2 * 48 * 4,
    ("main_q", 128, 160, 3): 40960 + 3 * (16384 + 20480 + 512 + 16) + 2 * 16 * 4,
}


@pytest.mark.parametrize(("title", "block_m", "block_n", "stages"), SMEM)
def test_shared_memory_is_what_the_template_lays_out(title: str, block_m: int, block_n: int, stages: int) -> None:
    fields = {"block_m": block_m, "block_n": block_n, "stages": stages}
    assert template(title, **fields).smem == SMEM[title, block_m, block_n, stages]
    plan, placed = config(title, **fields)
    assert_sizes(title, plan, placed)


def test_shared_memory_of_the_scores_is_what_the_template_lays_out() -> None:
    plan, placed = config("paged_indexer_score", q_block=2, stages=3)
    query, page = 8192 + 1024, 8192 + 1024
    assert launched("paged_indexer_score", q_block=2, stages=3)[1].smem == 3 * query + 1024 + 4 * (3 * page + 1024)
    assert_sizes("paged_indexer_score", plan, placed)


def assert_sizes(title: str, plan: OpPlan, placed: tuple[KernelPlan, ...]) -> None:
    """What the model and the executors are told agrees with the launches."""
    work = OPS[title].work(plan, SHAPE)
    launches = launches_for(title, plan, placed, SHAPE, H200)
    assert [dynamic_smem(title, plan, suffix) for suffix in OPS[title].kernels(plan)] == [one.smem for one in launches]
    for kernel, launch in zip(work, launches, strict=True):
        x, y, z = launch.grid
        assert (kernel.ctas, kernel.threads) == (x * y * z, launch.block)
        assert kernel.smem_bytes >= launch.smem


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"block_n": 24}, "config"),
        ({"split_k": 1}, "config"),
        ({"multicast": "both"}, "config"),
        ({"block_m": 128, "block_n": 192, "stages": 6}, "smem"),
        ({"block_m": 16, "block_n": 16, "stages": 2}, "stages"),
        ({"block_m": 256, "block_n": 144, "stages": 2}, "tile"),
    ],
)
def test_configs_that_no_template_has_are_refused(fields: dict[str, int | str], rule: str) -> None:
    plan, _ = config("main_q", **fields)
    assert [one.rule for one in OPS["main_q"].config_violations(plan, SHAPE, H200)] == [rule]


def test_more_ctas_than_the_gpu_has_or_than_can_be_paired_are_refused() -> None:
    plan, _ = config("main_q")
    small = replace(H200, sms=78)
    assert [one.rule for one in OPS["main_q"].config_violations(plan, SHAPE, small)] == ["ctas"]
    assert dict(OPS["main_q"].heuristic(SHAPE, small).config)["ctas"] == 64


@pytest.mark.parametrize("arch", ["sm_100a", "sm_103a"])
def test_fp32_scales_have_no_template_on_blackwell(arch: str) -> None:
    for title in FP8:
        plan, _ = config(title)
        (found,) = OPS[title].config_violations(plan, SHAPE, gpu_of(arch))
        assert str(found).startswith(f"impl: : {title} has no impl 'deep_gemm' on {arch}; known: mma_sync")


@pytest.mark.parametrize("mode", MODES)
def test_built_in_plans_of_heuristic_configs_are_valid(mode: str) -> None:
    configs = {name: call.op for name, call in WORKLOAD.graph.calls.items() if isinstance(call.op, WithDeepGemm)}
    for rows in ROWS:
        shape = Shape.from_m(rows, 8192)
        chosen = {name: op.heuristic(shape, H200) for name, op in configs.items()}
        plan = make_plan(WORKLOAD, None, shape, "sm_90a", mode, chosen)
        assert check(plan, H200) == []


def test_the_gate_lets_the_kernels_of_such_a_plan_pass() -> None:
    plan = make_plan(WORKLOAD, ("B1",), SHAPE, "sm_90a", "serial+pdl", {"B1": config("indexer_k")[0]})
    graph = lower(plan, WORKLOAD.subgraph(("B1",)), SHAPE, H200, launches=True)
    kernels = {kernel.spec: kernel for kernel in build([launch.kernel for _, launch in graph.launches], "sm_90a")}
    assert [kernel.trigger for _, kernel in plan.kernels] == ["exit", "after_wait"]
    check_facts(graph, kernels, plan)


def test_a_template_of_another_architecture_is_refused() -> None:
    """It compiles to a stub, without any error."""
    name = (
        "deep_gemm::sm100_fp8_fp4_gemm_1d1d_impl<cute::UMMA::Major::K, cute::UMMA::Major::K, 128, 128, 128, 0, 2624, "
        "6144, 16, 128, 128, 1, 128, 128, 128, 6, 128, 128, 1, false, 148, true, false, deep_gemm::GemmType::Normal, "
        "false, cutlass::float_e4m3_t, cutlass::float_e4m3_t, cutlass::bfloat16_t, "
        "deep_gemm::epilogue::transform::EpilogueIdentity>"
    )
    with pytest.raises(CandidateError, match="multiplies nothing when compiled for sm_90a") as caught:
        build([KernelSpec("providers/deep_gemm/sm100_fp8_gemm.cu", name)], "sm_90a")
    assert caught.value.status == "compile_error"


def test_delays_and_stamps_reach_the_templates() -> None:
    launch = launched("indexer_k")[0]
    defines = (("MKTUNE_DELAY_NS", "20000"), ("MKTUNE_STAMPS", "8"))
    (kernel,) = build([replace(launch.kernel, defines=defines, prelude="common/trace.cuh")], "sm_90a")
    names = {instruction.name for instruction in disassemble(kernel.cubin)[kernel.symbol]}
    assert {"NANOSLEEP", "QGMMA"} <= names
    assert all(symbol in kernel.cubin for symbol in (b"mktune_stamps", b"mktune_notes"))
    assert kernel.facts is not None
    assert kernel.facts.waits == "always"


def test_the_heuristic_is_a_config_that_exists_at_every_number_of_rows() -> None:
    for title, rows in ((title, rows) for title in OPS for rows in ROWS):
        shape = Shape.from_m(rows, 8192)
        assert OPS[title].config_violations(OPS[title].heuristic(shape, H200), shape, H200) == []


@pytest.mark.parametrize("rows", [1, 17, 64, 256])
def test_the_shipped_space_has_the_heuristic_s_config_of_every_op(rows: int) -> None:
    shape = Shape.from_m(rows, 8192)
    space = SearchSpace.load(WORKLOAD, None, shape, H200)
    for name, call in WORKLOAD.graph.calls.items():
        if isinstance(call.op, WithDeepGemm):
            plan = make_plan(WORKLOAD, (name,), shape, "sm_90a", "serial", {name: call.op.heuristic(shape, H200)})
            assert space.configs_of(name).to_choices(plan) is not None, plan.op[name]


def test_kernels_that_write_the_same_rows_must_be_ordered() -> None:
    """D2's GEMM and its RoPE write different columns of mla_q; nothing but their stream orders the two."""
    plan = make_plan(WORKLOAD, ("D2",), SHAPE, "sm_90a", "serial", {"D2": config("q_absorb")[0]})
    assert check(plan, H200) == []
    apart = replace(plan, kernels=(plan.kernels[0], ("D2r", replace(plan.kernel["D2r"], stream=1)))).canonical()
    assert "write_after_write" in {one.rule for one in check(apart, H200)}


def test_the_schedule_of_scores_must_be_complete_before_they_are_made() -> None:
    plan = make_plan(WORKLOAD, ("E1",), SHAPE, "sm_90a", "serial+pdl", {"E1": config("paged_indexer_score")[0]})
    assert plan.edges == ((("E1s", "E1"), "programmatic"),)
    assert check(plan, H200) == []
    facts = {kernel.name: kernel for kernel in lower(plan, WORKLOAD.subgraph(("E1",)), SHAPE).kernels}
    made = {access.buffer for access in facts["E1s"].accesses if access.writes}
    assert made == {"E1.lens", "E1.tables", "E1.schedule"}
    assert made <= {access.buffer for access in facts["E1"].accesses if access.after_wait and not access.writes}
    assert [access.buffer for access in facts["E1s"].accesses if not access.after_wait] == ["context_lens"]


def test_the_heuristic_takes_the_layout_of_fewest_modelled_cycles() -> None:
    """Worked out by hand for B0 at M = 16: 82 tiles of 32 columns are one wave and fill it best for their traffic."""
    problem = Problem(n=2624, k=6144, element_bytes=1)
    cycles = {}
    for n in (16, 32, 48, 64):
        tiles = -(-2624 // n)
        waves = -(-tiles // 132)
        l2 = (6144 * (16 + n) + 16 * n * 2) * tiles // 6153
        l1 = (6144 * (16 + n) + 6144 * (64 + n) + 2 * 16 * n * 2) * tiles // 16896
        cycles[n] = max(l1, l2) / (tiles / (waves * 132))
    assert min(cycles, key=cycles.__getitem__) == 32
    assert pick(Desired(problem, 16, 132)) == Tiles(16, 32, 16, 132)
    assert pick(Desired(problem, 256, 132)) == Tiles(64, 80, 11, 132)
    assert pick(Desired(Problem(n=16384, k=2048, element_bytes=1), 256, 132)) == Tiles(256, 128, 3, 132)
    # One wave is never paired; many are where that saves traffic.
    assert pick(Desired(Problem(n=16384, k=16384, element_bytes=1), 4096, 132)).multicast != "none"


def test_bench_ops_has_a_row_for_it() -> None:
    found = list(plans(WORKLOAD, "D0", SHAPE, H200, 0, 0))
    assert [(plan.op["D0"].impl, default) for _, default, plan in found] == [("wgmma", True), ("deep_gemm", False)]
    modes = [mode for mode, _, plan in plans(WORKLOAD, "E1", SHAPE, H200, 0, 0) if plan.op["E1"].impl == "deep_gemm"]
    assert modes == ["serial", "serial+pdl"]


def test_modelled_bytes_and_flops_are_the_op_s_own() -> None:
    for title, op in OPS.items():
        plan, _ = config(title)
        work = op.work(plan, SHAPE)
        assert sum(kernel.cold_bytes for kernel in work) == op.bytes_read(SHAPE)
        assert sum(kernel.flops for kernel in work) == op.flops(SHAPE)
        assert all(kernel.prefetch_bytes <= kernel.cold_bytes for kernel in work)


def test_results_lie_row_after_row_where_the_finalizer_reads_them() -> None:
    for title in ("indexer_k", "indexer_q", "qkv_a"):
        plan, _ = config(title)
        (space,) = OPS[title].workspaces(plan, Shape.from_m(17, 8192))
        gemm, finish = launched(title, rows=17)
        (y,) = (arg for arg in gemm.args if isinstance(arg, TensorMapArg) and arg.buffer == "y")
        assert (space.port, space.bytes) == ("y", y.strides[0] * y.dims[1])
        assert finish.args[0].buffer == "y"  # type: ignore[union-attr]
        assert ", 1, mktune::Gdc::" in finish.kernel.name_expression  # split_k 1: rows of bf16


def test_a_compiling_process_leaves_nothing_in_the_folder_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither while it lives nor when it is killed. NVRTC's precompiled headers would be 237 MB for every template."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    pool = CompileAhead("sm_90a", 1)
    try:
        pool.wait([launched("main_q")[0].kernel])
    finally:
        pool.close()
    left = [file for file in folder.rglob("*") if file.is_file() and file.suffix != ".log"]  # what a worker printed
    assert left == []
