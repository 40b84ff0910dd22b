"""Our kernels under scale format ue8m0: quantisers write words of exponents and GEMMs read them, op by op in many
configs, and the whole prefix in its built-in structures, fused kernels, delays and the probe included.

Of the classes of `test_config_matrix` some take part, and GEMMs whose CTAs go through several tiles: their parts may
begin in the middle of a word.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

torch = pytest.importorskip("torch")

from configured import KNOWN, Case, faults  # noqa: E402
from test_config_matrix import CASES  # noqa: E402
from whole import EFFORT, compiled, compiling  # noqa: E402

from mktune.graph.builtin import make_plan  # noqa: E402
from mktune.lowering.graph import lower  # noqa: E402
from mktune.lowering.kernel_graph import specs_of  # noqa: E402
from mktune.measure.correctness import verify  # noqa: E402
from mktune.measure.gate import check_facts  # noqa: E402
from mktune.measure.memory import make_memory  # noqa: E402
from mktune.measure.probe import Probe  # noqa: E402
from mktune.measure.validation import delayed, producers, validate  # noqa: E402
from mktune.plan import KernelPlan, OpPlan  # noqa: E402
from mktune.shape import Shape  # noqa: E402
from mktune.validity import check  # noqa: E402

pytestmark = pytest.mark.gpu

PACKED = KNOWN.under("ue8m0")
SCALED = ("A0", "B0", "B1", "D0", "D1")
SHAPES = [Shape.from_m(m, 1000) for m in (1, 7, 16, 17, 128)]
EVERY = {"A0": 1, "B0": 6, "B1": 8, "D0": 4, "D1": 8}
CELLS = [(1, 64), (7, 4096), (16, 8192), (17, 64), (128, 8192)]
SCHEDULED = 6


@cache
def cases(call: str, sms: int) -> tuple[Case, ...]:
    from chain import H200

    some = CASES[call][:: EVERY[call]]
    found = [replace(case, scale_format="ue8m0") for case in (*some, *scheduled(call, H200))]
    return tuple(case for case in found if check(case.plan(SHAPES[2]), H200) == [])


def scheduled(call: str, device) -> Iterator[Case]:
    """Some GEMMs whose CTAs go through several tiles."""
    op, draw = PACKED.graph.calls[call].op, random.Random(call)
    for impl, fields in op.implementations("sm_90a").items():
        left = SCHEDULED if "schedule" in fields else 0
        for _ in range(600 if left else 0):
            config = {name: draw.choice(values) for name, values in fields.items()}
            plan = OpPlan.of(impl, {**config, "schedule": ("stream_k", "persistent")[left % 2]})
            if left and not any(op.config_violations(plan, shape, device) for shape in SHAPES):
                yield Case(call, plan, tuple(KernelPlan(gdc=op.gdc_values(plan, k)[-1]) for k in op.kernels(plan)))
                left -= 1


@pytest.mark.parametrize("call", SCALED)
def test_every_op_is_right(device, call):
    several = cases(call, device.sms)
    legal = {shape: [case for case in several if not check(case.plan(shape), device)] for shape in SHAPES}
    specs = dict.fromkeys(
        spec for shape, some in legal.items() for case in some for spec in specs_of(case.lowered(shape))
    )
    with compiling(list(specs), device):
        kernels = compiled(device, specs)
    wrong = [fault for shape, some in legal.items() for case in some for fault in faults(case, [shape], kernels)]
    print(call, len(several), "configs", len(specs), "kernels")
    assert wrong == []


def plan_of(mode, m, kv, arch, fused=()):
    return make_plan(PACKED, None, Shape.from_m(m, kv), arch, mode, fused_ops(fused), fused)


def fused_ops(fused):
    """Configs under which two ops can be one launch."""
    if "B1p+C0" not in fused:
        return None
    gate = PACKED.graph.calls["C0"].op.default("sm_90a")
    warps = dict(PACKED.graph.calls["B1"].op.default("sm_90a").config)["warps"]
    return {"C0": OpPlan.of(gate.impl, {**dict(gate.config), "warps": warps, "finalizer": "last_arriver"})}


def lowered(plan, device):
    assert check(plan, device) == []
    return lower(plan, PACKED.graph, plan.shape, device, launches=True)


@cache
def copies(m, kv):
    return make_memory(PACKED.graph, Shape.from_m(m, kv), 2, seed=m, place="cuda:0", ragged=m == 7).verification()


@pytest.mark.parametrize(("m", "kv"), CELLS)
def test_the_whole_prefix_is_right(device, m, kv):
    plans = [plan_of(mode, m, kv, device.arch) for mode in ("serial", "branches+pdl")]
    plans += [plan_of("branches+pdl", m, kv, device.arch, ("B1p+C0", "D0+D1p"))]
    graphs = [(plan, lowered(plan, device)) for plan in plans]
    with compiling(list(dict.fromkeys(spec for _, graph in graphs for spec in specs_of(graph))), device):
        for plan, graph in graphs:
            kernels = compiled(device, specs_of(graph))
            check_facts(graph, kernels, plan)
            verify(plan, graph, kernels, copies(m, kv))


def test_early_starts_survive_slow_producers_and_the_probe(device):
    plan = plan_of("branches+pdl", 16, 8192, device.arch)
    graph = lowered(plan, device)
    slow = [delayed(graph, name) for name in producers(graph)]
    with compiling([spec for one in (graph, *slow) for spec in specs_of(one)], device):
        kernels = compiled(device, specs_of(graph))
        probe = Probe(lambda specs: compiled(device, specs))
        assert probe.check(plan, graph, kernels, copies(16, 8192)) == "11 kernels held"
        validate(plan, graph, copies(16, 8192), lambda specs: compiled(device, specs), EFFORT)
