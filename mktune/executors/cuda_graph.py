"""A lowered plan as a CUDA graph, built node by node; a node is addressed by (layer, kernel name), never by position.

Shape of the graph, for L layers:

    root ─► [poison] ─► layer 0 ─► [poison] ─► layer 1 ─► …

Every sink of a layer has full edges to whatever starts the next one. The root is an empty node where a layer has
several roots (with several roots a join takes no early start, whatever its edges say). Inside a layer the edges are
those of the lowered graph: full, or programmatic from the port after the trigger (1) or at block start (2). Plan
priorities become node priorities; the graph is instantiated so that they count.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from mktune.errors import CandidateError
from mktune.executors.arguments import PackedArgs, Parameters
from mktune.executors.buffers import Buffers, Poison
from mktune.executors.driver_calls import call, driver
from mktune.executors.executable import Executable, NodeName
from mktune.executors.functions import Functions, Kernels, device_priority
from mktune.launch import CompiledKernel, KernelSpec
from mktune.lowering.kernel_graph import KernelGraph
from mktune.trial import Status

__all__ = ["CudaGraph", "Kernels", "NodeName", "compiled_for", "edge_data"]

_PORTS = {"programmatic": 1, "launch_order": 2}


class CudaGraph(Executable):
    """An executable graph of `len(buffers.layers)` layers. The caller's buffers must outlive it."""

    def __init__(self, graph: KernelGraph, kernels: Kernels, buffers: Buffers, poison: Poison | None = None) -> None:
        super().__init__()
        self.graph = graph
        self._launches = dict(graph.launches)
        self._args: dict[NodeName, PackedArgs] = {}
        self._parameters = {name: Parameters(launch.args) for name, launch in self._launches.items()}
        self._functions = Functions(self._launches, kernels)
        try:
            self._kernel_params = {name: self._node_params(name) for name in self._launches}
            self._kernel_attributes = {name: self._attributes(name) for name in self._launches}
            self._handle = call("cuGraphCreate", 0)
            self._add_layers(buffers, poison or Poison())
            self._instantiate()
        except BaseException:
            self.close()
            raise

    def rebind(self, buffers: Buffers) -> None:
        """Use other addresses from the next replay on; nothing is rebuilt. No replay may be running."""
        for (layer, name), node in self.nodes.items():
            call("cuGraphExecKernelNodeSetParams", self._executable, node, self._params(layer, name, buffers))

    def symbol(self, kernel: str, name: str) -> tuple[int, int]:
        """Address and bytes of the `__device__` variable `name` in the module of `kernel`."""
        address, size = call("cuModuleGetGlobal", self._functions[kernel].module, name.encode())
        return int(address), int(size)

    def _release(self) -> None:
        self._functions.close()
        self._args.clear()

    def _add_layers(self, buffers: Buffers, poison: Poison) -> None:
        before: list[Any] = []
        if len(self.graph.roots) > 1 or len(poison.of(0)) > 1:
            before = [call("cuGraphAddEmptyNode", self._handle, [], 0)]
        for layer in range(len(buffers.layers)):
            before = self._add_poison(before, poison, layer)
            for kernel in self.graph.kernels:
                self.nodes[layer, kernel.name] = self._add_kernel(layer, kernel.name, buffers)
            self._add_edges(layer)
            starts = [self.nodes[layer, name] for name in self.graph.roots]
            self._join(before, starts)
            before = [self.nodes[layer, name] for name in self.graph.sinks]

    def _add_poison(self, before: list[Any], poison: Poison, layer: int) -> list[Any]:
        """Memset nodes after `before`; what the layer's roots must wait for."""
        nodes = []
        for span in poison.of(layer):
            params = driver().CUDA_MEMSET_NODE_PARAMS()
            params.dst, params.value, params.elementSize = span.address, 0xFF, 1
            params.width, params.height, params.pitch = span.bytes, 1, span.bytes
            context = call("cuCtxGetCurrent")
            nodes.append(call("cuGraphAddMemsetNode", self._handle, before, len(before), params, context))
        return nodes or before

    def _add_kernel(self, layer: int, name: str, buffers: Buffers) -> Any:
        node = call("cuGraphAddKernelNode", self._handle, [], 0, self._params(layer, name, buffers))
        for attribute, value in self._kernel_attributes[name]:
            call("cuGraphKernelNodeSetAttribute", node, attribute, value)
        return node

    def _attributes(self, name: str) -> list[tuple[Any, Any]]:
        ids, made = driver().CUlaunchAttributeID, driver().CUkernelNodeAttrValue
        found = []
        if priority := dict(self.graph.priorities).get(name, 0):
            value = made()
            value.priority = device_priority(priority)
            found.append((ids.CU_LAUNCH_ATTRIBUTE_PRIORITY, value))
        if (cluster := self._launches[name].cluster) > 1:
            value = made()
            value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = cluster, 1, 1
            found.append((ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value))
        return found

    def _node_params(self, name: str) -> Any:
        """How a kernel is launched, but for its parameters, which differ between layers."""
        launch = self._launches[name]
        params = driver().CUDA_KERNEL_NODE_PARAMS()
        params.func = self._functions[name].handle
        params.gridDimX, params.gridDimY, params.gridDimZ = launch.grid
        params.blockDimX, params.blockDimY, params.blockDimZ = launch.block, 1, 1
        params.sharedMemBytes, params.extra = launch.smem, 0
        return params

    def _params(self, layer: int, name: str, buffers: Buffers) -> Any:
        """Valid until the next call for this kernel: the driver copies the values."""
        packed = self._parameters[name].pack(lambda buffer: buffers.address(layer, buffer))
        self._args[layer, name] = packed  # must outlive the call
        params = self._kernel_params[name]
        params.kernelParams = packed.address
        return params

    def _add_edges(self, layer: int) -> None:
        for kind in dict.fromkeys(edge.kind for edge in self.graph.edges):
            edges = [edge for edge in self.graph.edges if edge.kind == kind]
            self._connect([(self.nodes[layer, edge.source], self.nodes[layer, edge.target]) for edge in edges], kind)

    def _join(self, before: list[Any], after: list[Any]) -> None:
        self._connect([(source, target) for source in before for target in after], "full")

    def _connect(self, pairs: list[tuple[Any, Any]], kind: str) -> None:
        """Edges of one kind: with several kinds in one call, edges were seen to get each other's data (driver 580)."""
        if pairs:
            sources, targets = (list(side) for side in zip(*pairs, strict=True))
            data = [edge_data(kind)] * len(pairs)
            call("cuGraphAddDependencies", self._handle, sources, targets, data, len(pairs))


@cache
def edge_data(kind: str) -> Any:
    """An edge kind of a lowered graph as the driver's CUgraphEdgeData."""
    data = driver().CUgraphEdgeData()
    if kind in _PORTS:
        data.type = driver().CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
        data.from_port = _PORTS[kind]
    return data


def compiled_for(specs: Sequence[KernelSpec], compiled: Sequence[CompiledKernel]) -> dict[KernelSpec, CompiledKernel]:
    """Compiled kernels by spec. Raises CandidateError where one of `specs` is missing."""
    found = {kernel.spec: kernel for kernel in compiled}
    for spec in specs:
        if spec not in found:
            raise CandidateError(Status.BUILD_ERROR, f"{spec.name_expression} was not compiled")
    return found
