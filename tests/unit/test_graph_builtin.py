"""The four built-in plans: their streams, edges, waits and triggers, for the whole workload and for parts."""

import pytest

from mktune.device import Device
from mktune.errors import InputError
from mktune.graph.builtin import MODES, builtin_plans, make_plan
from mktune.graph.workload import workload
from mktune.graph.workloads.glm52_attention_prefix import article_plan
from mktune.plan import OpPlan, Plan
from mktune.shape import Shape

SHAPE = Shape(2, 8, 8192)
H200 = Device("NVIDIA H200", "sm_90a", 132, 232448, 60 << 20, 4.8e12)
WORK = workload("glm52_attention_prefix")


def streams(plan):
    names = {}
    for kernel in plan.order:
        names.setdefault(plan.kernel[kernel].stream, []).append(kernel)
    return [" ".join(kernels) for kernels in names.values()]


def test_modes_differ_in_streams_and_edges_alone():
    plans = builtin_plans(WORK, None, SHAPE, "sm_90a")
    assert tuple(plans) == MODES
    assert len({plan.plan_id for plan in plans.values()}) == 4
    assert len({plan.ops for plan in plans.values()}) == 1
    for mode, plan in plans.items():
        assert set(plan.edge.values()) == {"programmatic" if mode.endswith("pdl") else "full"}
        assert len(plan.edge) == 12
        assert Plan.from_json(plan.json) == plan == plan.canonical()
        assert (plan.m_range, plan.kv_range) == ((9, 16), (8, 8192))


def test_serial_waits_at_entry_and_triggers_at_exit():
    plan = make_plan(WORK, None, SHAPE, "sm_90a", "serial")
    assert len(streams(plan)) == 1
    assert {(k.gdc, k.trigger, k.chain) for k in plan.kernel.values()} == {("entry", "exit", "full")}


def test_serial_pdl_chains_programmatically():
    plan = make_plan(WORK, None, SHAPE, "sm_90a", "serial+pdl")
    chained = {name for name, kernel in plan.kernel.items() if kernel.chain == "programmatic"}
    assert chained == {"C0", "B1p", "D0", "D1p", "D2", "E1"}
    assert {name for name, kernel in plan.kernel.items() if kernel.trigger != "start"} == {"E1"}


def test_branches_are_the_workloads_streams():
    plan = make_plan(WORK, None, SHAPE, "sm_90a", "branches+pdl")
    assert streams(plan) == ["A0 B0p B0f D0 D2", "C0", "B1p B1f", "D1p D1f E1"]
    gdc = {name: kernel.gdc for name, kernel in plan.kernel.items()}
    assert {name for name, value in gdc.items() if value == "prefetch"} == {"B0p", "C0", "B1p", "D0", "D1p", "D2"}
    assert "entry" not in gdc.values()
    assert {name for name, kernel in plan.kernel.items() if kernel.trigger == "exit"} == {"D2", "E1"}


def test_the_article_plan_prefetches_and_triggers_early():
    plan = article_plan(SHAPE)
    assert dict(plan.op["B0"].config)["split_k"] == 4
    assert set(plan.edge.values()) == {"programmatic"}
    blocks = {name: sum(w.ctas for w in WORK.graph.calls[name].op.work(plan.op[name], SHAPE)[:1]) for name in plan.op}
    assert blocks == {"A0": 16, "B0": 84, "C0": 16, "B1": 8, "D0": 128, "D1": 128, "D2": 256, "E1": 64}


@pytest.mark.parametrize("ops", [("A0",), ("A0", "B0"), ("B0", "C0", "D1"), ("E1",), ("D0", "D2")])
def test_parts_of_the_workload_have_built_in_plans(ops):
    for mode, plan in builtin_plans(WORK, ops, SHAPE, "sm_103a").items():
        assert set(plan.op_names) == set(ops)
        sinks = set(plan.order) - {source for source, _ in plan.edge}
        last = {streams(plan)[0].split()[-1]} if mode.startswith("serial") else sinks
        assert all(plan.kernel[name].trigger == "exit" for name in last)


@pytest.mark.parametrize("shape", [Shape(1, 1, 1), SHAPE, Shape(32, 8, 131072)])
def test_built_in_plans_fit_the_device(shape):
    plans = [*builtin_plans(WORK, None, shape, "sm_90a").values(), article_plan(shape)]
    for plan in plans:
        for name, call in WORK.graph.calls.items():
            kernels = tuple(plan.kernel[kernel] for kernel in call.kernel_names(plan.op[name]))
            assert call.op.violations(plan.op[name], kernels, shape, H200) == []


def test_given_configs_take_the_place_of_defaults():
    config = dict(WORK.graph.calls["B0"].op.default("sm_90a").config) | {"finalizer": "last_arriver"}
    plan = make_plan(WORK, ("A0", "B0"), SHAPE, "sm_90a", "serial", {"B0": OpPlan.of("wgmma", config)})
    assert plan.order == ("A0", "B0p")


def test_an_unknown_mode_is_refused():
    with pytest.raises(InputError, match=r"known: serial, serial\+pdl, branches, branches\+pdl"):
        make_plan(WORK, None, SHAPE, "sm_90a", "fastest")
