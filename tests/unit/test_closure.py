"""The closure rule, clause by clause, on graphs small enough to see."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from mktune.access import KernelFacts
from mktune.lowering.closure import close, repeat
from mktune.lowering.kernel_graph import Edge, KernelGraph
from tests.oracle.graphs import random_graph


def kernel(name: str, trigger: str = "before_wait", waits: bool = True) -> KernelFacts:
    return KernelFacts(name, "op", (), waits, trigger)


def chain(kinds: str, *kernels: KernelFacts) -> KernelGraph:
    """Kernels in a row; `kinds` has one letter for each edge: f(ull), p(rogrammatic), l(aunch order)."""
    names = {"f": "full", "p": "programmatic", "l": "launch_order"}
    edges = [Edge(a.name, b.name, names[kind]) for a, b, kind in zip(kernels, kernels[1:], kinds, strict=False)]
    return KernelGraph(kernels, tuple(edges))


def test_a_full_edge_tells_of_its_source_at_once() -> None:
    closed = close(chain("f", kernel("a"), kernel("b")))
    assert closed.full("b") == closed.launch("b") == closed.wait("b") == ("a",)


def test_a_programmatic_edge_tells_of_its_source_at_the_wait_only() -> None:
    for trigger in ("before_wait", "after_wait", "exit"):
        closed = close(chain("p", kernel("a", trigger), kernel("b")))
        assert closed.launch("b") == closed.full("b") == ()
        assert closed.wait("b") == ("a",)


def test_launch_order_tells_at_the_wait_only_and_hands_nothing_down_before_it() -> None:
    closed = close(chain("fl", kernel("a"), kernel("b"), kernel("c")))
    assert closed.launch("c") == ()
    assert closed.wait("c") == ("a", "b")


def test_a_trigger_before_the_wait_hands_down_what_the_launch_knew() -> None:
    assert close(chain("fp", kernel("a"), kernel("b"), kernel("c"))).launch("c") == ("a",)
    assert close(chain("pp", kernel("a"), kernel("b"), kernel("c"))).launch("c") == ()


@pytest.mark.parametrize("trigger", ["after_wait", "exit"])
def test_a_trigger_after_the_wait_or_at_exit_hands_down_what_the_wait_knew(trigger: str) -> None:
    closed = close(chain("pp", kernel("a"), kernel("b", trigger), kernel("c")))
    assert closed.launch("c") == ("a",)
    assert closed.full("c") == ()  # a trigger publishes nothing that may be read


@pytest.mark.parametrize("trigger", ["after_wait", "exit"])
def test_a_kernel_that_may_skip_its_wait_hands_down_what_its_launch_knew(trigger: str) -> None:
    closed = close(chain("pp", kernel("a"), kernel("b", trigger, waits=False), kernel("c")))
    assert closed.launch("c") == ()
    assert closed.wait("c") == ("b",)


def test_completion_of_a_kernel_that_waits_implies_that_of_its_prerequisites() -> None:
    assert close(chain("pp", kernel("a"), kernel("b"), kernel("c"))).wait("c") == ("a", "b")
    assert close(chain("pp", kernel("a"), kernel("b", waits=False), kernel("c"))).wait("c") == ("b",)


def test_strictly_read_a_wait_counts_for_its_own_kernel_alone() -> None:
    graph = chain("ppp", kernel("a"), kernel("b", "after_wait"), kernel("c"), kernel("d"))
    closed = close(graph, transitive=False)
    assert closed.wait("c") == ("b",)
    assert closed.wait("d") == ("c",)
    full = close(chain("fff", *graph.kernels), transitive=False)
    assert full.launch("d") == ("a", "b", "c")


def test_a_join_knows_what_any_of_its_edges_tells() -> None:
    kernels = kernel("a"), kernel("b"), kernel("c"), kernel("d")
    edges = (
        Edge("a", "b", "full"),
        Edge("a", "c", "programmatic"),
        Edge("b", "d", "full"),
        Edge("c", "d", "programmatic"),
    )
    closed = close(KernelGraph(kernels, edges))
    assert closed.full("d") == closed.launch("d") == ("a", "b")
    assert closed.wait("d") == ("a", "b", "c")


def test_edges_must_go_forward_between_kernels_of_the_graph() -> None:
    backwards = KernelGraph((kernel("a"), kernel("b")), (Edge("b", "a", "full"),))
    with pytest.raises(ValueError, match="b -> a"):
        close(backwards)
    with pytest.raises(ValueError, match="nobody"):
        close(KernelGraph((kernel("a"),), (Edge("a", "nobody", "full"),)))


def test_one_bit_stands_for_a_whole_earlier_copy() -> None:
    """Two copies laid out in full, and one copy whose roots know a bit more, tell every kernel the same."""
    random = Random(1)
    for _ in range(500):
        graph = random_graph(random, kernels=random.randint(1, 6))
        count = len(graph.kernels)
        short, long = close(graph, base=1 << count), close(repeat(graph, 2))
        first = close(graph)
        carried = set().union(*(first.members(first.left[sink][0]) for sink in graph.sinks))
        for facts in graph.kernels:
            for index, read in enumerate((long.full, long.launch, long.wait)):
                mask = short.known[facts.name][index]
                expected = {f"{name}@1" for name in short.members(mask & ((1 << count) - 1))}
                if mask >> count & 1:
                    expected |= {f"{name}@0" for name in carried}
                assert set(read(f"{facts.name}@1")) == expected


def test_copies_are_chained_by_full_edges_from_every_sink_to_every_root() -> None:
    kernels = kernel("a"), kernel("b"), kernel("c")
    graph = KernelGraph(kernels, (Edge("a", "b", "programmatic"), Edge("a", "c", "full")))
    between = [edge for edge in repeat(graph, 3).edges if edge.source[-1] != edge.target[-1]]
    assert [(edge.source, edge.target, edge.kind) for edge in between] == [
        ("b@0", "a@1", "full"),
        ("c@0", "a@1", "full"),
        ("b@1", "a@2", "full"),
        ("c@1", "a@2", "full"),
    ]
    assert [edge.source for edge in repeat(graph, 2, chained=("c",)).edges if edge.target == "a@1"] == ["c@0"]


def test_the_order_in_which_independent_kernels_stand_changes_nothing() -> None:
    kernels = kernel("a"), kernel("b"), kernel("c")
    edges = (Edge("a", "b", "full"), Edge("a", "c", "programmatic"))
    graph = KernelGraph(kernels, edges)
    assert close(graph) == close(replace(graph, kernels=(kernels[0], kernels[2], kernels[1])))
