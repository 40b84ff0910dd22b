"""Every workload that exists can be cut, planned and evaluated: found by itself, so a new one is tested at once."""

import pytest

from mktune.graph.builtin import MODES, builtin_plans
from mktune.graph.kernel_edges import is_topological, kernel_edges
from mktune.graph.workload import workload, workload_names
from mktune.ops.evaluate import differences, evaluate
from mktune.ops.inputs import make_inputs
from mktune.plan import Plan
from mktune.shape import Shape

WORKLOADS = [workload(name, scale_format) for name in workload_names() for scale_format in workload(name).scale_formats]
each_workload = pytest.mark.parametrize("work", WORKLOADS, ids=lambda work: f"{work.name} {work.scale_format}")
SHAPE = Shape(2, 2, 70)


@each_workload
def test_branches_hold_each_op_once_in_call_order(work):
    ops = [op for branch in work.branches for op in branch]
    assert sorted(ops) == sorted(work.ops)
    for branch in work.branches:
        assert list(branch) == [op for op in work.ops if op in branch]


@each_workload
def test_each_op_alone_and_each_edge_is_a_subgraph(work):
    for ops in [(op,) for op in work.ops] + list(work.graph.edges):
        part = work.subgraph(ops)
        assert set(part.calls) == set(ops)
        assert part.outputs
        assert {t.kind for t in part.tensors.values()} <= {"arg", "weight", "cache", "intermediate", "output"}


@each_workload
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_103a"])
def test_built_in_plans_are_whole_and_canonical(work, arch):
    plans = builtin_plans(work, None, SHAPE, arch)
    assert tuple(plans) == MODES
    for plan in plans.values():
        edges = kernel_edges(work.graph, plan.op)
        assert set(plan.edge) == set(edges)
        assert is_topological(plan.order, edges)
        assert plan == plan.canonical() == Plan.from_json(plan.json)


@each_workload
def test_the_reference_of_the_whole_agrees_with_itself(work):
    inputs = make_inputs(work.graph, SHAPE)
    outputs = evaluate(work.graph, inputs, SHAPE)
    assert differences(work.graph, inputs, outputs, SHAPE) == []
