"""Kernels that are compiled together get the machine code and the shared memory that each has alone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from mktune.backends.models import gpu_of
from mktune.graph.builtin import make_plan
from mktune.graph.workload import workload
from mktune.jit.build import build
from mktune.jit.disassembly import disassemble
from mktune.launch import CompiledKernel
from mktune.lowering.graph import lower
from mktune.lowering.kernel_graph import specs_of
from mktune.shape import Shape

WORKLOAD = workload("glm52_attention_prefix")
_NUMBERED = re.compile(r"\.L_\w+|__internal_\d+_")  # labels and helpers are numbered through a whole program


def code(kernel: CompiledKernel) -> list[str]:
    return [_NUMBERED.sub("", str(each)) for each in disassemble(kernel.cubin)[kernel.symbol]]


@pytest.mark.parametrize("arch", ["sm_90a", "sm_103a"])
@pytest.mark.parametrize("op", ["B0", "D1"])
def test_they_are_as_each_alone(arch: str, op: str, tmp_path: Path) -> None:
    device = gpu_of(arch)
    plans = [make_plan(WORKLOAD, [op], Shape.from_m(16, 8192), arch, mode) for mode in ("serial", "serial+pdl")]
    wanted = [
        spec
        for plan in plans
        for spec in specs_of(lower(plan, WORKLOAD.subgraph([op]), plan.shape, device, launches=True))
    ]
    assert len(set(wanted)) == 4
    joined = build(wanted, arch, cache_dir=tmp_path / "joined")
    alone = [build([spec], arch, cache_dir=tmp_path / "alone")[0] for spec in wanted]
    assert len({kernel.cubin for kernel in joined}) < len({kernel.cubin for kernel in alone})
    for ours, theirs in zip(joined, alone, strict=True):
        assert code(ours) == code(theirs)
        assert replace(ours, cubin=b"") == replace(theirs, cubin=b"")  # facts and resources


def test_the_static_memory_of_a_finalizer_is_not_padded_for_the_tiles_of_its_producer(tmp_path: Path) -> None:
    plan = make_plan(WORKLOAD, ["B0"], Shape.from_m(16, 8192), "sm_90a", "serial+pdl")
    lowered = lower(plan, WORKLOAD.subgraph(["B0"]), plan.shape, gpu_of("sm_90a"), launches=True)
    producer, finalizer = build(specs_of(lowered), "sm_90a", cache_dir=tmp_path)
    assert (producer.static_smem, finalizer.static_smem) == (0, 64)
    assert producer.cubin != finalizer.cubin
