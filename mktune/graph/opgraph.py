"""A graph of ops, recorded by calls: which op makes which tensor and who uses it.

    graph = OpGraph("example")
    x = graph.runtime_arg("x", "bf16", ("m", 6144))
    w = graph.bound_weight("norm_w", "bf16", (6144,))
    made = graph.call("A0", AddRmsnormQuant(), x=x, residual=r, norm_w=w)
    graph.set_outputs(made["h_q"], made["h_s"])

A call can only use tensors that exist, so a graph has no cycle. A port that is input and output of an op is updated
in place: the tensor keeps its name, and later calls that use it depend on the op that updated it last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from mktune.access import FUSED, Access, KernelFacts
from mktune.errors import InputError
from mktune.graph.tensors import KV_SYMBOLS, Dims, TensorSpec
from mktune.plan import KernelPlan, OpPlan
from mktune.shape import MAX_KV, Shape

if TYPE_CHECKING:
    from mktune.ops.base import Op

_MAX_CACHED_FACTS = 4096


@dataclass(frozen=True, eq=False)
class Call:
    """One op called under a name: ports bound to tensors of the graph. `sources`: input tensor → call that made it."""

    name: str
    op: Op
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    sources: tuple[tuple[str, str], ...]
    _facts: dict[int, tuple[KernelFacts, KernelFacts]] = field(default_factory=dict, repr=False)

    @cached_property
    def bindings(self) -> dict[str, str]:
        """Port → tensor name, inputs and outputs."""
        return dict(self.inputs) | dict(self.outputs)

    def buffer(self, port: str) -> str:
        """The graph-wide name of a port, workspace or counter: "h_q", "B0.partials"."""
        return self.bindings.get(port) or f"{self.name}.{port}"

    def kernel_names(self, plan: OpPlan) -> tuple[str, ...]:
        """The kernels of this call under `plan`, in issue order: ("B0p", "B0f")."""
        return tuple(self.name + suffix for suffix in self.op.kernels(plan))

    def default_kernels(self, plan: OpPlan) -> tuple[KernelPlan, ...]:
        """The plainest placement: one stream, wait at entry and trigger at exit where the kernels know that."""
        return tuple(self.op.plainest(plan, suffix) for suffix in self.op.kernels(plan))

    def facts(self, plan: OpPlan, kernels: tuple[KernelPlan, ...]) -> tuple[KernelFacts, ...]:
        """The op's facts with graph-wide kernel and buffer names. `kernels` in the order of `kernel_names`."""
        local = self.op.facts(plan, kernels)
        return tuple([(self._facts.get(id(kernel)) or self._rename(kernel))[1] for kernel in local])

    def _rename(self, kernel: KernelFacts) -> tuple[KernelFacts, KernelFacts]:
        if len(self._facts) >= _MAX_CACHED_FACTS:
            self._facts.clear()
        accesses = tuple([Access(self.buffer(a.buffer), a.writes, a.after_wait) for a in kernel.accesses])
        renamed = replace(kernel, name=self.name + kernel.name, op=self.name, accesses=accesses)
        # The local facts are kept beside the answer, so that their id stays theirs.
        known = self._facts[id(kernel)] = (kernel, renamed)
        return known


