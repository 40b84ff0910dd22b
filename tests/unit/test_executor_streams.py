"""A plan as launches, seen through the driver calls: live on several streams, and into a graph that is captured."""

import ctypes
from collections import Counter

import pytest

from mktune.access import KernelFacts
from mktune.errors import CandidateError, InputError
from mktune.executors import captured, cuda_graph, driver_calls, executable, functions, modules, streams
from mktune.executors.buffers import Buffers, Poison, Span
from mktune.executors.captured import CapturedStreams
from mktune.executors.cuda_graph import CudaGraph
from mktune.executors.streams import Streams
from mktune.launch import BufferArg, CompiledKernel, KernelSpec, Launch, ScalarArg
from mktune.lowering.kernel_graph import Edge, KernelGraph, specs_of, with_priorities
from mktune.plan import EXECUTORS
from mktune.trial import Status

driver = pytest.importorskip("cuda.bindings.driver")
CALLER = 0x1000


class FakeDriver:
    """Streams, events and captures as plain numbers. `log` holds what was issued, `arguments` the first argument of
    each launch; `fails_at` is (function, how many times it was called until it fails).

    A captured node is (kind, what, in-edges): in-edges are (node, type, port).
    """

    def __init__(self):
        self.log, self.alive, self.made = [], [], 0
        self.nodes, self.pending, self.capturing = [], [], False
        self.arguments, self.asked = [], Counter()
        self.fails_at, self.flags = ("", 0), None

    def __call__(self, name, *args):
        self.asked[name] += 1
        if (name, self.asked[name]) == self.fails_at:
            raise CandidateError("launch_error", f"{name}: invalid value")
        return getattr(self, name)(*args)

    def _handle(self, kind):
        self.made += 1
        self.alive.append((kind, self.made))
        return self.made

    def _gone(self, kind, handle):
        self.alive.remove((kind, int(handle)))

    def cuCtxGetCurrent(self):
        return 1

    def cuModuleLoadData(self, cubin):
        return self._handle("module")

    def cuModuleGetFunction(self, module, symbol):
        return symbol.decode()

    def cuFuncSetAttribute(self, function, attribute, value):
        self.log.append(("set", function, attribute.name.rpartition("_")[2], value))

    def cuModuleUnload(self, module):
        self._gone("module", module)

    def cuStreamCreate(self, flags):
        assert flags == 1  # a blocking one would wait for the default stream
        return driver.CUstream(self._handle("stream"))

    def cuStreamDestroy(self, stream):
        self._gone("stream", stream)

    def cuEventCreate(self, flags):
        assert flags == 2  # programmatic events must not take times
        return driver.CUevent(self._handle("event"))

    def cuEventDestroy(self, event):
        self._gone("event", event)

    def cuCtxGetStreamPriorityRange(self):
        return 0, -5

    def cuStreamIsCapturing(self, stream):
        return int(self.capturing)

    def cuEventRecord(self, event, stream):
        self.log.append(("record", int(event), int(stream)))

    def cuStreamWaitEvent(self, stream, event, flags):
        self.log.append(("wait", int(event), int(stream)))

    def cuMemsetD8Async(self, address, value, count, stream):
        assert value == 0xFF
        self.log.append(("poison", Span(address, count), int(stream)))
        self._captured("poison", Span(address, count))

    def cuLaunchKernelEx(self, config, function, arguments, extra):
        assert extra == 0
        self.arguments.append(ctypes.c_uint64.from_address(ctypes.c_void_p.from_address(arguments).value).value)
        assert config.numAttrs == len(config.attrs)
        attributes = {attribute.id.name.partition("ATTRIBUTE_")[2]: attribute.value for attribute in config.attrs}
        self.log.append(("launch", function, int(config.hStream), attributes, config))
        self._captured("kernel", function, attributes)

    def _captured(self, kind, what, attributes=()):
        if self.capturing:
            self.nodes.append((kind, what, tuple(sorted(self.pending)), dict(attributes)))
            self.pending = [(len(self.nodes), 0, 0)]

    def cuStreamBeginCapture(self, stream, mode):
        self.capturing = True

    def cuStreamEndCapture(self, stream):
        self.capturing = False
        return self._handle("graph")

    def cuStreamGetCaptureInfo(self, stream):
        return 1, 7, "graph", [node for node, _, _ in self.pending], None, len(self.pending)

    def cuStreamUpdateCaptureDependencies(self, stream, nodes, data, count, flags):
        assert flags == 1
        assert len(nodes) == len(data) == count
        self.pending = [(node, int(edge.type), int(edge.from_port)) for node, edge in zip(nodes, data, strict=True)]

    def cuGraphAddEmptyNode(self, graph, before, count):
        assert graph == "graph"
        assert len(before) == count
        self.nodes.append(("empty", "", tuple((node, 0, 0) for node in before), {}))
        return len(self.nodes)

    def cuGraphInstantiate(self, graph, flags):
        self.flags = flags
        return self._handle("executable")

    def cuGraphLaunch(self, executable, stream):
        self.log.append(("replay", executable, stream))

    def cuGraphExecDestroy(self, executable):
        self._gone("executable", executable)

    def cuGraphDestroy(self, graph):
        self._gone("graph", graph)

    def issued(self):
        """(what, stream) in order, without the set-up."""
        return [entry[:3] for entry in self.log if entry[0] != "set"]

    def launches(self):
        return {entry[1]: entry for entry in self.log if entry[0] == "launch"}


