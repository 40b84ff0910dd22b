"""One small graph of the whole prefix with the default configs, verified: what compute-sanitizer watches.

    compute-sanitizer --tool memcheck --kernel-name kns=mktune python3 tests/gpu/sanitized_prefix.py MODE [--fault]

MODE is a built-in plan. Every row has a context of its own and some are padding. With --fault the first kernel writes
beyond a result that is too small, and nothing is verified.
"""

from __future__ import annotations

import sys

from mktune.executors.discovery import find_device
from mktune.executors.driver_calls import use_device
from mktune.graph.builtin import make_plan
from mktune.graph.workload import workload
from mktune.jit.build import build
from mktune.lowering.graph import lower
from mktune.lowering.kernel_graph import KernelGraph, specs_of
from mktune.measure.correctness import Checked, verify
from mktune.measure.memory import make_memory
from mktune.plan import Plan
from mktune.shape import Shape

WORKLOAD = workload("glm52_attention_prefix")
SHAPE = Shape(2, 8, 1000)


def graph(mode: str) -> tuple[Plan, KernelGraph]:
    device = find_device(0)
    plan = make_plan(WORKLOAD, None, SHAPE, device.arch, mode)
    return plan, lower(plan, WORKLOAD.subgraph(None), SHAPE, device, launches=True)


def main() -> None:
    use_device(0)
    plan, lowered = graph(sys.argv[1])
    kernels = {kernel.spec: kernel for kernel in build(specs_of(lowered), find_device(0).arch, facts=False)}
    copies = make_memory(WORKLOAD.subgraph(None), SHAPE, 2, seed=1, place="cuda:0", ragged=True).verification()
    if "--fault" in sys.argv:
        first = copies.made[0]
        first["residual_out"] = first["residual_out"][: SHAPE.m // 2].clone()
        Checked(plan, lowered, kernels, copies).replay()
    else:
        verify(plan, lowered, kernels, copies, replays=1)
        print(f"{len(lowered.launches)} kernels verified")


if __name__ == "__main__":
    main()