class OpGraph:
    """See the module. Calls and tensors keep the order in which they were recorded."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tensors: dict[str, TensorSpec] = {}
        self.calls: dict[str, Call] = {}
        self.outputs: tuple[str, ...] = ()
        self._writers: dict[str, str] = {}
        self._subgraphs: dict[frozenset[str], OpGraph] = {}
        self.edge_cache: dict[tuple[int, ...], tuple[object, tuple[tuple[str, str], ...]]] = {}

    def runtime_arg(self, name: str, dtype: str, dims: Dims) -> TensorSpec:
        """A tensor that the caller gives for each run."""
        return self._add(TensorSpec(name, dtype, dims, "arg"))

    def bound_weight(self, name: str, dtype: str, dims: Dims) -> TensorSpec:
        """A tensor that is bound once and constant while the graph runs."""
        return self._add(TensorSpec(name, dtype, dims, "weight"))

    def cache(self, name: str, dtype: str, dims: Dims) -> TensorSpec:
        """State that lives across runs and that ops update in place."""
        return self._add(TensorSpec(name, dtype, dims, "cache"))

    def call(
        self, call: str, op: Op, names: Mapping[str, str] | None = None, /, **ports: TensorSpec
    ) -> dict[str, TensorSpec]:
        """Record `op` under the name `call` and return its outputs by port.

        `names` gives output ports another tensor name than their own. Raises InputError for a name that is taken, a
        port that is missing, unknown or bound to a tensor of another graph, dtype or shape.
        """
        self._check_call(call, op, ports)
        inputs = tuple((port, ports[port].name) for port in op.inputs)
        sources = tuple((name, self._writers[name]) for _, name in inputs if name in self._writers)
        outputs = []
        for port in op.outputs:
            spec = op.ports[port]
            if port in ports:
                outputs.append((port, ports[port].name))
                continue
            made = TensorSpec((names or {}).get(port, port), spec.dtype, spec.dims, "intermediate")
            outputs.append((port, self._add(made).name))
        self._writers.update((name, call) for _, name in outputs)
        self.calls[call] = Call(call, op, inputs, tuple(outputs), sources)
        return {port: self.tensors[name] for port, name in outputs}

    def set_outputs(self, *tensors: TensorSpec) -> None:
        """Declare what the caller gets. Raises InputError for a tensor that no op of this graph makes."""
        for tensor in tensors:
            if tensor.name not in self._writers:
                raise InputError(f"graph {self.name}: {tensor.name} cannot be an output: no op makes it")
            if tensor.kind == "intermediate":
                self.tensors[tensor.name] = replace(tensor, kind="output")
        self.outputs = tuple(tensor.name for tensor in tensors)

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """Def-use edges between calls, (producer, consumer), each once, in call order of the consumer."""
        found = {(source, call.name): None for call in self.calls.values() for _, source in call.sources}
        return tuple(found)

    @cached_property
    def uses_kv(self) -> bool:
        """Whether any tensor's size depends on the context capacity. For graphs that are recorded whole."""
        return any(dim in KV_SYMBOLS for tensor in self.tensors.values() for dim in tensor.dims)

    def served_kv(self, shape: Shape) -> tuple[int, int]:
        """The capacities that a plan tuned at `shape` claims to serve: all of them where none makes a difference."""
        return shape.served_kv if self.uses_kv else (shape.tokens_per_request, MAX_KV)

    def subgraph(self, ops: Sequence[str]) -> OpGraph:
        """The part of this graph that `ops` make; what they lack becomes runtime arguments.

        Its outputs are the tensors made by `ops` that the whole graph returns or that nobody inside uses. Raises
        InputError for an empty, unknown or unconnected set. The same set gives the same object.
        """
        chosen = frozenset(ops)
        unknown = [name for name in ops if name not in self.calls]
        if unknown or not chosen:
            what = f"unknown op {', '.join(map(repr, unknown))}" if unknown else "no op was chosen"
            raise InputError(f"{what}; ops of {self.name}: {', '.join(self.calls)}")
        if chosen == self.calls.keys():
            return self
        if chosen not in self._subgraphs:
            self._check_connected(chosen)
            self._subgraphs[chosen] = self._extract(chosen)
        return self._subgraphs[chosen]

    def _add(self, tensor: TensorSpec) -> TensorSpec:
        if tensor.name in self.tensors:
            raise InputError(f"graph {self.name}: there are two tensors {tensor.name!r}")
        self.tensors[tensor.name] = tensor
        return tensor

    def _check_call(self, call: str, op: Op, ports: Mapping[str, TensorSpec]) -> None:
        where = f"graph {self.name}: {call}"
        if call in self.calls:
            raise InputError(f"{where} is called twice; give each call its own name")
        if not call.isidentifier():
            raise InputError(f"{where}: a call's name is letters, digits and _; {FUSED!r} and others join names")
        missing = [port for port in op.inputs if port not in ports]
        unknown = [port for port in ports if port not in op.inputs]
        if missing or unknown:
            problem = f"unbound {', '.join(missing)}" if missing else f"no port {', '.join(unknown)}"
            raise InputError(f"{where}: {problem}; ports of {op.title}: {', '.join(op.inputs)}")
        for port, tensor in ports.items():
            known = self.tensors.get(tensor.name)
            if known is None or known.port != tensor.port:
                raise InputError(f"{where}: {port} is bound to {tensor.name!r}, which this graph has not made before")
            if tensor.port != op.ports[port]:
                raise InputError(f"{where}: {port} must be {op.ports[port]}, but {tensor.name} is {tensor.port}")

    def _check_connected(self, chosen: frozenset[str]) -> None:
        order = [name for name in self.calls if name in chosen]
        reached, grown = {order[0]}, True
        while grown:
            near = {pair for pair in self.edges if chosen.issuperset(pair) and len(reached.intersection(pair)) == 1}
            grown = bool(near)
            reached.update(name for pair in near for name in pair)
        if reached != chosen:
            apart = ", ".join(name for name in order if name not in reached)
            edges = ", ".join("→".join(edge) for edge in self.edges)
            raise InputError(f"ops are not connected: no edge leads from {order[0]} to {apart}; edges: {edges}")

    def _extract(self, chosen: frozenset[str]) -> OpGraph:
        part = OpGraph(self.name)
        for name, call in self.calls.items():
            if name not in chosen:
                continue
            bound = {}
            for port, tensor in call.inputs:
                if tensor not in part.tensors:
                    kind = self.tensors[tensor].kind
                    part._add(replace(self.tensors[tensor], kind="arg" if kind in ("intermediate", "output") else kind))
                bound[port] = part.tensors[tensor]
            part.call(name, call.op, dict(call.outputs), **bound)
        used = {tensor for call in part.calls.values() for tensor, _ in call.sources}
        kept = [name for name in self.tensors if name in part._writers and (name in self.outputs or name not in used)]
        part.set_outputs(*(part.tensors[name] for name in kept))
        return part
