"""Every plan that ships passes the gate: its kernels, compiled here, do what the plan and its ops say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mktune import resources
from mktune.backends.models import gpu_of
from mktune.bundle import read_bundle
from mktune.errors import CandidateError
from mktune.graph.workload import workload
from mktune.jit.build import build
from mktune.launch import CompiledKernel, KernelSpec
from mktune.lowering.graph import lower
from mktune.lowering.kernel_graph import KernelGraph
from mktune.measure.gate import check_facts
from mktune.plan import Plan

# Plans are tuned on the GPU of their folder, a Hopper; plans of another architecture need a line here.
ARCH_OF = {"nvidia-h200": "sm_90a"}
SHIPPED = [
    pytest.param(ARCH_OF[path.parent.name], winner.plan, id=f"{path.parent.name}-{winner.plan.short_id}")
    for path in sorted(resources.bundled_plans().rglob("*.json"))
    for winner in read_bundle(path)
]


def lowered(plan: Plan, arch: str) -> tuple[KernelGraph, dict[KernelSpec, CompiledKernel]]:
    graph = lower(plan, workload(plan.workload).subgraph(tuple(plan.op)), plan.shape, gpu_of(arch), launches=True)
    specs = [launch.kernel for _, launch in graph.launches]
    return graph, dict(zip(specs, build(specs, arch), strict=True))


@pytest.mark.parametrize(("arch", "plan"), SHIPPED)
def test_a_plan_that_ships_passes_the_gate(arch: str, plan: Plan) -> None:
    graph, kernels = lowered(plan, arch)
    check_facts(graph, kernels, plan)
    assert all(kernel.spill_bytes == kernel.stack_bytes == 0 for kernel in kernels.values())


def test_the_gate_would_refuse_it_with_a_trigger_elsewhere() -> None:
    arch, plan = SHIPPED[0].values
    graph, kernels = lowered(plan, arch)
    name, kernel = next((name, kernel) for name, kernel in plan.kernels if kernel.trigger != "exit")
    elsewhere = replace(kernel, trigger="exit")
    moved = replace(plan, kernels=tuple((one, elsewhere if one == name else old) for one, old in plan.kernels))
    with pytest.raises(CandidateError, match=f"^{name}: the plan has it trigger at exit"):
        check_facts(graph, kernels, moved)
