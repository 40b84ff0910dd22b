"""Streams, events and early starts that a lowered graph is issued with: never less order than the plan's edges."""

from random import Random

import pytest

from mktune.access import KernelFacts
from mktune.executors.issue_order import issue_order
from mktune.graph.builtin import builtin_plans
from mktune.lowering.closure import close
from mktune.lowering.kernel_graph import Edge, KernelGraph
from tests.oracle.plans import SHAPE, WORKLOAD, lowered, random_plan


def graph_of(streams, edges, triggers=None, never=()):
    """Kernels by name → stream, in issue order. All wait, and trigger before their wait, but for what is said."""
    kernels = tuple(
        KernelFacts(name, name, (), name not in never, (triggers or {}).get(name, "before_wait")) for name in streams
    )
    return KernelGraph(kernels, tuple(Edge(*edge) for edge in edges), streams=tuple(streams.items()))


def steps(order):
    return {step.kernel: step for step in order.steps}


def test_one_stream_needs_no_event():
    order = issue_order(graph_of({"a": 0, "b": 0, "c": 0}, [("a", "b", "programmatic"), ("b", "c", "full")]))
    assert (order.lanes, order.joins, order.forks, order.stricter) == (1, (), False, ())
    assert [step.serialized for step in order.steps] == [False, True, False]
    assert not any(step.waits or step.signals or step.records for step in order.steps)


def test_edges_between_streams_are_events_of_their_kind():
    order = issue_order(
        graph_of(
            {"a": 0, "b": 1, "c": 2, "d": 0},
            [("a", "b", "programmatic"), ("a", "c", "full"), ("a", "d", "full"), ("c", "d", "launch_order")],
        )
    )
    found = steps(order)
    assert (found["b"].waits, found["c"].waits) == ((("a", "programmatic"),), (("a", "full"),))
    assert found["d"].waits == (("c", "launch_order"),)
    assert (found["a"].signals, found["a"].records) == ("programmatic", True)
    assert found["c"].signals == "launch_order"
    assert order.joins == ("b", "c")  # the ends of the other streams
    assert [found[name].records for name in "abcd"] == [True, True, True, False]
    assert order.stricter == ()


def test_a_root_on_another_stream_waits_for_what_the_caller_did():
    order = issue_order(graph_of({"a": 0, "b": 1, "c": 1}, [("b", "c", "full")]))
    assert [step.forks for step in order.steps] == [False, True, False]
    assert order.forks


def test_launch_order_alone_does_not_tell_that_the_caller_is_done():
    order = issue_order(graph_of({"a": 0, "b": 1}, [("a", "b", "launch_order")]))
    assert steps(order)["b"].forks
    assert not steps(issue_order(graph_of({"a": 0, "b": 1}, [("a", "b", "programmatic")])))["b"].forks


def test_launch_order_in_a_stream_opens_another_one():
    order = issue_order(graph_of({"a": 0, "b": 0, "c": 0}, [("a", "b", "launch_order"), ("b", "c", "programmatic")]))
    found = steps(order)
    assert [step.lane for step in order.steps] == [0, 1, 1]
    assert (found["a"].signals, found["b"].waits, found["b"].forks) == ("launch_order", (("a", "launch_order"),), True)
    assert (found["c"].serialized, order.joins, order.stricter) == (True, ("c",), ())


def test_one_launch_signals_once_and_says_so():
    order = issue_order(graph_of({"a": 0, "b": 1, "c": 2}, [("a", "b", "programmatic"), ("a", "c", "launch_order")]))
    assert steps(order)["a"].signals == "programmatic"
    assert steps(order)["c"].waits == (("a", "programmatic"),)
    assert order.stricter == (("a", "c", "launch_order", "programmatic"),)


def test_a_full_edge_past_an_early_start_takes_the_early_start_away():
    """c may start beside b, and b beside a: stream serialization would not hold a → c."""
    edges = [("a", "b", "programmatic"), ("b", "c", "programmatic"), ("a", "c", "full")]
    order = issue_order(graph_of({"a": 0, "b": 0, "c": 0}, edges))
    assert [step.serialized for step in order.steps] == [False, True, False]
    assert order.stricter == (("b", "c", "programmatic", "full"),)


def test_the_same_edge_is_kept_where_the_kernel_between_has_waited():
    edges = [("a", "b", "programmatic"), ("b", "c", "programmatic"), ("a", "c", "programmatic")]
    waited = issue_order(graph_of({"a": 0, "b": 0, "c": 0}, edges))
    assert [step.serialized for step in waited.steps] == [False, True, True]
    never = issue_order(graph_of({"a": 0, "b": 0, "c": 0}, edges, never=("b",)))
    assert [step.serialized for step in never.steps] == [False, True, False]


@pytest.mark.parametrize("name", ["serial", "serial+pdl", "branches", "branches+pdl"])
def test_built_in_plans_are_issued_as_planned(name):
    plan = builtin_plans(WORKLOAD, WORKLOAD.ops, SHAPE, "sm_90a")[name]
    order = issue_order(lowered(plan))
    assert order.stricter == ()
    assert order.lanes == (4 if name.startswith("branches") else 1)
    assert not order.forks
    if name == "serial+pdl":
        assert all(step.serialized for step in order.steps[1:])


def as_issued(order):
    """The edges that steps impose, read off streams and events as CUDA orders them."""
    edges, members = {}, {}
    for step in order.steps:
        earlier = members.setdefault(step.lane, [])
        if step.serialized:
            edges[earlier[-1], step.kernel] = "programmatic"
        else:
            edges |= {(before, step.kernel): "full" for before in earlier}
        edges |= {(producer, step.kernel): kind for producer, kind in step.waits}
        earlier.append(step.kernel)
    return [(*ends, kind) for ends, kind in edges.items()]


def test_what_is_issued_orders_at_least_what_is_planned():
    draw, several, checked = Random(7), 0, 0
    while checked < 400:
        graph = lowered(random_plan(draw, WORKLOAD.ops))
        order = issue_order(graph)
        issued = KernelGraph(graph.kernels, tuple(Edge(*edge) for edge in as_issued(order)))
        planned, live = close(graph), close(issued)
        for name, masks in planned.known.items():
            assert all(not want & ~have for want, have in zip(masks, live.known[name], strict=True)), name
        ends = {step.lane: step.kernel for step in order.steps}
        assert set(order.joins) == {kernel for lane, kernel in ends.items() if lane}
        recorded = {step.kernel: step for step in order.steps}
        for step in order.steps:
            for producer, kind in step.waits:
                assert recorded[producer].records if kind == "full" else recorded[producer].signals == kind
        several += order.lanes > 1
        checked += 1
    assert several > 300