@pytest.fixture
def gpu(monkeypatch):
    fake = FakeDriver()
    for module in (captured, cuda_graph, executable, functions, modules, streams):
        monkeypatch.setattr(module, "call", fake)
    monkeypatch.setattr(functions, "MODULES", modules.Modules())
    monkeypatch.setattr(streams, "issue", lambda calls: [fake(name, *arguments) for name, arguments in calls])
    return fake


def graph_of(placed, edges, cluster=1, **changes):
    """Kernels by name → stream."""
    kernels = tuple(KernelFacts(name, name, (), True, "before_wait") for name in placed)
    launches = tuple(
        (name, Launch(KernelSpec("x.cu", name), (4, 2, 1), 128, 1024, (BufferArg(name), ScalarArg(7)), cluster))
        for name in placed
    )
    return KernelGraph(kernels, tuple(Edge(*edge) for edge in edges), tuple(placed.items()), (), launches, **changes)


def compiled(graph):
    return {
        spec: CompiledKernel(spec, "sm_90a", b"", spec.name_expression, 32, 0, 0, 0, "", None)
        for spec in specs_of(graph)
    }


def buffers(graph, layers=1):
    names = [kernel.name for kernel in graph.kernels]
    return Buffers(
        tuple({name: 4096 * (1 + layer) + 256 * i for i, name in enumerate(names)} for layer in range(layers))
    )


def made(graph, layers=1, kind=Streams, **more):
    return kind(graph, compiled(graph), buffers(graph, layers), **more)


FORK = graph_of(
    {"a": 0, "b": 0, "c": 1, "d": 0, "e": 2},
    [
        ("a", "b", "programmatic"),
        ("a", "c", "programmatic"),
        ("b", "d", "full"),
        ("c", "d", "full"),
        ("b", "e", "launch_order"),
    ],
)


def test_launches_are_issued_in_order_with_their_streams_events_and_joins(gpu):
    built = made(FORK)
    built.replay(CALLER)
    other, third = (int(lane) for lane in built._lanes)
    signal = {name: int(both.signal) for name, both in built._events.items() if both.signal is not None}
    end = {name: int(both.end) for name, both in built._events.items() if both.end is not None}
    fork = int(built._fork)
    assert gpu.issued() == [
        ("record", fork, CALLER),
        ("launch", "a", CALLER),
        ("launch", "b", CALLER),
        ("wait", signal["a"], other),
        ("launch", "c", other),
        ("record", end["c"], other),
        ("wait", end["c"], CALLER),
        ("launch", "d", CALLER),
        ("wait", fork, third),  # that b has begun does not tell what the caller's stream has done
        ("wait", signal["b"], third),
        ("launch", "e", third),
        ("record", end["e"], third),
        ("wait", end["c"], CALLER),
        ("wait", end["e"], CALLER),
    ]
    assert set(end) == {"c", "e"}


def test_early_starts_are_launch_attributes(gpu):
    built = made(FORK)
    built.replay(CALLER)
    found = {name: entry[3] for name, entry in gpu.launches().items()}
    assert {name: set(attributes) for name, attributes in found.items()} == {
        "a": {"PROGRAMMATIC_EVENT"},
        "b": {"PROGRAMMATIC_STREAM_SERIALIZATION", "PROGRAMMATIC_EVENT"},
        "c": set(),
        "d": set(),
        "e": set(),
    }
    assert found["b"]["PROGRAMMATIC_STREAM_SERIALIZATION"].programmaticStreamSerializationAllowed == 1
    signals = {name: found[name]["PROGRAMMATIC_EVENT"].programmaticEvent for name in ("a", "b")}
    assert {name: int(signal.event) for name, signal in signals.items()} == {
        name: int(built._events[name].signal) for name in signals
    }
    assert {name: signal.triggerAtBlockStart for name, signal in signals.items()} == {"a": 0, "b": 1}


