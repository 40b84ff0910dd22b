"""A lowered plan as launches on streams, in the plan's order: the same kernels and edges as `cuda_graph`, no graph.

Live, `issue_order` decides: stream 0 of the plan is the caller's stream, every other one is a stream of this object
that starts by an event of the first kernels and that the caller's stream waits for at the end. Full edges are stream
order or events recorded behind a kernel; programmatic ones are programmatic stream serialization or programmatic
events; launch_order ones are programmatic events at block start; priorities are launch attributes. CUDA cannot say
everything so, and then orders more than the plan does (`stricter` lists those edges):

- a launch records one programmatic event: a producer with programmatic and launch_order edges to other streams signals
  by its trigger only
- a kernel that may start early behind the one before it in its stream may start before those before that one have
  ended: where it has an edge that needs them, it follows by stream order, as over a full edge
- an event may be seen later than it is recorded, and a start may be no earlier than over a full edge

While the caller's stream is being captured there are no streams to order by, only edges: each launch is captured with
exactly the edges of the plan (the capture's dependencies are set before it), so the captured graph has the same nodes,
edge types, ports and priorities as the one that `cuda_graph` builds, and nothing falls back. What the stream held
before comes before every root, every sink before what follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mktune.closing import Closing
from mktune.executors.arguments import PackedArgs, pack
from mktune.executors.buffers import Buffers, Poison
from mktune.executors.cuda_graph import NodeName, edge_data
from mktune.executors.driver_calls import call, issue
from mktune.executors.functions import Functions, Kernels
from mktune.executors.issue_order import CALLERS_LANE, Step, Stricter, issue_order
from mktune.executors.launch_config import launch_config, programmatic_event, serialization
from mktune.launch import Launch
from mktune.lowering.kernel_graph import KernelGraph

_NON_BLOCKING = 1
_WITHOUT_TIMING = 2
_SET_DEPENDENCIES = 1
_POISON = 0xFF

Call = tuple[str, tuple[Any, ...]]
"""A driver function and its arguments."""


@dataclass(frozen=True)
class _Events:
    """Events that one kernel records: by its own trigger or block start, and behind it."""

    signal: Any
    end: Any


class Streams(Closing):
    """Launches of `len(buffers.layers)` layers, one after the other.

    Raises CandidateError (build_error) for what the driver refuses. `replay` allocates nothing and waits for nothing;
    it may raise launch_error. The caller's buffers must outlive it and what was captured of it. Used by one thread;
    replays on different streams are not ordered, and work on the same workspaces.
    """

    def __init__(self, graph: KernelGraph, kernels: Kernels, buffers: Buffers, poison: Poison | None = None) -> None:
        self.graph = graph
        self.order = issue_order(graph)
        self._launches = dict(graph.launches)
        self._poison = poison or Poison()
        self._lanes: list[Any] = []
        self._created: list[Any] = []
        self._stream: int | None = None
        self._functions = Functions(self._launches, kernels)
        try:
            self._make_streams_and_events()
            self._captured = {step.kernel: self._config(step, []) for step in self.order.steps}
            self._live = {step.kernel: self._config(step, self._early(step)) for step in self.order.steps}
            self._inward = self._dependencies()
            self.rebind(buffers)
        except BaseException:
            self.close()
            raise

    @property
    def stricter(self) -> tuple[Stricter, ...]:
        """Edges that live launches order more than the plan: (producer, consumer, planned kind, kind as issued)."""
        return self.order.stricter

    def replay(self, stream: int) -> None:
        """Issue all layers on `stream` (a CUstream address); where it is being captured, into the caller's graph."""
        if int(call("cuStreamIsCapturing", stream)):
            self.capture(stream)
            return
        if stream != self._stream:
            self._prepare(stream)
        issue(self._calls)

    def capture(self, stream: int) -> dict[NodeName, Any]:
        """As `replay` on a stream that is being captured; the nodes that were made, by layer and kernel."""
        for config in self._captured.values():
            config.hStream = stream
        nodes: dict[NodeName, Any] = {}
        for layer in range(len(self._args)):
            for span in self._poison.of(layer):
                call("cuMemsetD8Async", span.address, _POISON, span.bytes, stream)
            self._capture_layer(stream, layer, nodes)
        return nodes

    def rebind(self, buffers: Buffers) -> None:
        """Use other addresses from the next replay on; what was captured keeps those it had. Nothing may be running."""
        self._args: list[dict[str, PackedArgs]] = [
            {name: self._packed(launch, buffers, layer) for name, launch in self._launches.items()}
            for layer in range(len(buffers.layers))
        ]
        self._stream, self._calls = None, list[Call]()

    def close(self) -> None:
        """Free streams, events and modules. May be called twice; nothing may be running."""
        for event in self._created:
            call("cuEventDestroy", event)
        for lane in self._lanes:
            call("cuStreamDestroy", lane)
        self._created.clear()
        self._lanes.clear()
        self._functions.close()

    def _make_streams_and_events(self) -> None:
        for _ in range(self.order.lanes - 1):
            self._lanes.append(call("cuStreamCreate", _NON_BLOCKING))
        self._fork = self._event(self.order.forks)
        self._events = {
            step.kernel: _Events(self._event(bool(step.signals)), self._event(step.records))
            for step in self.order.steps
        }

    def _event(self, wanted: bool) -> Any:
        if not wanted:
            return None
        self._created.append(call("cuEventCreate", _WITHOUT_TIMING))
        return self._created[-1]

    def _config(self, step: Step, early: list[Any]) -> Any:
        """How a kernel is launched, but for the stream where that is the caller's."""
        config = launch_config(self._launches[step.kernel], dict(self.graph.priorities).get(step.kernel, 0), early)
        if step.lane != CALLERS_LANE:
            config.hStream = self._lanes[step.lane - 1]
        return config

    def _early(self, step: Step) -> list[Any]:
        """Attributes by which this launch, or those that wait for it, may start early."""
        found = [serialization()] if step.serialized else []
        if step.signals:
            found.append(programmatic_event(self._events[step.kernel].signal, step.signals == "launch_order"))
        return found

    def _prepare(self, stream: int) -> None:
        """The calls of all layers with the caller's stream filled in."""
        for step in self.order.steps:
            if step.lane == CALLERS_LANE:
                self._live[step.kernel].hStream = stream
        self._calls = [made for layer in range(len(self._args)) for made in self._layer_calls(layer, stream)]
        self._stream = stream

    def _layer_calls(self, layer: int, stream: int) -> list[Call]:
        calls: list[Call] = [
            ("cuMemsetD8Async", (span.address, _POISON, span.bytes, stream)) for span in self._poison.of(layer)
        ]
        if self._fork is not None:
            calls.append(("cuEventRecord", (self._fork, stream)))
        for step in self.order.steps:
            lane = stream if step.lane == CALLERS_LANE else self._lanes[step.lane - 1]
            if step.forks:
                calls.append(("cuStreamWaitEvent", (lane, self._fork, 0)))
            for producer, kind in step.waits:
                events = self._events[producer]
                calls.append(("cuStreamWaitEvent", (lane, events.end if kind == "full" else events.signal, 0)))
            calls.append(("cuLaunchKernelEx", self._launch(self._live, layer, step.kernel)))
            if step.records:
                calls.append(("cuEventRecord", (self._events[step.kernel].end, lane)))
        return calls + [("cuStreamWaitEvent", (stream, self._events[name].end, 0)) for name in self.order.joins]

    def _launch(self, configs: dict[str, Any], layer: int, kernel: str) -> tuple[Any, ...]:
        return configs[kernel], self._functions[kernel].handle, self._args[layer][kernel].address, 0

    def _capture_layer(self, stream: int, layer: int, nodes: dict[NodeName, Any]) -> None:
        start = self._start(stream)
        for kernel in self.graph.kernels:
            name = kernel.name
            sources, kinds = self._inward[name]
            if sources:
                _set_dependencies(stream, [nodes[layer, source] for source in sources], kinds)
            elif start is not None:
                _set_dependencies(stream, [start], [edge_data("full")])
            call("cuLaunchKernelEx", *self._launch(self._captured, layer, name))
            (nodes[layer, name],) = _dependencies_of(stream)[1]
        sinks = [nodes[layer, name] for name in self.graph.sinks]
        _set_dependencies(stream, sinks, [edge_data("full") for _ in sinks])

    def _start(self, stream: int) -> Any:
        """A node behind what the stream holds, where a layer has several roots: each of them, and no other, follows it.

        With several roots in a graph a join would take no early start, whatever its edges say.
        """
        if len(self.graph.roots) < 2:
            return None
        graph, before = _dependencies_of(stream)
        return call("cuGraphAddEmptyNode", graph, before, len(before))

    def _dependencies(self) -> dict[str, tuple[list[str], list[Any]]]:
        """Kernel → its producers in a layer and the edges' data."""
        inward: dict[str, tuple[list[str], list[Any]]] = {kernel.name: ([], []) for kernel in self.graph.kernels}
        for edge in self.graph.edges:
            sources, kinds = inward[edge.target]
            sources.append(edge.source)
            kinds.append(edge_data(edge.kind))
        return inward

    def _packed(self, launch: Launch, buffers: Buffers, layer: int) -> PackedArgs:
        return pack(launch.args, lambda buffer: buffers.address(layer, buffer))


def _dependencies_of(stream: int) -> tuple[Any, list[Any]]:
    """The graph that `stream` is captured into, and what the next node captured on it would follow."""
    _, _, graph, nodes, _, count = call("cuStreamGetCaptureInfo", stream)
    return graph, list(nodes[:count])


def _set_dependencies(stream: int, nodes: list[Any], data: list[Any]) -> None:
    call("cuStreamUpdateCaptureDependencies", stream, nodes, data, len(nodes), _SET_DEPENDENCIES)
