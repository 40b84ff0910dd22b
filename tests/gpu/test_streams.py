"""Launches on streams give what the graph gives: live, captured, with slow producers, inside the caller's own graph."""

import functools

import pytest
from structures import WORKLOAD, random_structures

from mktune.executors.captured import CapturedStreams
from mktune.executors.cuda_graph import CudaGraph
from mktune.executors.streams import Streams
from mktune.graph.builtin import MODES, make_plan
from mktune.jit.build import build
from mktune.lowering.graph import lower
from mktune.lowering.kernel_graph import specs_of
from mktune.measure.correctness import Checked, KnownResults, fail_on, unequal_bits
from mktune.measure.memory import make_memory
from mktune.measure.validation import delayed, producers
from mktune.shape import Shape

pytestmark = pytest.mark.gpu

SHAPE = Shape.from_m(16, 1024)
REPLAYS = 8
RANDOM = 24
KNOWN = KnownResults()


@functools.cache
def memory():
    return make_memory(WORKLOAD.graph, SHAPE, 4, seed=3, place="cuda:0")


@functools.cache
def copies():
    return memory().verification()


def plan_of(name, device):
    """A built-in plan, or one of the random ones by number."""
    if name in MODES:
        return make_plan(WORKLOAD, None, SHAPE, device.arch, name)
    return random_structures(device, SHAPE, RANDOM)[int(name)]


def lowered(plan, device):
    return lower(plan, WORKLOAD.graph, SHAPE, device, launches=True)


def compiled(graph, device):
    return {kernel.spec: kernel for kernel in build(specs_of(graph), device.arch)}


def replayed(make, plan, graph, kernels, expected, replays=REPLAYS):
    """Every replay over poison must be bit-equal to `expected`, or right; the number of those that were not equal."""
    checked, unequal = Checked(plan, graph, kernels, copies(), make), 0
    try:
        for replay in range(replays):
            checked.replay()
            if unequal_bits(copies().made, expected):
                unequal += 1
                fail_on(checked.differences(), f"{make.__name__}, replay {replay}:")
        fail_on(checked.counters_left())
    finally:
        checked.close()
    return unequal


def expected_of(plan, graph, kernels):
    """What the graph executor gives, held against the references."""
    checked = Checked(plan, graph, kernels, copies(), CudaGraph)
    try:
        checked.replay()
        fail_on(checked.differences(KNOWN))
        return checked.results()
    finally:
        checked.close()


@pytest.mark.parametrize("name", [*MODES, *map(str, range(RANDOM))])
def test_results_equal_those_of_the_graph(device, name):
    plan = plan_of(name, device)
    graph = lowered(plan, device)
    kernels = compiled(graph, device)
    expected = expected_of(plan, graph, kernels)
    assert replayed(Streams, plan, graph, kernels, expected) == 0
    assert replayed(CapturedStreams, plan, graph, kernels, expected) == 0


@pytest.mark.parametrize("name", ["serial+pdl", "branches+pdl", "0", "1", "2", "3"])
def test_slow_producers_change_nothing(device, name):
    """Behind its trigger each producer sleeps before it writes: who does not wait for it reads poison."""
    plan = plan_of(name, device)
    graph = lowered(plan, device)
    expected = expected_of(plan, graph, compiled(graph, device))
    assert producers(graph)
    for producer in producers(graph):
        slow = delayed(graph, producer)
        kernels = compiled(slow, device)
        assert replayed(Streams, plan, slow, kernels, expected, 3) == 0, producer
        assert replayed(CapturedStreams, plan, slow, kernels, expected, 3) == 0, producer


@pytest.mark.parametrize("name", [*MODES, *map(str, range(RANDOM))])
def test_a_capture_holds_the_nodes_and_edges_of_the_graph(device, name):
    plan = plan_of(name, device)
    graph = lowered(plan, device)
    kernels = compiled(graph, device)
    buffers, _ = memory().timing(plan)
    ours, theirs = CapturedStreams(graph, kernels, buffers), CudaGraph(graph, kernels, buffers)
    try:
        assert set(ours.nodes) == set(theirs.nodes)
        assert ours.edges() == theirs.edges()
        assert {kind for *_, kind, _ in ours.edges()} == {0, 1} or name in ("serial", "branches")
        assert priorities(ours) == priorities(theirs)
    finally:
        ours.close()
        theirs.close()


def priorities(built):
    from mktune.executors.driver_calls import call, driver

    key = driver().CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PRIORITY
    return {name: call("cuGraphKernelNodeGetAttribute", node, key).priority for name, node in built.nodes.items()}
