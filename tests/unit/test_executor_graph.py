"""The CUDA graph that a plan becomes, seen through the driver calls that build it."""

import pytest

from mktune.access import KernelFacts
from mktune.errors import CandidateError, InputError
from mktune.executors import cuda_graph, executable, functions, modules
from mktune.executors.buffers import Buffers, Poison, Span, merge
from mktune.executors.cuda_graph import CudaGraph, compiled_for
from mktune.launch import BufferArg, CompiledKernel, KernelSpec, Launch, ScalarArg
from mktune.lowering.kernel_graph import Edge, KernelGraph, all_full, specs_of, with_priorities

pytest.importorskip("cuda.bindings.driver")


class FakeDriver:
    """Answers driver calls with plain values and remembers what was built. Fails at the call named in `fails_at`."""

    def __init__(self):
        self.nodes, self.edges, self.attributes = {}, [], {}
        self.destroyed, self.updates = [], []
        self.flags = None
        self.fails_at = ""

    def __call__(self, name, *args):
        if name == self.fails_at:
            raise CandidateError("build_error", f"{name}: invalid value")
        return getattr(self, name, lambda *_: 64)(*args)  # a handle

    def _node(self, kind, params=None, before=()):
        self.nodes[len(self.nodes)] = (kind, params)
        self.edges += [(source, len(self.nodes) - 1, 0, 0) for source in before]
        return len(self.nodes) - 1

    def cuGraphAddEmptyNode(self, graph, before, count):
        return self._node("empty")

    def cuGraphAddMemsetNode(self, graph, before, count, params, context):
        assert count == len(before)
        return self._node("memset", Span(int(params.dst), params.width), before)

    def cuGraphAddKernelNode(self, graph, before, count, params):
        return self._node("kernel", params)

    def cuGraphAddDependencies(self, graph, sources, targets, data, count):
        assert len(sources) == len(targets) == len(data) == count
        for source, target, edge in zip(sources, targets, data, strict=True):
            assert (source, target) not in [known[:2] for known in self.edges], "a duplicate edge is an error"
            self.edges.append((source, target, int(edge.type), int(edge.from_port)))

    def cuGraphKernelNodeSetAttribute(self, node, attribute, value):
        self.attributes[node, attribute.name] = value

    def cuCtxGetStreamPriorityRange(self):
        return 0, -5

    def cuGraphInstantiate(self, graph, flags):
        self.flags = flags
        return "executable"

    def cuGraphExecKernelNodeSetParams(self, executable, node, params):
        self.updates.append(node)

    def cuModuleUnload(self, module):
        self.destroyed.append("module")

    def cuGraphExecDestroy(self, executable):
        self.destroyed.append("executable")

    def cuGraphDestroy(self, graph):
        self.destroyed.append("graph")


@pytest.fixture
def gpu(monkeypatch):
    fake = FakeDriver()
    for module in (cuda_graph, executable, functions, modules):
        monkeypatch.setattr(module, "call", fake)
    monkeypatch.setattr(functions, "MODULES", modules.Modules())
    return fake


def kernel(name):
    return KernelFacts(name, name, (), True, "exit")


def launch(name, **changes):
    spec = KernelSpec("standalone/x.cu", f"mktune::{name}<1>")
    values = {"kernel": spec, "grid": (4, 2, 1), "block": 128, "smem": 1024, "args": (BufferArg(name), ScalarArg(7))}
    return Launch(**{**values, **changes})


def graph_of(names, edges, **changes):
    launches = {name: launch(name) for name in names}
    return KernelGraph(
        tuple(map(kernel, names)),
        tuple(Edge(*edge) for edge in edges),
        launches=tuple({**launches, **changes.pop("launches", {})}.items()),
        **changes,
    )


def compiled(graph):
    return {
        spec: CompiledKernel(spec, "sm_90a", b"\x7fELF", "symbol", 32, 0, 0, 0, "13.0.88", None)
        for spec in specs_of(graph)
    }


def buffers(graph, layers):
    names = [kernel.name for kernel in graph.kernels]
    return Buffers(
        tuple({name: 4096 * (1 + layer) + 256 * i for i, name in enumerate(names)} for layer in range(layers))
    )


def named_edges(gpu, graph):
    """Edges by (layer, kernel) or by node number where the node is no kernel."""
    names = {number: name for name, number in graph.nodes.items()}
    return {(names.get(source, source), names.get(target, target), *rest) for source, target, *rest in gpu.edges}


CHAIN = graph_of("abc", [("a", "b", "programmatic"), ("b", "c", "launch_order"), ("a", "c", "full")])


def test_edges_carry_their_kind_and_layers_are_chained_by_full_edges(gpu):
    built = CudaGraph(CHAIN, compiled(CHAIN), buffers(CHAIN, 2))
    assert set(built.nodes) == {(layer, name) for layer in (0, 1) for name in "abc"}
    assert named_edges(gpu, built) == {
        *(((layer, "a"), (layer, "b"), 1, 1) for layer in (0, 1)),
        *(((layer, "b"), (layer, "c"), 1, 2) for layer in (0, 1)),
        *(((layer, "a"), (layer, "c"), 0, 0) for layer in (0, 1)),
        ((0, "c"), (1, "a"), 0, 0),
    }
    assert gpu.flags == 8  # node priorities count


