"""Kernels that two ops share: their machine code does what the parts declare, and takes what the launch passes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from mktune.backends.models import gpu_of
from mktune.errors import InputError, SetupError
from mktune.graph.builtin import make_plan
from mktune.graph.fused import parts_of
from mktune.graph.workload import workload
from mktune.jit import nvrtc
from mktune.jit.build import build
from mktune.jit.control_flow import is_wait
from mktune.jit.cubin import parameters
from mktune.jit.disassembly import disassemble
from mktune.jit.fingerprint import kernels_fingerprint
from mktune.jit.sass import read_facts
from mktune.jit.source import Source, load
from mktune.launch import Arg, CompiledKernel, Launch, ScalarArg, TensorMapArg, early_buffers
from mktune.lowering.graph import lower
from mktune.lowering.kernel_graph import KernelGraph
from mktune.measure.gate import disagreement, misplaced, undeclared
from mktune.measure.validation import delayed
from mktune.ops.launch import fused_launch, fused_source, launches_for
from mktune.ops.launch.shared import inverse
from mktune.plan import KernelPlan, OpPlan, Plan
from mktune.shape import MAX_M, Shape
from mktune.validity import check

WORKLOAD = workload("glm52_attention_prefix")
NAMES = ("B1p+C0", "D0+D1p")
SHAPE = Shape.from_m(16, 8192)
SHAPES = (Shape(1, 1, 64), Shape(1, 7, 64), SHAPE, Shape(1, 17, 100), Shape(8, 8, 4096), Shape(16, 8, 8192))

Fields = dict[str, dict[str, int | str]]
MEMORY: dict[str, int | str] = {"finalizer": "last_arriver"}
CASES: dict[str, tuple[Fields, str, str]] = {
    "kernel finalizers, splits": ({"D0": {"split_k": 2, "stages": 4}}, "prefetch", "start"),
    "no splits": (
        {
            "B1": {"split_k": 1, "block_n": 128, "stages": 4},
            "C0": {"split_k": 1, "stages": 4},
            "D1": {"split_k": 1, "block_n": 128},
        },
        "prologue",
        "after_wait",
    ),
    "last arrivers, splits": (
        {"B1": {**MEMORY, "split_k": 4}, "D0": {"split_k": 4, "stages": 4}, "D1": {**MEMORY, "split_k": 2}},
        "prefetch",
        "before_epilogue",
    ),
    "last arrivers, no splits": (
        {
            "B1": {**MEMORY, "split_k": 1, "block_n": 128, "warps": 8},
            "C0": {"split_k": 1, "warps": 8},
            "D0": {"warps": 8, "block_m": 32},
            "D1": {**MEMORY, "split_k": 1, "block_n": 64, "warps": 8},
        },
        "entry",
        "exit",
    ),
}
"""Configs that differ from the defaults, and where the fused kernels wait and trigger."""


def plan_of(case: str, arch: str, shape: Shape = SHAPE, impl: str = "") -> Plan:
    fields, gdc, trigger = CASES[case]
    ops = WORKLOAD.default_ops(WORKLOAD.ops, arch)
    for op in ("C0", "B1", "D0", "D1"):
        own = {"finalizer": "last_arriver"} if op == "C0" else {}
        ops[op] = OpPlan.of(impl or ops[op].impl, {**dict(ops[op].config), **own, **fields.get(op, {})})
    plan = make_plan(WORKLOAD, None, shape, arch, "branches+pdl", ops, NAMES)
    kernels = {name: replace(plan.kernel[name], gdc=gdc, trigger=trigger) for name in NAMES}
    return replace(plan, kernels=tuple({**plan.kernel, **kernels}.items()))


def lowered(plan: Plan, arch: str) -> tuple[KernelGraph, dict[str, Launch]]:
    assert check(plan, gpu_of(arch)) == []
    graph = lower(plan, WORKLOAD.graph, plan.shape, gpu_of(arch), launches=True)
    return graph, dict(graph.launches)


def each(arch: str) -> Iterator[tuple[str, Plan]]:
    """Cases by the architecture's own multiplication, and on Hopper two of them by the portable one.

    The two Blackwells have the same code but for its encoding: one of them is looked at less.
    """
    for case in list(CASES)[1:3] if arch == "sm_100a" else CASES:
        yield case, plan_of(case, arch)
    if arch == "sm_90a":
        for case in list(CASES)[1:3]:
            yield f"{case}, mma_sync", plan_of(case, arch, impl="mma_sync")


@cache
def compiled(arch: str) -> dict[tuple[str, str], CompiledKernel]:
    """(case, kernel) → its code; all of them compiled together."""
    wanted = {(case, name): lowered(plan, arch)[1][name].kernel for case, plan in each(arch) for name in NAMES}
    return dict(zip(wanted, build(list(wanted.values()), arch), strict=True))


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_103a"])
def test_they_do_what_their_parts_declare_and_the_plan_asks(arch: str) -> None:
    for case, plan in each(arch):
        graph, launches = lowered(plan, arch)
        declared = {kernel.name: kernel for kernel in graph.kernels}
        for name in NAMES:
            code, launch = compiled(arch)[case, name], launches[name]
            facts = code.facts
            assert facts is not None
            assert (code.spill_bytes, code.stack_bytes, facts.local_accesses) == (0, 0, 0), (case, name)
            assert (facts.waits, facts.unproven) == ("always", ()), (case, name)
            assert disagreement(declared[name], facts, starts_early=True) == "", (case, name)
            assert undeclared(declared[name], launch, facts, starts_early=True) == "", (case, name)
            assert misplaced(plan.kernel[name], declared[name], launch, facts) == "", (case, name)
            early = {access.buffer for access in declared[name].accesses if not access.after_wait}
            assert early_buffers(launch, facts) == early, (case, name)
            assert set(facts.mma) == expected_mma(name, plan.op["D0"].impl), (case, name)


def expected_mma(name: str, impl: str) -> set[str]:
    if impl == "mma_sync":
        return {"HMMA"}
    return {"QGMMA", "HGMMA"} if name == "B1p+C0" else {"QGMMA"}


@pytest.mark.parametrize("arch", ["sm_90a", "sm_103a"])
def test_the_cubin_declares_the_parameters_that_are_passed(arch: str) -> None:
    for case, plan in each(arch):
        for name in NAMES:
            code, launch = compiled(arch)[case, name], lowered(plan, arch)[1][name]
            declared = parameters(code.cubin, code.symbol)
            sizes = [end - first for first, end in declared.ranges]
            assert sizes == [size_of(arg) for arg in launch.args], (case, name)
            assert [first for first, _ in declared.ranges] == packed(sizes, declared.start), (case, name)


def packed(sizes: list[int], at: int) -> list[int]:
    """Where parameters of these sizes begin, one behind the other: maps at multiples of 64, the rest of their size."""
    found = []
    for size in sizes:
        alignment = min(size, 64)
        at = -(-at // alignment) * alignment
        found.append(at)
        at += size
    return found


def size_of(arg: Arg) -> int:
    if isinstance(arg, TensorMapArg):
        return 128
    return 4 if isinstance(arg, ScalarArg) else 8


def test_each_part_has_its_own_constants() -> None:
    """Taking away the wait, or one constant of either part, is seen in the machine code."""
    for (case, name), code in compiled("sm_90a").items():
        if case != "last arrivers, splits":
            continue
        assert code.facts is not None
        listing = disassemble(code.cubin)[code.symbol]
        bare = tuple(replace(one, opcode="NOP") if is_wait(one) else one for one in listing)
        assert read_facts(code, {code.symbol: bare}).waits == "never"
        waits = [at for at, one in enumerate(listing) if is_wait(one)]
        for at in (waits[0], waits[-1]):  # one of either part
            some = tuple(replace(one, opcode="NOP") if place == at else one for place, one in enumerate(listing))
            assert read_facts(code, {code.symbol: some}).waits == "some", name
        for index in code.facts.early_parameters:
            constants = tuple(one for one in code.spec.constants if one != index)
            fewer = read_facts(replace(code, spec=replace(code.spec, constants=constants)), {code.symbol: listing})
            assert any(f"parameter {index}," in reason for reason in fewer.unproven), (name, index)


@pytest.mark.parametrize("case", CASES)
def test_a_launch_is_that_of_its_parts_side_by_side(case: str) -> None:
    for shape in SHAPES:
        plan = plan_of(case, "sm_90a", shape)
        _, launches = lowered(plan, "sm_90a")
        for name, ops in zip(NAMES, (("B1", "C0"), ("D0", "D1")), strict=True):
            launch, parts = launches[name], [own_launch(plan, op, name) for op in ops]
            assert launch.grid == (sum(math.prod(part.grid) for part in parts), 1, 1)
            assert {launch.block} == {part.block for part in parts}
            assert launch.smem == max(part.smem for part in parts)
            assert launch.cluster == 1
            assert [arg.value for arg in launch.args[-2:]] == [inverse(part.grid[0]) for part in parts]  # type: ignore[union-attr]
            buffers = [[getattr(arg, "buffer", None) for arg in part.args] for part in parts]
            mine = {getattr(arg, "buffer", None) for arg in launch.args}
            assert mine == {renamed(op, one) for op, some in zip(ops, buffers, strict=True) for one in some}
            assert launch.kernel.source == fused_source([WORKLOAD.graph.calls[op].op.title for op in ops])
            constant = {i for i, arg in enumerate(launch.args) if isinstance(arg, ScalarArg) or arg.constant}
            assert set(launch.kernel.constants) == constant


def own_launch(plan: Plan, op: str, name: str) -> Launch:
    kernels = (plan.kernel[name],) + (KernelPlan(),) * (len(WORKLOAD.graph.calls[op].op.kernels(plan.op[op])) - 1)
    return launches_for(WORKLOAD.graph.calls[op].op.title, plan.op[op], kernels, plan.shape, gpu_of("sm_90a"))[0]


def renamed(op: str, port: str | None) -> str | None:
    return None if port is None else WORKLOAD.graph.calls[op].buffer(port)


def test_every_knob_of_either_part_is_another_kernel() -> None:
    def name(**fields: dict[str, int | str]) -> str:
        plan = plan_of("kernel finalizers, splits", "sm_90a")
        ops = {op: OpPlan.of(old.impl, {**dict(old.config), **fields.get(op, {})}) for op, old in plan.ops}
        return lowered(replace(plan, ops=tuple(ops.items())), "sm_90a")[1]["D0+D1p"].kernel.name_expression

    changes = [{"block_m": 8}, {"block_n": 64}, {"split_k": 1}, {"stages": 2}, {}]
    names = {name(D0={**change}) for change in changes}
    names |= {name(D1={**change}) for change in ({"block_m": 8}, {"block_n": 128}, {"split_k": 1}, {"stages": 2})}
    assert len(names) == 9
    assert "mktune::Tiling<mktune::Mma::kWgmma, 16, 128, 2, 4, 4>" in name()


def test_diagnostic_builds_of_them_compile() -> None:
    """A delay before results, stamps of every CTA, and a trace: what validation and `trace` build."""
    plan = plan_of("last arrivers, splits", "sm_90a")
    graph, launches = lowered(plan, "sm_90a")
    specs = [dict(delayed(graph, name).launches)[name].kernel for name in NAMES]
    for name in NAMES:
        ctas = (("MKTUNE_STAMPS", str(launches[name].grid[0])),)
        specs.append(replace(launches[name].kernel, defines=ctas, prelude="common/trace.cuh"))
    for code in build(specs, "sm_90a"):
        assert code.facts is not None
        assert (code.facts.waits, code.spill_bytes) == ("always", 0)


def test_a_linear_grid_visits_every_tile_in_the_order_of_the_ops_own_grid() -> None:
    """Said by the compiler: kernels of ops number their CTAs (m tiles, n tiles, splits), the first the fastest."""
    checks = []
    for op, n in (("IndexerK", 128), ("MainQ", 16384), ("IndexerQ", 4096)):
        for block_n, split, rows in ((64, 1, 1), (64, 4, 17), (128, 2, 128)):
            row_tiles, columns = -(-rows // 16), -(-n // block_n)
            grid = f"TileGrid<{op}, Tiling<Mma::kMmaSync, 16, {block_n}, {split}, 2, 4>>"
            checks.append(
                f"static_assert(same<{grid}>({rows}, {inverse(row_tiles)}u, {row_tiles}, {columns}, {split}));"
            )
    lines = [
        '#include "ops/indexer_k.cuh"', '#include "ops/indexer_q.cuh"', '#include "ops/main_q.cuh"',
        '#include "standalone/shared_grid.cuh"', "using namespace mktune;",
        "template <class Grid>", "__device__ constexpr bool same(int rows, u32 inverse,",
        "                               int m_tiles, int n_tiles, int splits) {",
        "  const Grid grid(rows, inverse);", "  int cta = 0;",
        "  for (int z = 0; z < splits; ++z)", "    for (int y = 0; y < n_tiles; ++y)",
        "      for (int x = 0; x < m_tiles; ++x, ++cta) {", "        const TilePlace at = grid.place(cta);",
        "        if (at.m_tile != x || at.n_tile != y || at.split != z) return false;", "      }",
        "  return cta == grid.ctas();", "}", *checks, "template <int> __global__ void nothing() {}",
    ]  # fmt: skip
    files: dict[str, str] = {}
    for path in ("ops/indexer_k.cuh", "ops/indexer_q.cuh", "ops/main_q.cuh", "standalone/shared_grid.cuh"):
        files |= dict(load(path).files)
    source = Source("places.cu", (("places.cu", "\n".join(lines)), *files.items()))
    nvrtc.compile_program(source, ["nothing<0>"], "sm_90a", ())
    swapped = "\n".join(lines).replace("at.split != z", "at.split != y")
    wrong = replace(source, files=(("places.cu", swapped), *files.items()))
    with pytest.raises(Exception, match="static assertion failed"):
        nvrtc.compile_program(wrong, ["nothing<0>"], "sm_90a", ())


def test_the_inverse_of_a_number_of_row_tiles_divides_every_cta_exactly() -> None:
    for row_tiles in range(2, MAX_M // 8 + 1):
        assert all((cta * inverse(row_tiles)) >> 32 == cta // row_tiles for cta in range(1 << 14)), row_tiles
    assert inverse(1) == 0  # and the kernel divides nothing


def test_what_cannot_be_one_launch_says_so() -> None:
    plan = plan_of("no splits", "sm_90a")
    parts = [own_launch(plan, op, "B1p+C0") for op in ("B1", "C0")]
    kernel, plans = plan.kernel["B1p+C0"], [plan.op["B1"], plan.op["C0"]]
    titles = ["indexer_k", "head_gate"]
    assert fused_launch(titles, plans, parts, kernel).block == parts[0].block
    with pytest.raises(InputError, match="cannot be one"):
        fused_launch(titles, plans, [parts[0], replace(parts[1], block=320)], kernel)
    with pytest.raises(InputError, match="cannot be one"):
        fused_launch(titles, plans, [parts[0], replace(parts[1], cluster=2)], kernel)
    with pytest.raises(SetupError, match="head_gate and indexer_k have no kernel in common"):
        fused_launch(titles[::-1], plans, parts, kernel)


@pytest.mark.parametrize(("name", "ops"), [("B1p+C0", ("B1", "C0")), ("D0+D1p", ("D0", "D1"))])
def test_what_is_launched_is_compiled_from_what_a_build_is_told_by(
    name: str, ops: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is named in one place: a kernel of another file would be in no fingerprint."""
    plan = plan_of("no splits", "sm_90a")
    parts = [own_launch(plan, op, name) for op in ops]
    titles, plans = [WORKLOAD.graph.calls[op].op.title for op in ops], [plan.op[op] for op in ops]
    monkeypatch.setattr("mktune.ops.launch.fused_source", lambda titles: f"elsewhere/{'-'.join(titles)}.cu")
    launch = fused_launch(titles, plans, parts, plan.kernel[name])
    assert launch.kernel.source == f"elsewhere/{titles[0]}-{titles[1]}.cu"


def test_fused_sources_change_no_fingerprint_of_the_ops_alone() -> None:
    for name in NAMES:
        titles = [WORKLOAD.graph.calls[op].op.title for op in WORKLOAD.fused_kernels(None, "sm_90a")[name]]
        shared = load(fused_source(titles)).files
        assert any(path == "standalone/shared_grid.cuh" for path, _ in shared)
        for part, title in zip(parts_of(name), titles, strict=True):
            assert "shared_grid" not in "".join(path for path, _ in load(f"standalone/{title}.cu").files), part
    assert "+" not in kernels_fingerprint(WORKLOAD.name)
