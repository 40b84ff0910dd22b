"""One small graph of the whole prefix with the default configs, verified: what compute-sanitizer watches.

    compute-sanitizer --tool memcheck --kernel-name kns=mktune python3 tests/gpu/sanitized_prefix.py MODE [OPTION]

MODE is a built-in plan. Every row has a context of its own and some are padding. With --persistent or --stream_k the
GEMMs have CTAs that go through several tiles, or pieces of tiles. With --fault the first kernel writes beyond a result
that is too small, and nothing is verified.
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
from mktune.plan import OpPlan, Plan
from mktune.shape import Shape
from mktune.validity import check

WORKLOAD = workload("glm52_attention_prefix")
SHAPE = Shape(2, 8, 1000)
TILES = {
    "B0": {"block_n": 64, "stages": 6},
    "B1": {"block_m": 8, "block_n": 64, "stages": 4},
    "C0": {"finalizer": "last_arriver", "stages": 4, "warps": 8},
    "D0": {"block_n": 64, "stages": 6, "warps": 8},
    "D1": {"block_n": 64, "stages": 3},
    "D2": {"block_n": 64, "stages": 8, "warps": 8},
}
CTAS = {
    "persistent": {"B0": 66, "B1": 33, "D0": 132, "D1": 99, "D2": 132},
    "stream_k": {"B0": 132, "B1": 33, "C0": 7, "D0": 132, "D1": 99, "D2": 99},
}
SPLITS = {"persistent": {"B0": 3, "B1": 12, "D0": 2, "D1": 2}}


def scheduled(schedule: str, arch: str) -> dict[str, OpPlan]:
    configs = {}
    for name, ctas in CTAS[schedule].items():
        default = WORKLOAD.graph.calls[name].op.default(arch)
        split = SPLITS.get(schedule, {}).get(name, 1)
        config = {**dict(default.config), **TILES[name], "split_k": split, "schedule": schedule, "ctas": ctas}
        configs[name] = OpPlan.of(default.impl, config)
    return configs


def graph(mode: str) -> tuple[Plan, KernelGraph]:
    device = find_device(0)
    chosen = [schedule for schedule in CTAS if f"--{schedule}" in sys.argv]
    plan = make_plan(WORKLOAD, None, SHAPE, device.arch, mode, scheduled(chosen[0], device.arch) if chosen else None)
    assert check(plan, device) == []
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