def test_every_sink_leads_to_every_root_of_the_next_layer(gpu):
    fork = graph_of("abcd", [("a", "b", "full"), ("a", "c", "programmatic")])  # d stands alone
    built = CudaGraph(fork, compiled(fork), buffers(fork, 3))
    kernels = [edge for edge in named_edges(gpu, built) if isinstance(edge[0], tuple)]
    for layer in (0, 1):
        onward = {edge for edge in kernels if edge[0][0] == layer and edge[1][0] != layer}
        assert onward == {((layer, sink), (layer + 1, root), 0, 0) for sink in "bcd" for root in "ad"}


def test_a_graph_with_several_roots_gets_one(gpu):
    pair = graph_of("ab", [])
    built = CudaGraph(pair, compiled(pair), buffers(pair, 1))
    empty = [number for number, (kind, _) in gpu.nodes.items() if kind == "empty"]
    assert named_edges(gpu, built) == {(empty[0], (0, "a"), 0, 0), (empty[0], (0, "b"), 0, 0)}


def test_a_graph_with_one_root_gets_no_other(gpu):
    CudaGraph(CHAIN, compiled(CHAIN), buffers(CHAIN, 2))
    assert {kind for kind, _ in gpu.nodes.values()} == {"kernel"}


def test_poison_stands_between_a_layer_and_what_ran_before(gpu):
    spans = ((Span(64, 8), Span(128, 8)), (Span(256, 16),))
    built = CudaGraph(CHAIN, compiled(CHAIN), buffers(CHAIN, 2), Poison(spans))
    memsets = {params: number for number, (kind, params) in gpu.nodes.items() if kind == "memset"}
    assert set(memsets) == {Span(64, 8), Span(128, 8), Span(256, 16)}
    edges = named_edges(gpu, built)
    assert {(memsets[span], (0, "a"), 0, 0) for span in spans[0]} <= edges
    assert ((0, "c"), memsets[Span(256, 16)], 0, 0) in edges
    assert (memsets[Span(256, 16)], (1, "a"), 0, 0) in edges
    assert ((0, "c"), (1, "a"), 0, 0) not in edges  # the poison would race with the layer
    targets = {edge[1] for edge in edges}
    assert [number for number in gpu.nodes if number not in targets and number not in built.nodes.values()] == [0]


def test_launch_parameters_reach_the_node(gpu):
    built = CudaGraph(CHAIN, compiled(CHAIN), buffers(CHAIN, 1))
    params = gpu.nodes[built.nodes[0, "b"]][1]
    assert (params.gridDimX, params.gridDimY, params.gridDimZ, params.blockDimX) == (4, 2, 1, 128)
    assert params.sharedMemBytes == 1024


def test_priorities_are_turned_round_and_kept_in_range(gpu):
    graph = with_priorities(CHAIN, {"a": 2, "b": 9})
    built = CudaGraph(graph, compiled(graph), buffers(graph, 1))
    found = {key[0]: value.priority for key, value in gpu.attributes.items()}
    assert found == {built.nodes[0, "a"]: -2, built.nodes[0, "b"]: -5}


def test_clusters_are_node_attributes(gpu):
    graph = graph_of("a", [], launches={"a": launch("a", cluster=2)})
    CudaGraph(graph, compiled(graph), buffers(graph, 1))
    ((_, attribute),) = gpu.attributes
    assert attribute == "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION"


def test_rebinding_updates_every_node_and_builds_none(gpu):
    built = CudaGraph(CHAIN, compiled(CHAIN), buffers(CHAIN, 2))
    count = len(gpu.nodes)
    built.rebind(buffers(CHAIN, 2))
    assert sorted(gpu.updates) == sorted(built.nodes.values())
    assert len(gpu.nodes) == count


def test_closing_frees_once(gpu):
    built = CudaGraph(CHAIN, compiled(CHAIN), buffers(CHAIN, 1))
    built.close()
    built.close()
    assert gpu.destroyed == ["executable", "graph", "module", "module", "module"]


@pytest.mark.parametrize("call", ["cuGraphAddKernelNode", "cuGraphAddDependencies", "cuGraphInstantiate"])
def test_a_graph_that_the_driver_refuses_leaves_nothing_behind(gpu, call):
    gpu.fails_at = call
    with pytest.raises(CandidateError, match=call):
        CudaGraph(CHAIN, compiled(CHAIN), buffers(CHAIN, 1))
    assert gpu.destroyed == ["graph", "module", "module", "module"]


def test_a_buffer_without_memory_is_named(gpu):
    with pytest.raises(InputError, match="'b' of layer 0"):
        CudaGraph(CHAIN, compiled(CHAIN), Buffers(({"a": 4096, "c": 8192},)))


def test_a_kernel_that_was_not_compiled_is_named():
    specs = specs_of(CHAIN)
    with pytest.raises(CandidateError, match="mktune::c<1> was not compiled"):
        compiled_for(specs, list(compiled(CHAIN).values())[:2])


def test_all_full_changes_kinds_only():
    full = all_full(CHAIN)
    assert {edge.kind for edge in full.edges} == {"full"}
    assert [(edge.source, edge.target) for edge in full.edges] == [(edge.source, edge.target) for edge in CHAIN.edges]


def test_spans_are_joined_where_they_touch():
    assert merge([Span(100, 10), Span(0, 10), Span(10, 5), Span(104, 2)]) == (Span(0, 15), Span(100, 10))
