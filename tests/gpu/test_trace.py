"""Traces of a real GPU: every CTA notes, in the order that the edges demand, and looking costs little."""

from __future__ import annotations

import pytest

from mktune.backends.base import Problem
from mktune.backends.cuda import CudaBackend
from mktune.cli.sm_activity import mean, sm_activity
from mktune.graph.builtin import MODES, builtin_plans
from mktune.graph.workload import workload
from mktune.measure.critical_path import begins_after
from mktune.measure.stats import median, paired_difference
from mktune.shape import Shape

pytestmark = [pytest.mark.gpu, pytest.mark.gpu_alone]

WORKLOAD = workload("glm52_attention_prefix")
PROBLEM = Problem(WORKLOAD.name, WORKLOAD.ops, Shape.from_m(16, 8192))
TICK_US = 0.1  # the timer's step, and the time from one instruction to the next


@pytest.fixture(scope="module")
def backend():
    return CudaBackend()


@pytest.fixture(scope="module")
def plans(backend):
    return builtin_plans(WORKLOAD, PROBLEM.ops, PROBLEM.shape, backend.device.arch)


@pytest.fixture(scope="module")
def traces(backend, plans):
    """Mode → trace of the built-in plan, each verified first."""
    with backend.open(PROBLEM) as bench:
        bench.prepare(list(plans.values()))
        found = {}
        for mode, plan in plans.items():
            assert bench.verify(plan) == ""
            found[mode] = bench.trace(plan)
    return found


@pytest.mark.parametrize("mode", MODES)
def test_every_cta_of_every_kernel_has_noted(mode, traces, plans, backend):
    trace = traces[mode]
    assert [kernel.name for kernel in trace.kernels] == list(plans[mode].order)
    for kernel in trace.kernels:
        assert len(kernel.ctas) == kernel.grid > 0
        for cta in kernel.ctas:
            assert 0 <= cta.sm < backend.device.sms
            assert 0 <= cta.begin <= cta.ready + TICK_US
            assert cta.ready <= cta.end <= trace.plain_us[0] * 2
        triggers = {cta.triggered is not None for cta in kernel.ctas}
        assert triggers == {plans[mode].kernel[kernel.name].trigger != "exit"}


@pytest.mark.parametrize("mode", MODES)
def test_notes_are_in_the_order_of_the_edges(mode, traces):
    """In one replay: no CTA begins before its edges let it, and none is behind its wait before all sources ended."""
    trace = traces[mode]
    kernels = {kernel.name: kernel for kernel in trace.kernels}
    for (source, target), kind in trace.edges:
        ended = max(cta.end for cta in kernels[source].ctas)
        assert min(cta.ready for cta in kernels[target].ctas) >= ended - TICK_US, (source, target)
        begins = min(cta.begin for cta in kernels[target].ctas)
        if kind == "full":
            assert begins >= ended - TICK_US
        _, allowed = begins_after(trace.times[source], kind)
        assert trace.times[target].begin >= allowed - 3 * TICK_US, (source, target)  # medians


@pytest.mark.parametrize("mode", MODES)
def test_looking_costs_little(mode, traces):
    trace = traces[mode]
    cost = paired_difference(trace.stamped_us, trace.plain_us)
    print(mode, "plain", median(trace.plain_us), "cost", cost)
    assert -0.01 * median(trace.plain_us) < cost.median < 0.12 * median(trace.plain_us)


@pytest.mark.parametrize("mode", MODES)
def test_the_critical_path_is_the_layer(mode, traces, plans):
    trace = traces[mode]
    path, span = trace.path, median(trace.stamped_us)
    print(mode, path)
    assert sum(step.after_us + step.held_us for step in path.steps) == pytest.approx(path.length_us)
    assert 0.7 * span < path.length_us < span
    assert path.kernels[0] == plans[mode].order[0]
    assert all(slack >= 0 for slack in path.slack.values())
    assert all(step.after_us > -3 * TICK_US for step in path.steps)
    if mode == "serial":
        assert path.kernels == plans[mode].order
        assert path.agreement == 1.0


def test_sms_are_in_use(traces, backend):
    for mode, trace in traces.items():
        active, working = mean(sm_activity(trace))
        print(mode, "SMs active", active, "working", working)
        assert 0.2 * backend.device.sms < working <= active <= backend.device.sms


def test_a_part_of_the_workload_and_a_plan_of_launches_are_traced_too(backend):
    from dataclasses import replace

    ops = ("A0", "B0")
    plan = builtin_plans(WORKLOAD, ops, PROBLEM.shape, backend.device.arch)["serial+pdl"]
    with backend.open(PROBLEM) as whole, whole.alone(ops) as part:
        trace = part.trace(replace(plan, executor="streams"))
        after = part.measure(plan, None)
    assert trace.path.kernels[0] == "A0"
    assert trace.path.kernels[-1] == plan.order[-1]
    assert after.measurement.span_us == pytest.approx(median(trace.plain_us), rel=0.05)  # nothing is left behind