def test_one_stream_is_launches_on_the_callers_and_nothing_else(gpu):
    serial = graph_of({"a": 0, "b": 0}, [("a", "b", "full")])
    built = made(serial, layers=2)
    built.replay(CALLER)
    assert gpu.issued() == [("launch", name, CALLER) for name in ("a", "b", "a", "b")]
    assert {kind for kind, _ in gpu.alive} == {"module"}
    assert built.stricter == ()


def test_launch_parameters_priorities_and_clusters(gpu):
    graph = with_priorities(graph_of({"a": 0, "b": 1}, [("a", "b", "full")], cluster=2), {"a": 2, "b": 9})
    made(graph).replay(CALLER)
    found = gpu.launches()
    config = found["a"][4]
    assert (config.gridDimX, config.gridDimY, config.gridDimZ, config.blockDimX) == (4, 2, 1, 128)
    assert config.sharedMemBytes == 1024
    assert {name: entry[3]["PRIORITY"].priority for name, entry in found.items()} == {"a": -2, "b": -5}
    assert all(entry[3]["CLUSTER_DIMENSION"].clusterDim.x == 2 for entry in found.values())


def test_kernels_are_set_up_as_the_graph_executor_does(gpu):
    made(FORK).close()
    ours = [entry for entry in gpu.log if entry[0] == "set"]
    functions.Functions(dict(FORK.launches), compiled(FORK))
    theirs = [entry for entry in gpu.log if entry[0] == "set"][len(ours) :]
    assert ours == theirs
    assert ("set", "a", "CARVEOUT", 100) in ours


def test_replays_after_the_first_create_nothing_and_another_stream_moves_the_callers_lane_only(gpu):
    built = made(FORK)
    built.replay(CALLER)
    first, alive, count = gpu.issued(), list(gpu.alive), gpu.made
    built.replay(CALLER)
    assert gpu.issued() == first * 2
    gpu.log.clear()
    built.replay(0x2000)
    assert gpu.issued() == [(what, which, 0x2000 if stream == CALLER else stream) for what, which, stream in first]
    assert (gpu.alive, gpu.made) == (alive, count)


def test_poison_stands_before_each_layer(gpu):
    spans = ((Span(64, 8), Span(128, 8)), (Span(256, 16),))
    made(graph_of({"a": 0}, []), layers=2, poison=Poison(spans)).replay(CALLER)
    assert [entry[:2] for entry in gpu.issued()] == [
        ("poison", Span(64, 8)),
        ("poison", Span(128, 8)),
        ("launch", "a"),
        ("poison", Span(256, 16)),
        ("launch", "a"),
    ]


def test_rebinding_changes_the_arguments_of_the_next_launch(gpu):
    graph = graph_of({"a": 0}, [])
    built = made(graph)
    built.replay(CALLER)
    built.rebind(Buffers(({"a": 1 << 20},)))
    built.replay(CALLER)
    assert gpu.arguments == [4096, 1 << 20]


def test_a_capture_holds_exactly_the_edges_of_the_plan_layer_after_layer(gpu):
    built = made(FORK, layers=2)
    gpu.capturing, gpu.pending = True, [(99, 0, 0)]
    built.replay(CALLER)
    first = {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}
    second = {name: node + 5 for name, node in first.items()}
    inside = [
        (("b", ("a", 1, 1)),),
        (("c", ("a", 1, 1)),),
        (("d", ("b", 0, 0)), ("d", ("c", 0, 0))),
        (("e", ("b", 1, 2)),),
    ]
    for names in (first, second):
        for edges in inside:
            target = names[edges[0][0]]
            assert gpu.nodes[target - 1][2] == tuple((names[source], *kind) for _, (source, *kind) in edges)
    assert gpu.nodes[first["a"] - 1][2] == ((99, 0, 0),)  # what the caller had captured before
    sinks = [(first["d"], 0, 0), (first["e"], 0, 0)]
    assert gpu.nodes[second["a"] - 1][2] == tuple(sinks)
    assert gpu.pending == [(second["d"], 0, 0), (second["e"], 0, 0)]  # before what the caller captures next
    assert {entry[0] for entry in gpu.issued()} == {"launch"}
    assert {entry[2] for entry in gpu.issued()} == {CALLER}
    assert all(not attributes for *_, attributes in gpu.nodes)


