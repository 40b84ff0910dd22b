"""Kernels of A0 and the block-FP8 GEMMs compile, do what their facts say, and every knob changes something."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from mktune.device import Device
from mktune.errors import CandidateError
from mktune.jit import nvrtc
from mktune.jit.build import build
from mktune.jit.disassembly import disassemble
from mktune.jit.source import Source, load
from mktune.launch import CompiledKernel, Launch
from mktune.measure.gate import misplaced, undeclared
from mktune.ops.checks import trigger_class
from mktune.ops.gemm import GemmOp
from mktune.ops.gemm_tiles import GemmConfig
from mktune.ops.launch import launches_for
from mktune.ops.registry import all_ops
from mktune.plan import GDC, TRIGGERS, KernelPlan, OpPlan
from mktune.shape import Shape

ARCHS = {"sm_90a": 132, "sm_100a": 148, "sm_103a": 148}
SHAPE = Shape.from_m(16, 8192)
PREFETCH = KernelPlan(gdc="prefetch", trigger="start")
EARLY = KernelPlan(gdc="prologue", trigger="after_wait")
GEMMS = ("qkv_a", "indexer_k", "main_q", "indexer_q")
WITH_FINALIZER = ("qkv_a", "indexer_k", "indexer_q")


def device(arch: str) -> Device:
    return Device(arch, arch, ARCHS[arch], 232448, 60 << 20, 4.8e12)


def launches(title: str, plan: OpPlan, kernels: tuple[KernelPlan, ...], arch: str = "sm_90a") -> tuple[Launch, ...]:
    return launches_for(title, plan, kernels, SHAPE, device(arch))


def compiled(found: tuple[Launch, ...], arch: str) -> list[CompiledKernel]:
    return build([launch.kernel for launch in found], arch)


def changed(plan: OpPlan, **fields: int | str) -> OpPlan:
    return OpPlan.of(plan.impl, {**dict(plan.config), **fields})


def gemm(title: str, plan: OpPlan, arch: str = "sm_90a") -> tuple[Launch, ...]:
    """Launches that fetch weights and constants before the wait."""
    return launches(title, plan, (PREFETCH, EARLY)[: len(all_ops()[title].kernels(plan))], arch)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("title", GEMMS)
def test_default_configs_do_not_spill_and_use_the_tensor_cores_of_their_architecture(title: str, arch: str) -> None:
    ops = all_ops()
    default = ops[title].default(arch)
    found = [launches("add_rmsnorm_quant", ops["add_rmsnorm_quant"].default(arch), (EARLY,), arch)]
    found += [gemm(title, default, arch)]
    if title in WITH_FINALIZER:
        found += [gemm(title, changed(default, finalizer="last_arriver"), arch)]
    for kernel in compiled(tuple(itertools.chain(*found)), arch):
        assert (kernel.spill_bytes, kernel.stack_bytes) == (0, 0)
        name = kernel.spec.name_expression.partition("<")[0]
        multiplies = not name.endswith(("rmsnorm_quant", "finalizer"))
        facts = kernel.facts
        assert facts is not None
        assert facts.mma == ((("QGMMA",) if arch == "sm_90a" else ("HMMA",)) if multiplies else ())
        assert facts.tma == multiplies


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("gdc", GDC)
def test_machine_code_waits_triggers_and_loads_as_the_ops_declare(arch: str, gdc: str) -> None:
    ops = all_ops()
    small = "prologue" if gdc == "prefetch" else gdc
    for title, placed in (("add_rmsnorm_quant", [small]), ("qkv_a", [gdc, small])):
        for trigger in TRIGGERS:
            does_as_declared(title, ops[title].default(arch), [(where, trigger) for where in placed], arch)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("title", ["indexer_k", "main_q", "indexer_q"])
def test_machine_code_of_the_other_gemms_is_as_declared_too(title: str, arch: str) -> None:
    """Each place to wait and each place to trigger once: kernels share the code that does so."""
    op = all_ops()[title]
    plan = op.default(arch)
    for i, trigger in enumerate(TRIGGERS):
        placed = [(GDC[i % 3], trigger), (GDC[i % 2], TRIGGERS[i - 1])]
        does_as_declared(title, plan, placed[: len(op.kernels(plan))], arch)


@pytest.mark.parametrize("title", GEMMS)
@pytest.mark.parametrize("fields", [{}, {"block_n": 64, "split_k": 1}, {"block_n": 128, "split_k": 1}])
def test_kernels_that_finish_what_they_sum_wait_too(title: str, fields: dict[str, int]) -> None:
    plan = changed(all_ops()[title].default("sm_90a"), **({"split_k": 4, "stages": 4} | fields))
    if title in WITH_FINALIZER:
        plan = changed(plan, finalizer="last_arriver")
    does_as_declared(title, plan, [("prefetch", "start")], "sm_90a")


def does_as_declared(title: str, plan: OpPlan, placed: list[tuple[str, str]], arch: str) -> None:
    op = all_ops()[title]
    kernels = tuple(KernelPlan(gdc=gdc, trigger=trigger) for gdc, trigger in placed)
    launched = launches(title, plan, kernels, arch)
    built = compiled(launched, arch)
    for kernel, launch, planned, declared in zip(built, launched, kernels, op.facts(plan, kernels), strict=True):
        facts = kernel.facts
        assert facts is not None
        assert (facts.waits == "always") == declared.waits
        assert facts.trigger == declared.trigger == trigger_class(planned.trigger)
        assert facts.unproven == ()
        assert undeclared(declared, launch, facts, starts_early=True) == ""
        assert misplaced(planned, declared, launch, facts) == ""
        early = [access for access in declared.accesses if not access.after_wait]
        assert (facts.loads_before_wait > 0) == bool(early)


def test_a_buffer_that_is_not_declared_constant_is_an_unproven_load() -> None:
    (launch, _) = launches("qkv_a", all_ops()["qkv_a"].default("sm_90a"), (PREFETCH, EARLY))
    constants = tuple(index for index in launch.kernel.constants if index != 0)  # the map of the weights
    (kernel,) = build([replace(launch.kernel, constants=constants)], "sm_90a")
    assert kernel.facts is not None
    assert 0 < kernel.facts.unproven_loads < kernel.facts.loads_before_wait


SPREAD = [
    {"block_m": 16, "block_n": 64, "split_k": 3, "stages": 12, "warps": 8},
    {"block_m": 32, "block_n": 128, "split_k": 6, "stages": 2, "warps": 4, "finalizer": "last_arriver"},
    {"block_m": 64, "block_n": 64, "split_k": 1, "stages": 6, "warps": 4, "finalizer_threads": 512},
    {"block_m": 128, "block_n": 128, "split_k": 16, "stages": 3, "warps": 8, "finalizer_threads": 128},
]


@pytest.mark.parametrize("arch", ARCHS)
def test_a_spread_of_tiles_compiles(arch: str) -> None:
    default = all_ops()["qkv_a"].default(arch)
    found = []
    for fields in SPREAD:
        plan = changed(default, **fields)
        placed = (PREFETCH, EARLY)[: len(all_ops()["qkv_a"].kernels(plan))]
        assert not all_ops()["qkv_a"].violations(plan, placed, SHAPE, device(arch))
        found += launches("qkv_a", plan, placed, arch)
    if arch == "sm_90a":
        found += launches("qkv_a", changed(OpPlan("mma_sync", default.config), block_n=64), (PREFETCH, EARLY), arch)
        found += launches("qkv_a", changed(default, block_m=8), (PREFETCH, EARLY), arch)
    kernels = build([launch.kernel for launch in found], arch, facts=False)
    assert all(kernel.registers > 0 for kernel in kernels)


def _classes(arch: str) -> Iterator[tuple[str, OpPlan]]:
    """Every tile and warp count of each of our implementations; ops, finalizers, splits and stages take turns."""
    ops = all_ops()
    for impl, fields in ops["indexer_q"].choices(arch).items():
        if impl == "deep_gemm":
            continue
        turns = zip(
            itertools.cycle(("main_q", "indexer_q", "indexer_k", "main_q", "indexer_k", "indexer_q", "indexer_q")),
            itertools.cycle(("last_arriver", "kernel", "last_arriver")),
            itertools.cycle((1, 4, 16, 1, 2)),
        )
        for tile in itertools.product(fields["block_m"], fields["block_n"], fields["warps"]):
            title, finalizer, split = next(turns)
            config = {**dict(zip(("block_m", "block_n", "warps"), tile, strict=True)), "split_k": split, "stages": 2}
            if split == 16 and title != "indexer_k":
                config["split_k"] = 8
            if title in WITH_FINALIZER:
                config |= {"finalizer": finalizer, "finalizer_threads": 128}
            plan = OpPlan.of(impl, config)
            placed = (PREFETCH, EARLY)[: len(ops[title].kernels(plan))]
            if not ops[title].violations(plan, placed, SHAPE, device(arch)):
                yield title, plan


@pytest.mark.parametrize("arch", ARCHS)
def test_every_class_of_tiles_compiles(arch: str) -> None:
    found = list(_classes(arch))
    assert len(
        {(plan.impl, *(dict(plan.config)[field] for field in ("block_m", "block_n", "warps"))) for _, plan in found}
    ) == ({"sm_90a": 34}.get(arch, 15))
    kernels = build([launch.kernel for title, plan in found for launch in gemm(title, plan, arch)], arch, facts=False)
    assert all(kernel.registers > 0 for kernel in kernels)


def test_wgmma_on_another_architecture_is_a_compile_error_that_says_so() -> None:
    plan = all_ops()["qkv_a"].default("sm_90a")
    (launch, _) = launches("qkv_a", plan, (PREFETCH, EARLY))
    with pytest.raises(CandidateError, match="sm_90a only") as caught:
        build([launch.kernel], "sm_103a")
    assert caught.value.status == "compile_error"


def test_shared_memory_is_what_the_kernel_lays_out() -> None:
    files = dict(load("ops/block_fp8_gemm.cuh").files)
    lines = ['#include "ops/block_fp8_gemm.cuh"', "using namespace mktune;"]
    for block_m, block_n, split_k, stages, warps in (
        (8, 64, 3, 12, 4),
        (16, 64, 3, 12, 8),
        (16, 128, 6, 7, 4),
        (128, 64, 1, 4, 8),
        (64, 128, 16, 3, 8),
    ):
        groups = 48 // split_k
        config = GemmConfig(block_m, block_n, split_k, stages, warps)
        kind = f"BlockFp8Gemm<Mma::kWgmma, {block_m}, {block_n}, {stages}, {warps}, {groups}>"
        lines.append(f'static_assert({kind}::kBytes == {config.smem_bytes(groups)}, "shared memory");')
    lines.append("template <int> __global__ void nothing() {}")
    source = Source("sizes.cu", (("sizes.cu", "\n".join(lines)), *files.items()))
    nvrtc.compile_program(source, ["nothing<0>"], "sm_90a", ())


GEMM_KNOBS: dict[str, tuple[int | str, ...]] = {
    "block_m": (8, 16, 32, 64, 128),
    "block_n": (64, 128),
    "split_k": (1, 2, 3, 4, 6, 8),
    "stages": (2, 3, 4, 6),
    "warps": (4, 8),
    "finalizer": ("kernel", "last_arriver"),
    "finalizer_threads": (128, 256, 512),
}


def _different(variants: list[tuple[Launch, ...]]) -> int:
    """How many of `variants` run different instructions, or the same ones in another launch."""
    specs = list(dict.fromkeys(launch.kernel for launches in variants for launch in launches))
    kernels = {kernel.spec: kernel for kernel in build(specs, "sm_90a", facts=False)}
    listings = {cubin: disassemble(cubin) for cubin in {kernel.cubin for kernel in kernels.values()}}

    def runs(launch: Launch) -> tuple[object, ...]:
        kernel = kernels[launch.kernel]
        return listings[kernel.cubin][kernel.symbol], launch.grid, launch.block, launch.smem, launch.args

    return len({tuple(map(runs, launches)) for launches in variants})


# What ops share needs no proof for each of them.
KNOBS = [("qkv_a", knob) for knob in GEMM_KNOBS] + [("main_q", "split_k")]
KNOBS += [
    (title, knob) for title in ("indexer_k", "indexer_q") for knob in ("split_k", "finalizer", "finalizer_threads")
]


@pytest.mark.parametrize(("title", "knob"), KNOBS)
def test_every_value_of_a_gemm_knob_runs_something_else(title: str, knob: str) -> None:
    op = all_ops()[title]
    assert isinstance(op, GemmOp)
    values = [value for value in GEMM_KNOBS[knob] if knob != "split_k" or op.problem.groups % int(value) == 0]
    variants = []
    for value in values:
        plan = changed(op.default("sm_90a"), **{"block_n": 64, "split_k": 4, "stages": 4, knob: value})
        variants.append(gemm(title, plan))
    assert _different(variants) == len(variants)


def test_every_placement_runs_something_else() -> None:
    plan = changed(all_ops()["qkv_a"].default("sm_90a"), block_n=64, stages=4)
    gemms = [KernelPlan(gdc=gdc, trigger=trigger) for gdc in GDC for trigger in TRIGGERS]
    gemms.append(KernelPlan(gdc="prefetch", l2_prefetch_bytes=8192))
    assert _different([launches("qkv_a", plan, (gemm, EARLY))[:1] for gemm in gemms]) == len(gemms)
    small = [KernelPlan(gdc=gdc, trigger=trigger) for gdc in GDC[:2] for trigger in TRIGGERS]
    assert _different([launches("qkv_a", plan, (PREFETCH, one))[1:] for one in small]) == len(small)
    for title in ("indexer_k", "indexer_q"):
        plan = all_ops()[title].default("sm_90a")
        assert _different([launches(title, plan, (PREFETCH, one))[1:] for one in small]) == len(small)
    a0 = all_ops()["add_rmsnorm_quant"].default("sm_90a")
    rows = [
        launches("add_rmsnorm_quant", changed(a0, threads=threads), (one,)) for threads in (192, 768) for one in small
    ]
    assert _different(rows) == len(rows)
