"""The gate over the machine code of every kernel of the default configs: each place to wait and to trigger, sm_90a and
sm_103a. What is proven here is what a stored plan relies on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import pytest

from mktune.access import KernelFacts
from mktune.backends.models import gpu_of
from mktune.graph.builtin import make_plan
from mktune.graph.workload import workload
from mktune.jit.build import build
from mktune.jit.control_flow import is_wait
from mktune.jit.disassembly import Instruction, disassemble
from mktune.jit.sass import read_facts
from mktune.launch import CompiledKernel, Launch, ScalarArg, early_buffers
from mktune.lowering.graph import lower
from mktune.measure.gate import disagreement, misplaced, undeclared
from mktune.plan import KernelPlan, OpPlan
from mktune.shape import Shape

WORKLOAD = workload("glm52_attention_prefix")
SHAPE = Shape.from_m(16, 8192)
ARCHS = ("sm_90a", "sm_103a")
# Every trigger, and every place to wait; kernels that have nothing to prefetch wait behind their prologue instead.
PLACEMENTS = (("entry", "after_wait"), ("prologue", "before_epilogue"), ("prefetch", "start"))
WEIGHTS = {"B0p": "W_a", "C0": "W_g", "B1p": "W_k", "D0": "W_qb", "D1p": "W_iq", "D2": "W_uk", "E1": "index_k_cache"}

Placed = tuple[KernelPlan, KernelFacts, Launch, CompiledKernel]


@cache
def kernels(arch: str, gdc: str, trigger: str, finalizer: str = "") -> dict[str, Placed]:
    """Kernel → how it is placed, what its op declares, its launch and its code, for the default configs.

    finalizer  only of ops that know it, with four splits, so that CTAs have sums to add up
    """
    calls = WORKLOAD.graph.calls
    knows = [name for name, call in calls.items() if finalizer in getattr(call.op, "finalizers", ())]
    configs = {name: _changed(calls[name].op.default(arch), finalizer) for name in knows}
    plan = make_plan(WORKLOAD, None, SHAPE, arch, "branches+pdl", configs)
    placed = {name: _placed(plan.op, name, gdc, trigger) for name in plan.order}
    plan = replace(plan, kernels=tuple((name, placed[name]) for name, _ in plan.kernels))
    graph = lower(plan, WORKLOAD.graph, SHAPE, gpu_of(arch), launches=True)
    launches = dict(graph.launches)
    asked = [kernel for kernel in graph.kernels if not finalizer or kernel.op in knows]
    code = build([launches[kernel.name].kernel for kernel in asked], arch)
    return {
        kernel.name: (placed[kernel.name], kernel, launches[kernel.name], compiled)
        for kernel, compiled in zip(asked, code, strict=True)
    }


def _changed(op: OpPlan, finalizer: str) -> OpPlan:
    return OpPlan.of(op.impl, {**dict(op.config), "finalizer": finalizer, "split_k": 4, "stages": 4})


def _placed(ops: Mapping[str, OpPlan], name: str, gdc: str, trigger: str) -> KernelPlan:
    call, suffix = name[:2], name[2:]
    known = WORKLOAD.graph.calls[call].op.gdc_values(ops[call], suffix)
    return KernelPlan(gdc=gdc if gdc in known else known[-1], trigger=trigger)


@pytest.mark.parametrize(("gdc", "trigger"), PLACEMENTS)
@pytest.mark.parametrize("arch", ARCHS)
def test_default_kernels_do_what_is_declared_and_planned(arch: str, gdc: str, trigger: str) -> None:
    do_what_is_declared(kernels(arch, gdc, trigger), gdc)
    assert len(kernels(arch, gdc, trigger)) >= len(WORKLOAD.ops)


@pytest.mark.parametrize("finalizer", ["last_arriver", "cluster"])
@pytest.mark.parametrize("arch", ARCHS)
def test_so_do_those_that_finish_rows_themselves(arch: str, finalizer: str) -> None:
    found = kernels(arch, "prefetch", "before_epilogue", finalizer)
    assert set(found) == {"B1p", "C0", "D1p"} | ({"B0p"} if finalizer == "last_arriver" else set())
    do_what_is_declared(found, "prefetch")


def do_what_is_declared(found: dict[str, Placed], gdc: str) -> None:
    for name, (placed, declared, launch, code) in found.items():
        facts = code.facts
        assert facts is not None
        assert (facts.waits, facts.unproven) == ("always", ()), name
        assert disagreement(declared, facts, starts_early=True) == "", name
        assert undeclared(declared, launch, facts, starts_early=True) == "", name
        assert misplaced(placed, declared, launch, facts) == "", name
        assert (code.spill_bytes, code.stack_bytes, facts.local_accesses) == (0, 0, 0), name
        if gdc == "entry":
            assert facts.loads_before_wait == 0, name
        if gdc == "prefetch" and name in WEIGHTS:
            assert WEIGHTS[name] in early_buffers(launch, facts), name


@pytest.mark.parametrize("arch", ARCHS)
def test_early_loads_read_what_no_kernel_of_the_graph_writes(arch: str) -> None:
    found = kernels(arch, "prefetch", "start")
    written = {access.buffer for _, facts, _, _ in found.values() for access in facts.accesses if access.writes}
    for name, (_, _, launch, code) in found.items():
        assert code.facts is not None
        early = early_buffers(launch, code.facts)
        # E1 may read the cache before its wait only where the closure rule sees a full edge from who writes it.
        assert early & written <= ({"index_k_cache"} if name == "E1" else set()), name


@pytest.mark.parametrize("arch", ARCHS)
def test_each_kernel_is_refused_without_its_wait_or_without_one_constant(arch: str) -> None:
    """The analysis can see a fault in every kernel that it passes."""
    for name, (_, _, launch, code) in kernels(arch, "prefetch", "start").items():
        assert code.facts is not None
        listing = disassembled(code)
        bare = tuple(replace(one, opcode="NOP") if is_wait(one) else one for one in listing)
        found = read_facts(code, {code.symbol: bare})
        assert found.waits == "never"
        produced = {i for i, arg in enumerate(launch.args) if not isinstance(arg, ScalarArg) and not arg.constant}
        assert any(f"parameter {index}," in reason for index in produced for reason in found.unproven), name
        for index in code.facts.early_parameters:
            constants = tuple(one for one in code.spec.constants if one != index)
            fewer = read_facts(replace(code, spec=replace(code.spec, constants=constants)), {code.symbol: listing})
            assert any(f"parameter {index}," in reason for reason in fewer.unproven), (name, index)


@cache
def _listings(cubin: bytes) -> dict[str, tuple[Instruction, ...]]:
    return disassemble(cubin)


def disassembled(code: CompiledKernel) -> tuple[Instruction, ...]:
    return _listings(code.cubin)[code.symbol]
