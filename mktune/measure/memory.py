"""Device memory of one problem: arguments once, weights and caches for every layer, results as a build needs them.

The timing build shares activations between its layers, as a model does. The verification build has the results of each
layer apart (a shared one would show the last layer only), working copies of the caches, and poison: 0xFF over every
result, workspace and cache row that a layer is about to write. Counters are never poisoned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mktune.device import Device
from mktune.executors.buffers import Buffers, Poison, Span, merge
from mktune.executors.torch_memory import allocate, counters, workspaces
from mktune.graph.opgraph import OpGraph
from mktune.ops.inputs import make_inputs
from mktune.plan import Plan
from mktune.shape import Shape

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]

MIN_LAYERS = 8
MAX_LAYERS = 640
MAX_CACHE_BYTES = 2 << 30
"""Beyond this, layers share one cache pool."""

VERIFIED_LAYERS = 2
"""Layers of the verification build: workspaces are shared, and a second layer meets what the first left in them."""


def layers_for(graph: OpGraph, shape: Shape, device: Device) -> int:
    """Layers that together read four times the L2, so that every weight comes from memory."""
    cold = max(1, sum(call.op.bytes_read(shape) for call in graph.calls.values()))
    return min(MAX_LAYERS, max(MIN_LAYERS, math.ceil(4 * device.l2_bytes / cold)))


def shares_kv(graph: OpGraph, shape: Shape, layers: int) -> bool:
    """Whether the cache pools of all layers would be too large, so that all layers use the pools of one."""
    return layers * sum(spec.nbytes(shape) for spec in graph.tensors.values() if spec.kind == "cache") > MAX_CACHE_BYTES


@dataclass
class Memory:
    """See the module. `bound[layer]` holds a layer's weights and caches; `results` are those of the timing build."""

    graph: OpGraph
    shape: Shape
    place: str
    args: Tensors
    bound: list[Tensors]
    results: Tensors
    shared_kv: bool

    @property
    def layers(self) -> int:
        return len(self.bound)

    def timing(self, plan: Plan, shift: int = 0) -> tuple[Buffers, Tensors]:
        """Addresses for the timing build of `plan`, and the workspaces that must live as long.

        Workspaces begin `shift` bytes (a multiple of 256) behind where they otherwise would.
        """
        spaces = workspaces(plan, self.graph, self.shape, self.place, shift)
        shared = {**self.args, **self.results, **spaces}
        return Buffers(tuple(addresses({**shared, **layer}) for layer in self.bound)), spaces

    def elsewhere(self, shift: Callable[[], int]) -> Memory:
        """The same weights and caches, with arguments and results of the timing build at addresses of their own.

        Each begins `shift()` bytes (a multiple of 256) behind where its allocation does.
        """
        args = {name: moved(tensor, shift()).copy_(tensor) for name, tensor in self.args.items()}
        results = {name: moved(tensor, shift()) for name, tensor in self.results.items()}
        return replace(self, args=args, results=results)

    def verification(self, layers: int = VERIFIED_LAYERS) -> Copies:
        """Results and working caches of the first `layers` layers, each with its own."""
        chosen = self.bound[: min(layers, self.layers)]
        made = [self._results() for _ in chosen]
        for layer, results in zip(chosen, made, strict=True):
            results.update((name, layer[name].clone()) for name in self._written_caches())
        return Copies(self, made)

    def _results(self) -> Tensors:
        return results_of(self.graph, self.shape, self.place)

    def _written_caches(self) -> list[str]:
        """A part of a graph may only read a cache: it needs no copy and gets no poison."""
        written = {name for call in self.graph.calls.values() for _, name in call.outputs}
        return [name for name, spec in self.graph.tensors.items() if spec.kind == "cache" and name in written]


