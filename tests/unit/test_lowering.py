"""Plans become exactly the kernels and edges that they ask for, less the edges that order nothing."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from mktune.errors import PlanError
from mktune.graph.builtin import make_plan
from mktune.lowering.closure import close
from mktune.lowering.graph import graph_key, lower, lowered_id, plan_edges, reduce_edges
from mktune.lowering.kernel_graph import Edge, KernelGraph
from mktune.plan import KernelPlan, OpPlan, Plan
from tests.oracle.graphs import random_graph
from tests.oracle.plans import H200, SHAPE, SUBGRAPHS, WORKLOAD, lowered, place, random_plan, with_edges

DATA = (
    "A0->B0p A0->B1p A0->C0 B0f->D0 B0f->D1p B0p->B0f B1f->E1 B1p->B1f C0->D1f D0->D2 D1f->E1 D1p->D1f".split()  # noqa: SIM905
)


def builtin(mode: str, ops: tuple[str, ...] = WORKLOAD.ops) -> Plan:
    return make_plan(WORKLOAD, ops, SHAPE, H200.arch, mode)


def arrows(graph: KernelGraph, kind: str | None = None) -> list[str]:
    return sorted(f"{edge.source}->{edge.target}" for edge in graph.edges if kind in (None, edge.kind))


def test_one_stream_of_full_edges_is_one_chain() -> None:
    plan = builtin("serial")
    assert arrows(lowered(plan)) == sorted(f"{a}->{b}" for a, b in zip(plan.order, plan.order[1:], strict=False))
    assert not any(edge.data for edge in lowered(plan).edges if f"{edge.source}->{edge.target}" not in DATA)


def test_branches_keep_every_data_edge_and_no_other() -> None:
    for mode, kind in (("branches", "full"), ("branches+pdl", "programmatic")):
        assert arrows(lowered(builtin(mode)), kind) == sorted(DATA)
        assert lowered(builtin(mode)).roots == ("A0",)
        assert lowered(builtin(mode)).sinks == ("D2", "E1")


def test_programmatic_chain_edges_replace_the_data_edges_that_they_imply() -> None:
    plan = builtin("serial+pdl")
    graph = lowered(plan)
    assert arrows(graph, "programmatic") == sorted(
        f"{a}->{b}" for a, b in zip(plan.order, plan.order[1:], strict=False)
    )


def test_kernels_stand_in_the_plans_order_with_streams_and_priorities() -> None:
    plan = place(builtin("branches"), B0p={"priority": 2})
    graph = lowered(plan)
    assert tuple(kernel.name for kernel in graph.kernels) == plan.order
    assert dict(graph.streams) == {name: kernel.stream for name, kernel in plan.kernels}
    assert graph.priorities == (("B0p", 2),)
    assert graph.launches == ()


def test_buffers_have_graph_wide_names() -> None:
    facts = {kernel.name: kernel for kernel in lowered(builtin("serial")).kernels}
    assert {"h_q", "h_s", "W_a", "B0.partials"} <= {access.buffer for access in facts["B0p"].accesses}
    assert {"B0.partials", "q_lora_q", "mla_cache"} <= {access.buffer for access in facts["B0f"].accesses}


def test_a_merged_finalizer_takes_over_the_edges_of_its_kernel() -> None:
    d1 = WORKLOAD.graph.calls["D1"].op.default(H200.arch)
    merged = OpPlan.of(d1.impl, {**dict(d1.config), "finalizer": "last_arriver"})
    plan = make_plan(WORKLOAD, None, SHAPE, H200.arch, "branches", {"D1": merged})
    assert {"B0f->D1p", "C0->D1p", "D1p->E1"} <= set(arrows(lowered(plan)))
    assert not any("D1f" in arrow for arrow in arrows(lowered(plan)))


def test_a_longer_path_alone_drops_no_edge() -> None:
    """A0 → C0 beside A0 → B0p → B0f → C0 on one stream: the path tells of A0 only if its kernels wait."""
    plan = builtin("serial+pdl", ("A0", "B0", "C0"))
    graph = lowered(plan)
    assert "A0->C0" not in arrows(graph)
    careless = tuple(replace(kernel, waits=kernel.name != "B0f") for kernel in graph.kernels)
    assert ("A0", "C0") in {(edge.source, edge.target) for edge in reduce_edges(careless, plan_edges(plan))}


def test_a_weaker_neighbour_drops_no_stronger_edge() -> None:
    """A full edge A0 → C0 holds C0 back until A0 is complete; the programmatic chain from B0f does not."""
    plan = with_edges(builtin("serial+pdl", ("A0", "B0", "C0")), A0_C0="full")
    assert "A0->C0" in arrows(lowered(plan), "full")


def test_dropping_edges_changes_the_closure_of_no_kernel() -> None:
    random = Random(2)
    dropped = 0
    for _ in range(600):
        graph = random_graph(random, kernels=random.randint(3, 8))
        reduced = replace(graph, edges=reduce_edges(graph.kernels, graph.edges))
        assert close(reduced) == close(graph)
        assert set(reduced.edges) <= set(graph.edges)
        dropped += len(graph.edges) - len(reduced.edges)
    assert dropped > 300


def test_no_edge_that_is_left_could_be_dropped_too() -> None:
    random = Random(4)
    for number in range(60):
        ops = SUBGRAPHS[number % len(SUBGRAPHS)]
        graph = lower(random_plan(random, ops), WORKLOAD.subgraph(ops), SHAPE)
        whole = close(graph)
        for edge in graph.edges:
            rest = tuple(other for other in graph.edges if other is not edge)
            assert close(replace(graph, edges=rest)) != whole, edge


def test_plans_that_differ_in_nothing_that_runs_are_duplicates() -> None:
    plan = builtin("serial", ("A0", "B0"))
    graph = lowered(plan)
    moved = place(plan, B0f={"stream": 1})  # the edge B0p → B0f orders it as before
    idle = place(plan, A0={"trigger": "start"}, B0p={"gdc": "prefetch"})  # no edge asks for either
    wider = replace(plan, m_range=(1, 16))
    for other in (moved, idle, wider):
        assert lowered_id(other, lowered(other)) == lowered_id(plan, graph)
        assert other.plan_id != plan.plan_id


def test_plans_that_differ_in_what_runs_are_not() -> None:
    plan = builtin("branches+pdl")
    b0 = plan.op["B0"]
    split = OpPlan.of(b0.impl, {**dict(b0.config), "split_k": 2})
    others = [
        place(plan, B0p={"trigger": "after_wait"}),
        place(plan, B0p={"gdc": "entry"}),
        place(plan, D0={"l2_prefetch_bytes": 16384}),
        place(plan, D0={"priority": 1}),
        with_edges(plan, B0f_D0="full"),
        with_edges(plan, B0f_D0="launch_order"),
        replace(plan, ops=tuple({**plan.op, "B0": split}.items())),
        builtin("branches"),
        builtin("serial+pdl"),
    ]
    ids = {lowered_id(other, lowered(other)) for other in (plan, *others)}
    assert len(ids) == len(others) + 1


def test_the_key_of_a_graph_is_its_kernels_edges_and_priorities() -> None:
    graph = lowered(builtin("branches", ("A0", "B0", "C0")))
    names = graph.kernels
    assert graph_key(replace(graph, kernels=tuple(reversed(names)), streams=())) == graph_key(graph)
    assert graph_key(replace(graph, edges=tuple(reversed(graph.edges)))) == graph_key(graph)
    assert graph_key(replace(graph, priorities=(("A0", 1),))) != graph_key(graph)
    assert graph_key(replace(graph, edges=graph.edges[1:])) != graph_key(graph)
    assert graph_key(replace(graph, edges=(*graph.edges, Edge("B0f", "C0", "full", data=False)))) != graph_key(graph)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda plan: replace(plan, edges=plan.edges[1:]),
        lambda plan: replace(plan, edges=(*plan.edges, (("A0", "B0f"), "full"))),
        lambda plan: replace(plan, order=plan.order[1:]),
        lambda plan: replace(plan, order=(*plan.order[1:], "B0f")),
        lambda plan: replace(plan, order=("A0", "B0f", "B0p")),
        lambda plan: replace(plan, kernels=plan.kernels[1:]),
        lambda plan: replace(plan, kernels=(*plan.kernels, ("Z", KernelPlan()))),
        lambda plan: replace(plan, ops=plan.ops[:1]),
    ],
)
def test_a_plan_of_other_kernels_or_edges_is_refused(wrong) -> None:
    plan = wrong(builtin("serial", ("A0", "B0")))
    with pytest.raises(PlanError):
        lower(plan, WORKLOAD.subgraph(("A0", "B0")), SHAPE)
