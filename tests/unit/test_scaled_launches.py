"""Kernels under scale format ue8m0: quantisers on the host, what launches hand over, and that they compile.

The GEMMs themselves are run on the host by test_gemm_emulated.py, in both formats.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from emulated_launches import compiled  # noqa: E402
from test_deep_gemm_gemms import maps_of  # noqa: E402

from mktune import deep_gemm  # noqa: E402
from mktune.backends.models import gpu_of  # noqa: E402
from mktune.executors.arguments import check_tensor_map  # noqa: E402
from mktune.graph.builtin import make_plan  # noqa: E402
from mktune.graph.workload import workload  # noqa: E402
from mktune.jit.build import build  # noqa: E402
from mktune.launch import KernelSpec, Launch  # noqa: E402
from mktune.lowering.graph import lower  # noqa: E402
from mktune.measure.gate import check_facts  # noqa: E402
from mktune.ops.numerics import quantise, store_scales  # noqa: E402
from mktune.plan import OpPlan  # noqa: E402
from mktune.shape import Shape  # noqa: E402
from mktune.space import SearchSpace  # noqa: E402
from mktune.validity import check  # noqa: E402

NAME = "glm52_attention_prefix"
PLAIN, PACKED = workload(NAME), workload(NAME, "ue8m0")
SHAPE = Shape.from_m(17, 8192)
DEFINE = ("MKTUNE_UE8M0", "1")
BUILT_SO = {"A0", "B0p", "B0f", "B1p", "D0", "D1p"}
B0 = PACKED.graph.calls["B0"].op


def launches(known, arch: str, ops: dict[str, OpPlan] | None = None, mode: str = "branches+pdl") -> dict[str, Launch]:
    plan = make_plan(known, None, SHAPE, arch, mode, ops)
    assert check(plan, gpu_of(arch)) == []
    return dict(lower(plan, known.graph, SHAPE, gpu_of(arch), launches=True).launches)


@pytest.mark.parametrize("scale_format", ["fp32", "ue8m0"])
def test_quantisers_on_the_host(tmp_path: Path, scale_format: str) -> None:
    defines = (DEFINE,) if scale_format == "ue8m0" else ()
    program = compiled(tmp_path, "quantiser.cpp", {}, "-O1", defines)
    done = subprocess.run([str(program)], capture_output=True, timeout=60, check=True)
    words = torch.frombuffer(bytearray(done.stdout), dtype=torch.int32)
    scales, stored = words[: 2 * 0x7F80].view(-1, 2), words[2 * 0x7F80 :]
    peaks = (torch.arange(0x7F80, dtype=torch.int32) << 16).view(torch.float32)
    _, right = quantise(peaks[:, None] * torch.eye(1, 128), 1e-10, scale_format)
    assert torch.equal(scales[:, 0], right[:, 0].view(torch.int32))
    if scale_format == "ue8m0":
        assert torch.equal(scales[:, 1].view(torch.float32) * right[:, 0], torch.ones(0x7F80))
    steps = (7 * torch.arange(48)[None] + torch.arange(7)[:, None]) % 41 - 20
    expected = store_scales(torch.ldexp(torch.ones(7, 48), steps), scale_format)
    assert torch.equal(stored, expected.view(torch.int32).flatten())


@pytest.mark.parametrize("arch", ["sm_90a", "sm_103a"])
def test_only_kernels_with_scales_are_built_otherwise_and_only_under_ue8m0(arch: str) -> None:
    plain, packed = launches(PLAIN, arch), launches(PACKED, arch)
    assert not any(launch.kernel.defines for launch in plain.values())
    assert {name for name, launch in packed.items() if DEFINE in launch.kernel.defines} == BUILT_SO
    for name, launch in packed.items():
        assert (launch.grid, launch.block, launch.smem) == (plain[name].grid, plain[name].block, plain[name].smem)
        assert launch.kernel.name_expression == plain[name].kernel.name_expression


@pytest.mark.parametrize(("split", "lines"), [(1, 13), (2, 7), (3, 5), (4, 4), (6, 3), (8, 3), (12, 2), (16, 2)])
def test_a_tile_brings_in_the_words_that_its_groups_may_touch(split: int, lines: int) -> None:
    config = {**dict(B0.default("sm_90a").config), "split_k": split, "stages": 3}
    *_, scales = maps_of(launches(PACKED, "sm_90a", {"B0": OpPlan.of("wgmma", config)})["B0p"])
    assert (scales.dtype, scales.dims, scales.strides, scales.box) == ("i32", (20, 12), (80,), (16, lines))
    check_tensor_map(scales, 0)
    groups = 48 // split
    assert lines >= max((first + groups - 1) // 4 - first // 4 + 1 for first in range(0, 48, groups))


def test_ops_in_one_launch_are_built_alike() -> None:
    plan = make_plan(PACKED, None, SHAPE, "sm_90a", "branches+pdl", None, ("D0+D1p",))
    found = dict(lower(plan, PACKED.graph, SHAPE, gpu_of("sm_90a"), launches=True).launches)
    assert found["D0+D1p"].kernel.defines == (DEFINE,)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_103a"])
def test_default_kernels_compile_do_not_spill_and_pass_the_gate(arch: str) -> None:
    plan = make_plan(PACKED, None, SHAPE, arch, "branches+pdl")
    graph = lower(plan, PACKED.graph, SHAPE, gpu_of(arch), launches=True)
    specs = list(dict.fromkeys(launch.kernel for _, launch in graph.launches))
    kernels = {kernel.spec: kernel for kernel in build(specs, arch)}
    check_facts(graph, kernels, plan)
    assert [(one.spec.name_expression, one.spill_bytes) for one in kernels.values() if one.spill_bytes] == []


# ---- DeepGEMM's templates for Blackwell -------------------------------------------------------------------------


@pytest.mark.skipif(bool(deep_gemm.missing()), reason=deep_gemm.missing())
@pytest.mark.parametrize("arch", ["sm_100a", "sm_103a"])
def test_tcgen05_templates_are_offered_under_ue8m0(arch: str) -> None:
    device = gpu_of(arch)
    configs = {name: PACKED.graph.calls[name].op.heuristic(SHAPE, device) for name in ("B0", "B1", "D0", "D1")}
    made = launches(PACKED, arch, configs)
    specs: list[KernelSpec] = [made[name].kernel for name in ("B0p", "B1p", "D0", "D1p")]
    assert {kernel.facts.mma for kernel in build(specs, arch) if kernel.facts} == {("UTCQMMA",)}
    for name in ("B0", "B1", "D0", "D1"):
        space = SearchSpace.load(PACKED, (name,), SHAPE, device)
        plan = make_plan(PACKED, (name,), SHAPE, arch, "serial", {name: configs[name]})
        assert check(plan, device) == []
        assert space.to_choices(plan) is not None
        assert "deep_gemm" not in PLAIN.graph.calls[name].op.choices(arch)


def test_hoppers_template_knows_fp32_alone() -> None:
    plan = make_plan(PACKED, ("B0",), SHAPE, "sm_90a", "serial", {"B0": B0.heuristic(SHAPE, gpu_of("sm_90a"))})
    assert [str(found) for found in check(plan, gpu_of("sm_90a"))] == [
        "scale_format: B0: deep_gemm cannot compute ue8m0 on sm_90a; wgmma and mma_sync can"
    ]
