"""A workload of one's own goes the whole way: tuned, looked up, run and interpreted, with the simulator.

Its kernels compile and do what its ops say of them. The same on a GPU: tests/gpu/test_gemm_rmsnorm.py.
"""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from command_line import run

from mktune.backends.models import gpu_of
from mktune.device import ARCHITECTURES
from mktune.executors.reference import run_reference
from mktune.graph.builtin import make_plan
from mktune.graph.workload import workload
from mktune.jit.build import build
from mktune.lowering.graph import lower
from mktune.measure.gate import misplaced, undeclared
from mktune.ops.evaluate import differences
from mktune.ops.inputs import make_inputs
from mktune.ops.launch import launches_for
from mktune.plan import GDC, TRIGGERS, KernelPlan, OpPlan
from mktune.runtime import PlanBook
from mktune.shape import MAX_KV, Shape
from mktune.validity import check

WORK = workload("gemm_rmsnorm")
G, N = (WORK.graph.calls[name].op for name in WORK.ops)
SHAPE = Shape.from_m(16, 64)
TUNE = ("tune", "gemm_rmsnorm", "--m", "16", "--kv", "64", "--backend", "sim", "--trials", "60")


def in_fp32(inputs):
    """Both ops in plain torch, rounded where the contract rounds."""
    y = (inputs["attention"].float() @ inputs["W_o"].float().T).bfloat16()
    scale = torch.rsqrt(y.float().square().mean(-1, keepdim=True) + 1e-5)
    return {"projected": y, "h": (y.float() * scale * inputs["norm_w"].float()).bfloat16()}


def test_tune_look_up_and_run_on_the_simulator(capsys):
    out, _ = run(capsys, *TUNE, "--json")
    (cell,) = json.loads(out)["cells"]
    hit = PlanBook.open().get("gemm_rmsnorm", m=16, kv=64, gpu="NVIDIA H200", allow_simulated=True)
    assert hit.simulated
    assert hit.plan.op_names == ("G", "N")
    assert hit.winner.measurement.span_us == pytest.approx(cell["winner"]["measurement"]["span_us"])
    assert check(hit.plan, gpu_of("sm_90a")) == []
    out, _ = run(capsys, "run", hit.plan.plan_id, "--backend", "sim", "--json")
    assert json.loads(out)["measurement"]["span_us"] == pytest.approx(hit.winner.measurement.span_us)


def test_a_plan_that_was_looked_up_computes_what_torch_does(capsys):
    run(capsys, *TUNE)
    plan = PlanBook.open().get("gemm_rmsnorm", m=16, kv=64, gpu="NVIDIA H200", allow_simulated=True).plan
    inputs = make_inputs(WORK.graph, SHAPE, seed=3)
    found = run_reference(lower(plan, WORK.graph, SHAPE), WORK.graph, SHAPE, inputs)
    expected = in_fp32(inputs)
    assert differences(WORK.graph, inputs, expected, SHAPE) == []
    for name, value in expected.items():
        torch.testing.assert_close(found[name].float(), value.float(), rtol=2**-7, atol=2**-7)


def test_a_plan_of_one_workload_answers_no_other(capsys):
    run(capsys, *TUNE)
    asked = {"m": 16, "kv": 64, "gpu": "NVIDIA H200", "allow_simulated": True}
    book = PlanBook.of([PlanBook.open().get("gemm_rmsnorm", **asked).winner])
    assert book.lookup("gemm_rmsnorm", **asked)
    found = book.lookup("glm52_attention_prefix", **asked)
    assert not found
    assert found.reason == "workload"


@pytest.mark.parametrize(
    "fault", ["a step of K left out", "no norm weight", "another row", "a value that is not finite"]
)
def test_wrong_results_are_rejected(fault):
    inputs = make_inputs(WORK.graph, SHAPE, seed=4)
    right = in_fp32(inputs)
    if fault == "a step of K left out":
        weight = inputs["W_o"].clone()
        weight[:, 64:128] = 0
        wrong = {**right, "projected": in_fp32({**inputs, "W_o": weight})["projected"]}
    elif fault == "no norm weight":
        wrong = {**right, "h": in_fp32({**inputs, "norm_w": torch.ones_like(inputs["norm_w"])})["h"]}
    elif fault == "another row":
        wrong = {**right, "h": right["h"].roll(1, 0)}
    else:
        wrong = {**right, "h": right["h"].index_fill(0, torch.tensor([5]), float("nan"))}
    assert differences(WORK.graph, inputs, wrong, SHAPE)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_machine_code_waits_triggers_and_loads_as_the_ops_declare(arch):
    """Every placement of the default configs, every wait with splits."""
    cases = [
        (op, op.default(arch), KernelPlan(gdc=gdc, trigger=trigger))
        for op, gdc, trigger in itertools.product((G, N), GDC, TRIGGERS)
        if gdc in op.gdc_values(op.default(arch), "")
    ]
    cases += [(G, changed(G.default(arch), split_k=4), KernelPlan(gdc=gdc, trigger="start")) for gdc in GDC]
    launches = [launches_for(op.title, plan, (kernel,), SHAPE, gpu_of(arch))[0] for op, plan, kernel in cases]
    built = build([launch.kernel for launch in launches], arch)
    for (op, plan, kernel), launch, code in zip(cases, launches, built, strict=True):
        (declared,) = op.facts(plan, (kernel,))
        assert (code.facts.waits, code.facts.trigger, code.facts.unproven_loads) == ("always", declared.trigger, 0)
        assert (code.facts.loads_before_wait > 0) == any(not access.after_wait for access in declared.accesses)
        assert undeclared(declared, launch, code.facts, starts_early=True) == ""
        assert misplaced(kernel, declared, launch, code.facts) == ""
        assert (code.spill_bytes, code.stack_bytes) == (0, 0)


def changed(plan: OpPlan, **fields: int | str) -> OpPlan:
    return OpPlan.of(plan.impl, {**dict(plan.config), "stages": 4, **fields})


def test_a_plan_serves_every_capacity_where_none_makes_a_difference(capsys):
    """No tensor of this workload depends on KV; of the attention prefix some parts do."""
    assert make_plan(WORK, None, SHAPE, "sm_90a", "serial").kv_range == (8, MAX_KV)
    run(capsys, *TUNE)
    hit = PlanBook.open().get("gemm_rmsnorm", m=16, kv=100_000, gpu="NVIDIA H200", allow_simulated=True)
    assert hit.plan.shape == SHAPE
    prefix = workload("glm52_attention_prefix")
    served = {op: prefix.subgraph((op,)).served_kv(SHAPE)[1] for op in prefix.ops}
    assert {op for op, most in served.items() if most == MAX_KV} == {"A0", "C0", "D0"}
    assert prefix.graph.served_kv(SHAPE) == (8, 64)