@dataclass
class Copies:
    """The verification build's own tensors: `made[layer]` holds every tensor that the layer writes."""

    memory: Memory
    made: list[Tensors]

    def buffers(self, plan: Plan) -> tuple[Buffers, Poison, Tensors]:
        """Addresses, what to poison before each layer, and the workspaces that must live as long."""
        memory = self.memory
        spaces = workspaces(plan, memory.graph, memory.shape, memory.place)
        layers = [
            {**memory.args, **bound, **made, **spaces} for bound, made in zip(memory.bound, self.made, strict=False)
        ]
        keep = counters(plan, memory.graph, memory.shape)
        scratch = [span_of(tensor) for name, tensor in spaces.items() if name not in keep]
        poison = tuple(
            (*scratch, *(span for name in made for span in self.written(layer, name)))
            for layer, made in enumerate(self.made)
        )
        return Buffers(tuple(addresses(layer) for layer in layers)), Poison(poison), spaces

    def restore(self) -> None:
        """Put the caches back to what they were before any layer ran."""
        for bound, made in zip(self.memory.bound, self.made, strict=False):
            for name in made.keys() & bound.keys():
                made[name].copy_(bound[name])

    def inputs(self, layer: int, call: str) -> Tensors:
        """Port → tensor that `call` really read: what other ops of this layer wrote, all else as it was before.

        A cache is the one that another op has written where one has, else the one from before the layer.
        """
        memory = self.memory
        recorded = memory.graph.calls[call]
        produced = dict(recorded.sources)
        before = {**memory.args, **memory.bound[layer]}
        return {port: (self.made[layer] if name in produced else before)[name] for port, name in recorded.inputs}

    def outputs(self, layer: int, call: str) -> Tensors:
        """Port → tensor that `call` wrote."""
        return {port: self.made[layer][name] for port, name in self.memory.graph.calls[call].outputs}

    def seen(self, call: str) -> tuple[tuple[str, str], ...]:
        """(port, tensor) of all that may differ between runs: what `call` read of other ops, and what it wrote."""
        recorded = self.memory.graph.calls[call]
        produced = dict(recorded.sources)
        read = ((f"read {port}", name) for port, name in recorded.inputs if name in produced)
        return (*read, *recorded.outputs)

    def written(self, layer: int, name: str) -> list[Span]:
        """The bytes of the tensor `name` that `layer` writes: all of a result, and of a cache some rows."""
        tensor = self.made[layer][name]
        cached = self.memory.graph.tensors[name].kind == "cache"
        return list(merge(self._rows(name, tensor))) if cached else [span_of(tensor)]

    def _rows(self, name: str, cache: torch.Tensor) -> list[Span]:
        """The bytes of a cache that the calls that update it say they write."""
        args, spans = self.memory.args, []
        for call in self.memory.graph.calls.values():
            given = {port: args[tensor] for port, tensor in call.inputs if tensor in args}
            for port in (port for port, tensor in call.outputs if tensor == name):
                spans += [Span(cache.data_ptr() + first, size) for first, size in call.op.written(port, given)]
        return spans


def make_memory(graph: OpGraph, shape: Shape, layers: int, seed: int, place: str, ragged: bool = False) -> Memory:
    """Random inputs on the device `place`: weights and caches of each layer from a seed of its own.

    RoPE tables are the same in every layer of a model, and so are cache pools that would not fit otherwise.
    """
    shared_kv = shares_kv(graph, shape, layers)
    first = make_inputs(graph, shape, seed, place, ragged)
    kinds = {name: graph.tensors[name].kind for name in first}
    own = [name for name, kind in kinds.items() if kind == "weight" and not _is_table(graph, name)]
    own += [name for name, kind in kinds.items() if kind == "cache" and not shared_kv]
    shared = {name: value for name, value in first.items() if kinds[name] != "arg"}
    bound = [shared]
    for layer in range(1, layers):
        bound.append({**shared, **make_inputs(graph, shape, seed + layer, place, ragged, own)})
    args = {name: value for name, value in first.items() if kinds[name] == "arg"}
    return Memory(graph, shape, place, args, bound, results_of(graph, shape, place), shared_kv)


def _is_table(graph: OpGraph, name: str) -> bool:
    ports = [call.op.ports[port] for call in graph.calls.values() for port, tensor in call.inputs if tensor == name]
    return {port.fill for port in ports} <= {"cos", "sin"}


def results_of(graph: OpGraph, shape: Shape, place: str) -> Tensors:
    """Uninitialised memory for every intermediate and output of `graph`."""
    kinds = ("intermediate", "output")
    return {name: allocate(spec, shape, place) for name, spec in graph.tensors.items() if spec.kind in kinds}


def moved(tensor: torch.Tensor, shift: int) -> torch.Tensor:
    """Uninitialised memory for a contiguous tensor like `tensor`, `shift` bytes behind where its allocation begins."""
    import torch

    fresh = torch.empty(shift + tensor.nbytes, dtype=torch.uint8, device=tensor.device)
    return fresh[shift:].view(tensor.dtype).view(tensor.shape)


def addresses(tensors: Tensors) -> dict[str, int]:
    """Name → device address."""
    return {name: tensor.data_ptr() for name, tensor in tensors.items()}


def span_of(tensor: torch.Tensor) -> Span:
    """The bytes of a contiguous tensor."""
    return Span(tensor.data_ptr(), tensor.numel() * tensor.element_size())