@pytest.mark.parametrize("before", [[], [(98, 1, 1), (99, 0, 0)]])
def test_several_roots_follow_one_node_in_a_capture(gpu, before):
    built = made(graph_of({"a": 0, "b": 1}, []))
    gpu.capturing, gpu.pending = True, before
    built.replay(CALLER)
    assert [(kind, inward) for kind, _, inward, _ in gpu.nodes] == [
        ("empty", tuple((node, 0, 0) for node, _, _ in before)),
        ("kernel", ((1, 0, 0),)),
        ("kernel", ((1, 0, 0),)),
    ]
    assert gpu.pending == [(2, 0, 0), (3, 0, 0)]


def test_priorities_and_clusters_are_captured(gpu):
    graph = with_priorities(graph_of({"a": 0, "b": 1}, [("a", "b", "programmatic")], cluster=2), {"b": 1})
    built = made(graph)
    gpu.capturing = True
    built.replay(CALLER)
    assert [set(attributes) for *_, attributes in gpu.nodes] == [
        {"CLUSTER_DIMENSION"},
        {"CLUSTER_DIMENSION", "PRIORITY"},
    ]


def test_a_live_replay_after_a_capture_uses_streams_again(gpu):
    built = made(FORK)
    built.replay(CALLER)
    live = gpu.issued()
    gpu.capturing = True
    built.replay(0x3000)
    gpu.capturing, gpu.log = False, []
    built.replay(CALLER)
    assert gpu.issued() == live


def test_captured_layers_are_one_graph_that_is_replayed(gpu):
    built = made(FORK, layers=3, kind=CapturedStreams)
    assert set(built.nodes) == {(layer, name) for layer in range(3) for name in "abcde"}
    assert gpu.flags == 8  # node priorities count
    built.replay(CALLER)
    assert gpu.issued()[-1][0] == "replay"
    built.close()
    built.close()
    assert gpu.alive == []


@pytest.mark.parametrize("time", [1, 2, 3])
@pytest.mark.parametrize(
    "call", ["cuModuleGetFunction", "cuFuncSetAttribute", "cuStreamCreate", "cuEventCreate", "cuLaunchKernelEx"]
)
def test_what_the_driver_refuses_leaves_nothing_behind(gpu, call, time):
    gpu.fails_at = (call, time)
    with pytest.raises(CandidateError, match=call):
        made(FORK, kind=CapturedStreams)
    assert gpu.alive == []
    assert not gpu.capturing


@pytest.mark.parametrize("time", [1, 3])
def test_after_a_capture_that_failed_the_next_one_holds_the_whole_plan(gpu, time):
    gpu.fails_at = ("cuLaunchKernelEx", time)
    with pytest.raises(CandidateError, match="cuLaunchKernelEx"):
        made(FORK, kind=CapturedStreams)
    assert gpu.asked["cuStreamEndCapture"] == 1
    gpu.fails_at, gpu.nodes, gpu.pending = ("", 0), [], []
    built = made(FORK, kind=CapturedStreams)
    assert set(built.nodes) == {(0, name) for name in "abcde"}
    assert [what for kind, what, *_ in gpu.nodes if kind == "kernel"] == list("abcde")
    built.close()
    assert gpu.alive == []


def test_a_graph_that_cannot_be_instantiated_leaves_nothing_behind(gpu):
    gpu.fails_at = ("cuGraphInstantiate", 1)
    with pytest.raises(CandidateError, match="cuGraphInstantiate"):
        made(FORK, kind=CapturedStreams)
    assert gpu.alive == []


def test_a_buffer_without_memory_is_named_and_nothing_is_left(gpu):
    with pytest.raises(InputError, match="'b' of layer 0"):
        Streams(FORK, compiled(FORK), Buffers(({"a": 4096},)))
    assert gpu.alive == []


def test_closing_frees_once(gpu):
    built = made(FORK)
    built.close()
    built.close()
    assert gpu.alive == []


def test_a_launch_that_fails_ends_the_replay_as_a_launch_error(monkeypatch):
    done = []

    class Bindings:
        def cuEventRecord(self, event):
            done.append(event)
            return (driver.CUresult.CUDA_SUCCESS,)

        def cuLaunchKernelEx(self):
            return (driver.CUresult.CUDA_ERROR_INVALID_VALUE,)

    monkeypatch.setattr(driver_calls, "driver", Bindings)
    with pytest.raises(CandidateError, match="cuLaunchKernelEx: invalid value") as caught:
        driver_calls.issue([("cuEventRecord", (1,)), ("cuLaunchKernelEx", ()), ("cuEventRecord", (2,))])
    assert caught.value.status == Status.LAUNCH_ERROR
    assert done == [1]


def test_a_plan_is_run_by_the_executor_it_names():
    assert set(captured.EXECUTABLES) == set(EXECUTORS)
    assert (captured.EXECUTABLES["cuda_graph"], captured.EXECUTABLES["streams"]) == (CudaGraph, CapturedStreams)
