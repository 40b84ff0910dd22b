"""Graphs of A0 → B0 that the closure rule refuses give wrong results once a kernel is slow; safe ones never do."""

import functools

import pytest

from mktune.executors.buffers import Buffers
from mktune.executors.cuda_graph import CudaGraph
from mktune.executors.discovery import find_device
from mktune.executors.driver_calls import synchronize
from mktune.executors.torch_memory import counters, workspaces
from mktune.jit.build import build
from mktune.measure.memory import addresses, make_memory
from mktune.validity.hazards import hazards
from tests.oracle.plans import SHAPE
from tests.oracle.prefix_mutants import GRAPH, UNSAFE, base_plan, safe_graph, unsafe_graph
from tests.oracle.unsafe import own_buffer

pytestmark = pytest.mark.gpu

REPLAYS = 5
CASES = sorted({(mutant.base, mutant.copies, mutant.slow) for mutant in UNSAFE})


@functools.cache
def memory():
    return make_memory(GRAPH, SHAPE, 2, seed=5, place="cuda:0")


@functools.cache
def compiled(base, arch):
    """Every kernel that graphs with this base launch, as planned and asleep, by spec."""
    gpu = find_device(0)
    graphs = [safe_graph(base, 1, gpu, launches=True)]
    graphs += [unsafe_graph(mutant, gpu, launches=True) for mutant in UNSAFE if mutant.base == base]
    specs = dict.fromkeys(launch.kernel for graph in graphs for _, launch in graph.launches)
    return {kernel.spec: kernel for kernel in build(list(specs), arch)}


def results(base, graph, device):
    """What each of some replays leaves in every result and cache, as bytes; all of it is poison before each."""
    import torch

    held, plan = memory(), base_plan(base, device.arch)
    spaces = workspaces(plan, GRAPH, SHAPE, "cuda:0")
    counting = counters(plan, GRAPH, SHAPE)
    own = {own_buffer(GRAPH, name, copy): value for copy in (0, 1) for name, value in held.bound[copy].items()}
    buffers = Buffers((addresses({**held.args, **held.results, **spaces, **own}),))
    built = CudaGraph(graph, compiled(base, device.arch), buffers)
    left = []
    for _ in range(REPLAYS):
        for name, value in {**held.results, **spaces}.items():
            value.view(torch.uint8).fill_(0 if name in counting else 0xFF)
        torch.cuda.synchronize()
        built.replay(torch.cuda.current_stream().cuda_stream)
        synchronize()
        left.append({name: value.view(torch.uint8).clone() for name, value in held.results.items()})
    built.close()
    return left


@functools.cache
def expected(base, copies, device):
    """The results of the base plan, nobody slow: the same in every replay."""
    first, *others = results(base, safe_graph(base, copies, device, launches=True), device)
    assert all(differing(other, first) == [] for other in others)
    return first


def differing(results, others):
    import torch

    return [name for name in results if not torch.equal(results[name], others[name])]


@pytest.mark.parametrize(("base", "copies", "slow"), CASES)
def test_the_safe_graph_stays_right_however_slow_the_kernel(device, base, copies, slow):
    graph = safe_graph(base, copies, device, slow, launches=True)
    assert hazards(graph) == []
    for left in results(base, graph, device):
        assert differing(left, expected(base, copies, device)) == []


@pytest.mark.parametrize("mutant", UNSAFE, ids=lambda mutant: mutant.name)
def test_the_refused_graph_gives_wrong_results(device, mutant):
    graph = unsafe_graph(mutant, device, launches=True)
    assert hazards(graph)
    wrong = [
        differing(left, expected(mutant.base, mutant.copies, device)) for left in results(mutant.base, graph, device)
    ]
    print(mutant.name, "differs in", wrong)
    assert any(wrong)
