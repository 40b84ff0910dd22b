"""Does every value of every knob of A0 → B0 move the span on this GPU? A table, and JSON with --json.

    python -m tests.benchmarks.knob_effects [--m 16,128] [--rounds N] [--json FILE]

Around each of a few base plans one knob is turned at a time; all plans of one base are measured in the same rounds.
An effect is the paired ratio to the base's own value; it counts where its interval keeps clear of the noise of the
base measured against itself. A value that has no effect around any base, at any M, should leave the search space.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from mktune.backends.base import Problem
from mktune.backends.cuda import CudaBackend
from mktune.device import Device
from mktune.graph.builtin import make_plan
from mktune.graph.workload import workload
from mktune.measure.cuda_bench import CudaBench
from mktune.measure.stats import noise_floor, paired_ratio
from mktune.plan import OpPlan, Plan
from mktune.shape import Shape
from mktune.validity import check

WORKLOAD = "glm52_attention_prefix"
OPS = ("A0", "B0")
L2_PREFETCH = (0, 16384, 32768, 65536)
BASES = {
    "split": {"block_m": 16, "block_n": 128, "split_k": 6, "stages": 4, "warps": 4},
    "narrow": {"block_m": 16, "block_n": 64, "split_k": 3, "stages": 8, "warps": 4},
    "many": {"block_m": 16, "block_n": 128, "split_k": 12, "stages": 3, "warps": 4},
    "whole": {"block_m": 64, "block_n": 128, "split_k": 1, "stages": 8, "warps": 8},
}


@dataclass(frozen=True)
class Effect:
    """One value of one knob around one base. `ratio` is span over the base's span; `moves`: beyond noise."""

    m: int
    base: str
    knob: str
    value: str
    span_us: float
    ratio: float
    low: float
    high: float
    moves: bool


def variants(base: Plan, device: Device) -> Iterator[tuple[str, str, Plan]]:
    """(knob, value, plan) for every legal way to turn one knob of `base`."""
    for knob, value, plan in turned(base, device.arch):
        changed = plan.canonical()
        if changed != base and not check(changed, device):
            yield knob, value, changed


def turned(base: Plan, arch: str) -> Iterator[tuple[str, str, Plan]]:
    calls = workload(WORKLOAD).graph.calls
    for name, op in base.ops:
        for impl, fields in calls[name].op.choices(arch).items():
            if impl != op.impl and dict(op.config).keys() == fields.keys() - calls[name].op.implied.keys():
                yield f"{name}.impl", impl, with_op(base, name, OpPlan(impl, op.config))
        for knob, values in calls[name].op.choices(arch)[op.impl].items():
            for value in values:
                config = {**dict(op.config), knob: value}
                yield f"{name}.{knob}", str(value), with_op(base, name, OpPlan.of(op.impl, config))
    for kernel, placed in base.kernels:
        for gdc in ("entry", "prologue", "prefetch"):
            yield f"{kernel}.gdc", gdc, with_kernel(base, kernel, replace(placed, gdc=gdc, l2_prefetch_bytes=0))
        for trigger in ("exit", "start", "after_wait", "before_epilogue"):
            yield f"{kernel}.trigger", trigger, with_kernel(base, kernel, replace(placed, trigger=trigger))
        for size in L2_PREFETCH:
            yield f"{kernel}.l2_prefetch", str(size), with_kernel(base, kernel, replace(placed, l2_prefetch_bytes=size))
    for edge, _ in base.edges:
        for kind in ("full", "programmatic", "launch_order"):
            yield f"{edge[0]}->{edge[1]}", kind, replace(base, edges=tuple({**base.edge, edge: kind}.items()))


def with_op(plan: Plan, name: str, op: OpPlan) -> Plan:
    """`plan` with another config; kernels that this adds or removes are taken from the built-in plan."""
    return make_plan(workload(WORKLOAD), OPS, plan.shape, "sm_90a", "serial+pdl", {**plan.op, name: op})


def with_kernel(plan: Plan, name: str, placed: object) -> Plan:
    return replace(plan, kernels=tuple({**plan.kernel, name: placed}.items()))


def measured(backend: CudaBackend, m: int, rounds: int) -> list[Effect]:
    shape = Shape.from_m(m, 8192)
    effects: list[Effect] = []
    with backend.open(Problem(WORKLOAD, OPS, shape)) as bench:
        for title, config in BASES.items():
            default = workload(WORKLOAD).graph.calls["B0"].op.default("sm_90a")
            op = OpPlan.of(default.impl, {**dict(default.config), **config})
            base = make_plan(workload(WORKLOAD), OPS, shape, "sm_90a", "serial+pdl", {"B0": op})
            if not check(base, backend.device):
                effects += around(bench, backend.device, title, base, rounds)
    return effects


def around(bench: CudaBench, device: Device, title: str, base: Plan, rounds: int) -> list[Effect]:
    named = {f"{knob}={value}": (knob, value, plan) for knob, value, plan in variants(base, device)}
    bench.prepare([base, *(plan for _, _, plan in named.values())])
    for name, (_, _, plan) in list(named.items()):
        if wrong := bench.verify(plan):
            print(f"M {base.shape.m} {title} {name}: {wrong}")
            del named[name]
    plans = {name: plan for name, (_, _, plan) in named.items()}
    samples, _ = bench.rounds({"base": base, "again": base, **plans}, rounds)
    noise = noise_floor(samples["base"], samples["again"])
    effects = []
    for name, (knob, value, _) in named.items():
        ratio = paired_ratio(samples[name], samples["base"])
        moves = ratio.low > 1 + noise or ratio.high < 1 - noise
        span = sorted(samples[name])[len(samples[name]) // 2]
        row = (round(span, 3), round(ratio.median, 4), round(ratio.low, 4), round(ratio.high, 4))
        effects.append(Effect(base.shape.m, title, knob, value, *row, moves))
    return effects


def main() -> None:
    parser = argparse.ArgumentParser(description="Effect of each knob value on the span of A0 → B0.")
    parser.add_argument("--m", default="16,128")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    backend = CudaBackend()
    effects = [effect for m in given.m.split(",") for effect in measured(backend, int(m), given.rounds)]
    if given.json:
        given.json.write_text(json.dumps([vars(effect) for effect in effects], indent=1))
    print(f"{backend.device.name}: largest effect of each value, as span over the base's span")
    values = dict.fromkeys((effect.knob, effect.value) for effect in effects)
    for knob, value in values:
        rows = [effect for effect in effects if (effect.knob, effect.value) == (knob, value)]
        best = max(rows, key=lambda effect: (effect.moves, abs(effect.ratio - 1)))
        print(f"{knob:22} {value:16} {best.ratio:6.3f}  {'moves' if best.moves else 'NO EFFECT'}")


if __name__ == "__main__":
    main()
