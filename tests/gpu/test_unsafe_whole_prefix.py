"""Graphs of the whole prefix that the closure rule refuses go wrong once a kernel is slow; safe ones never do."""

import functools

import pytest

from mktune.executors.buffers import Buffers
from mktune.executors.cuda_graph import CudaGraph
from mktune.executors.driver_calls import synchronize
from mktune.executors.torch_memory import counters, workspaces
from mktune.jit.build import build
from mktune.measure.compile_ahead import CompileAhead
from mktune.measure.memory import addresses, make_memory
from mktune.validity.hazards import hazards
from tests.oracle.unsafe import own_buffer
from tests.oracle.whole_mutants import GRAPH, NEVER_SHOWN, ROWS, SAFE, UNSAFE, base_plan, graph_of, shape_of

pytestmark = pytest.mark.gpu

REPLAYS = 5


@functools.cache
def memory(m):
    return make_memory(GRAPH, shape_of(m), 2, seed=m, place="cuda:0")


@functools.cache
def pristine(m):
    """The caches of each copy, as they are before any replay; none of their rows holds what a replay writes."""
    kinds = {name: spec.kind for name, spec in GRAPH.tensors.items()}
    return [{name: layer[name].clone() for name in layer if kinds[name] == "cache"} for layer in memory(m).bound]


@functools.cache
def compiled(device):
    """Every kernel that some graph here launches, as planned and asleep, by spec; compiled in parallel."""
    graphs = [
        graph_of(case, m, device, launches=True, slow=slow)
        for m in ROWS
        for case in (*UNSAFE, *SAFE)
        for slow in (False, True)
    ]
    specs = list(dict.fromkeys(launch.kernel for graph in graphs for _, launch in graph.launches))
    ahead = CompileAhead(device.arch)
    try:
        ahead.wait(specs)
    finally:
        ahead.close()
    return {kernel.spec: kernel for kernel in build(specs, device.arch)}


class Stage:
    """A graph on the GPU with memory of its own for workspaces: what replays leave in results and caches, as bytes."""

    def __init__(self, graph, case, m, device):
        plan, shape = base_plan(case.base, m, device.arch), shape_of(m)
        self._m, self._held = m, memory(m)
        self._pristine = pristine(m)
        self._spaces = workspaces(plan, GRAPH, shape, "cuda:0")
        self._counting = counters(plan, GRAPH, shape)
        own = {
            own_buffer(GRAPH, name, copy): value for copy in (0, 1) for name, value in self._held.bound[copy].items()
        }
        named = {**self._held.args, **self._held.results, **self._spaces, **own}
        self._built = CudaGraph(graph, compiled(device), Buffers((addresses(named),)))

    def replay(self):
        import torch

        self._poison()
        torch.cuda.synchronize()
        self._built.replay(torch.cuda.current_stream().cuda_stream)
        synchronize()
        caches = {f"{name}@{copy}": self._held.bound[copy][name] for copy in (0, 1) for name in self._pristine[copy]}
        return {name: value.view(torch.uint8).clone() for name, value in {**self._held.results, **caches}.items()}

    def _poison(self):
        """0xFF over results and workspaces, zero in counters, caches as they were."""
        import torch

        for name, value in {**self._held.results, **self._spaces}.items():
            value.view(torch.uint8).fill_(0 if name in self._counting else 0xFF)
        for layer, before in zip(self._held.bound, self._pristine, strict=True):
            for name, value in before.items():
                layer[name].copy_(value)

    def close(self):
        self._built.close()


def replays(graph, case, m, device):
    stage = Stage(graph, case, m, device)
    try:
        return [stage.replay() for _ in range(REPLAYS)]
    finally:
        stage.close()


@functools.cache
def expected(base, copies, m, device):
    """The results of the base's safe graph, nobody slow: the same in every replay."""
    case = next(case for case in SAFE if (case.base, case.copies) == (base, copies))
    first, *others = replays(graph_of(case, m, device, launches=True, slow=False), case, m, device)
    assert all(differing(other, first) == [] for other in others)
    return first


def differing(results, others):
    import torch

    return [name for name in results if not torch.equal(results[name], others[name])]


@pytest.mark.parametrize("m", ROWS)
@pytest.mark.parametrize("case", SAFE, ids=lambda case: case.name)
def test_the_safe_graph_stays_right_however_slow_the_kernel(device, case, m):
    graph = graph_of(case, m, device, launches=True)
    assert hazards(graph) == []
    right = expected(case.base, case.copies, m, device)
    assert [differing(left, right) for left in replays(graph, case, m, device)] == [[]] * REPLAYS


@pytest.mark.parametrize(
    ("case", "m"),
    [pytest.param(case, m, id=f"{case.name}-{m}") for case in UNSAFE for m in ROWS if (case, m) != NEVER_SHOWN],
)
def test_the_refused_graph_gives_wrong_results(device, case, m):
    graph = graph_of(case, m, device, launches=True)
    assert hazards(graph)
    right = expected(case.base, case.copies, m, device)
    wrong = [differing(left, right) for left in replays(graph, case, m, device)]
    print(f"M = {m}, {case.name}: differs in", wrong)
    assert any(wrong)
