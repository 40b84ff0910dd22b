"""Kernel edges follow from facts: the workload's twelve, and others where a finalizer kernel goes away."""

from itertools import islice

import pytest

from mktune.graph.kernel_edges import (
    graph_facts,
    is_topological,
    kernel_edges,
    kernel_names,
    topological_order,
    topological_orders,
)
from mktune.graph.workload import workload
from mktune.plan import KernelPlan, OpPlan

TWELVE = {
    ("A0", "B0p"), ("A0", "C0"), ("A0", "B1p"), ("B0p", "B0f"), ("B1p", "B1f"), ("B0f", "D0"),
    ("B0f", "D1p"), ("D1p", "D1f"), ("C0", "D1f"), ("D0", "D2"), ("D1f", "E1"), ("B1f", "E1"),
}  # fmt: skip


@pytest.fixture
def work():
    return workload("glm52_attention_prefix")


def last_arriver(plan: OpPlan) -> OpPlan:
    config = dict(plan.config)
    return OpPlan.of(plan.impl, {**config, "finalizer": "last_arriver"} if "finalizer" in config else config)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_103a"])
def test_default_kernels_have_the_twelve_edges(work, arch):
    plans = work.default_ops(work.ops, arch)
    edges = kernel_edges(work.graph, plans)
    assert set(edges) == TWELVE
    assert len(edges) == 12
    assert kernel_edges(work.graph, plans) is edges
    assert kernel_names(work.graph, plans) == ("A0", "B0p", "B0f", "C0", "B1p", "B1f", "D0", "D1p", "D1f", "D2", "E1")


def test_split_k_of_one_keeps_the_edges(work):
    plans = {
        name: OpPlan.of(plan.impl, {**dict(plan.config), **({"split_k": 1} if name != "E1" and name != "A0" else {})})
        for name, plan in work.default_ops(work.ops, "sm_90a").items()
    }
    assert set(kernel_edges(work.graph, plans)) == TWELVE


def test_without_finalizer_kernels_consumers_hang_on_producers(work):
    plans = {name: last_arriver(plan) for name, plan in work.default_ops(work.ops, "sm_90a").items()}
    assert set(kernel_edges(work.graph, plans)) == {
        ("A0", "B0p"), ("A0", "C0"), ("A0", "B1p"), ("B0p", "D0"), ("B0p", "D1p"),
        ("C0", "D1p"), ("D0", "D2"), ("D1p", "E1"), ("B1p", "E1"),
    }  # fmt: skip


def test_facts_have_graph_wide_names(work):
    plans = work.default_ops(work.ops, "sm_90a")
    names = kernel_names(work.graph, plans)
    facts = graph_facts(work.graph, plans, dict.fromkeys(names, KernelPlan()))
    assert tuple(kernel.name for kernel in facts) == names
    assert {kernel.op for kernel in facts} == set(work.ops)
    buffers = {access.buffer for kernel in facts for access in kernel.accesses}
    assert set(work.graph.tensors) <= buffers
    assert {"B0.partials", "B1.partials", "D1.partials"} <= buffers


def test_topological_orders(work):
    plans = work.default_ops(work.ops, "sm_90a")
    names, edges = kernel_names(work.graph, plans), kernel_edges(work.graph, plans)
    orders = set(islice(topological_orders(names, edges), 5000))
    assert len(orders) == 1628
    assert all(is_topological(order, edges) for order in orders)
    assert topological_order(names, edges) == names
    late_c0 = topological_order(names, edges, rank=lambda name: float(name == "C0"))
    assert is_topological(late_c0, edges)
    assert late_c0.index("C0") > names.index("C0")
    assert not is_topological(names[::-1], edges)
