"""A stored plan on the caller's own tensors, run on the caller's own stream.

    plan = load(hit, {"x": x, "residual": residual, …})
    plan.replay(torch.cuda.current_stream())
    plan.tensors["q_lora_q"]

`replay` launches a CUDA graph of the plan. `launch` issues the plan's kernels themselves, on the caller's stream and on
streams beside it that start and end with it; while the caller captures a graph (`torch.cuda.graph`) they become nodes
of that graph, with the plan's edges, once for each call.

One layer. Tensors are not copied: the graph reads and writes the memory that was given, so they must live as long as
the loaded plan; `rebind` changes them without building anything anew. Only what is missing is allocated here:
intermediates, outputs, workspaces and counters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias

from mktune.closing import Closing
from mktune.device import Device
from mktune.errors import InputError, PlanError, SetupError
from mktune.executors.buffers import Buffers
from mktune.executors.cuda_graph import CudaGraph, compiled_for
from mktune.executors.discovery import find_device
from mktune.executors.driver_calls import use_device
from mktune.executors.issue_order import Stricter
from mktune.executors.streams import Streams
from mktune.executors.torch_memory import allocate, dtypes, workspaces
from mktune.graph.opgraph import OpGraph
from mktune.graph.tensors import TensorSpec
from mktune.graph.workload import graph_of
from mktune.jit.build import build
from mktune.lowering.graph import lower
from mktune.lowering.kernel_graph import specs_of
from mktune.lowering.launches import placed_kernels
from mktune.plan import Plan
from mktune.runtime.result import Hit
from mktune.shape import Shape

if TYPE_CHECKING:
    import torch

    Tensors = Mapping[str, torch.Tensor]
    CudaDevice: TypeAlias = torch.device | str | int
    Stream: TypeAlias = int | torch.cuda.Stream

__all__ = ["LoadedPlan", "load"]

_GIVEN = ("arg", "weight", "cache")


class HasPlan(Protocol):
    """A look-up's hit, or a stored winner."""

    @property
    def plan(self) -> Plan: ...


class LoadedPlan(Closing):
    """See `load`. Used by one thread; a context manager."""

    def __init__(
        self, plan: Plan, shape: Shape, graph: OpGraph, tensors: dict[str, torch.Tensor], device: Device, index: int
    ) -> None:
        self.plan = plan
        self.shape = shape
        self.tensors = tensors
        self._graph, self._index = graph, index
        lowered = lower(plan, graph, shape, device, launches=True)
        specs = specs_of(lowered)
        kernels = compiled_for(specs, build(specs, device.arch, facts=False))
        use_device(index)
        self._workspaces = workspaces(plan, graph, shape, f"cuda:{index}")
        self._executable = CudaGraph(lowered, kernels, self._buffers())
        try:
            self._launches = Streams(lowered, kernels, self._buffers())
        except BaseException:
            self._executable.close()
            raise

    @property
    def stricter(self) -> tuple[Stricter, ...]:
        """Edges that `launch` orders more than the plan where no graph is being captured; see `Streams.stricter`."""
        return self._launches.stricter

    def replay(self, stream: Stream | None = None) -> None:
        """Run once on `stream` (a CUstream address or a torch stream; None: torch's current one). Asynchronous."""
        self._executable.replay(self._address(stream))

    def launch(self, stream: Stream | None = None) -> None:
        """As `replay`, by launches instead of a graph of its own; may be captured, any number of times.

        Allocates nothing and waits for nothing. What was captured keeps the tensors that were bound then, and lives as
        long as this plan does not close. Runs that are not ordered by the caller's streams would share workspaces.
        """
        self._launches.replay(self._address(stream))

    def rebind(self, tensors: Tensors) -> None:
        """Use these tensors instead from the next replay or launch on. None may be running.

        Raises InputError as `load` does; then nothing has changed.
        """
        check_tensors(self._graph, self.shape, tensors, self._index)
        self.tensors.update(tensors)
        self._executable.rebind(self._buffers())
        self._launches.rebind(self._buffers())

    def close(self) -> None:
        """Free what was built. May be called twice; nothing may be running, captured launches included."""
        self._launches.close()
        self._executable.close()

    def _address(self, stream: Stream | None) -> int:
        """The CUstream address of `stream`."""
        import torch

        if stream is None:
            stream = torch.cuda.current_stream(self._index)
        return stream if isinstance(stream, int) else int(stream.cuda_stream)

    def _buffers(self) -> Buffers:
        everything = {**self.tensors, **self._workspaces}
        return Buffers(({name: tensor.data_ptr() for name, tensor in everything.items()},))


def load(
    hit: Plan | HasPlan, tensors: Tensors, device: CudaDevice | None = None, *, shape: Shape | None = None
) -> LoadedPlan:
    """Build a plan over `tensors`, by name: arguments, weights and caches; outputs where the caller has a place.

    device is anything that torch takes for a CUDA device; None is torch's current one. shape is the step's own; None is
    what a hit was asked for, or else what the plan was tuned for. Raises InputError that names the tensor that is
    missing, unknown or does not fit; PlanError where the plan does not fit the shape or this GPU; SetupError without a
    GPU; CandidateError where the driver refuses it.
    """
    plan = hit if isinstance(hit, Plan) else hit.plan
    shape = shape or (hit.shape if isinstance(hit, Hit) else plan.shape)
    index = _index(device)
    try:
        found = find_device(index)
    except SetupError as error:
        raise SetupError(f"replaying needs a GPU: {error}") from None
    graph = graph_of(plan)
    check_plan(plan, graph, shape, found)
    missing = [name for name, spec in graph.tensors.items() if spec.kind in _GIVEN and name not in tensors]
    if missing:
        raise InputError(f"tensors are missing: {', '.join(missing)}")
    check_tensors(graph, shape, tensors, index)
    place = f"cuda:{index}"
    made = {name: allocate(spec, shape, place) for name, spec in graph.tensors.items() if name not in tensors}
    return LoadedPlan(plan, shape, graph, {**tensors, **made}, found, index)


def check_plan(plan: Plan, graph: OpGraph, shape: Shape, device: Device) -> None:
    """Raises PlanError where `shape` is outside the plan's range, or an op's config does not exist or fit `device`."""
    for what, value, (low, high) in (("M", shape.m, plan.m_range), ("KV", shape.kv, plan.kv_range)):
        if not low <= value <= high:
            raise PlanError(f"the plan serves {what} from {low} to {high}, not {value}")
    for name, call in graph.calls.items():
        op, config = call.op, plan.op[name]
        for violation in op.config_violations(config, shape, device) or op.launch_violations(
            config, placed_kernels(call, config, plan.kernel)
        ):
            raise PlanError(f"the plan does not fit {device.name}: {name}: {violation.message}")


def check_tensors(graph: OpGraph, shape: Shape, tensors: Tensors, index: int) -> None:
    """Raises InputError with the first tensor that is unknown or of another dtype, size, layout or device."""
    for name, tensor in tensors.items():
        if name not in graph.tensors:
            raise InputError(f"tensor {name!r} is not of {graph.name}: it has {', '.join(graph.tensors)}")
        if wrong := _differs(graph.tensors[name], shape, tensor, index):
            raise InputError(f"tensor {name!r} {wrong}")


def _differs(spec: TensorSpec, shape: Shape, tensor: torch.Tensor, index: int) -> str:
    """What is wrong with `tensor` in words, or nothing. A cache may have more pages than the shape asks for."""
    size, given = spec.size(shape), tuple(tensor.shape)
    fits = given == size or (spec.kind == "cache" and given[1:] == size[1:] and given[:1] >= size[:1])
    if tensor.dtype != (wanted := dtypes()[spec.dtype]):
        return f"is {tensor.dtype}, not {wanted}"
    if not fits:
        return f"is {list(given)}, not {list(size)}"
    if not tensor.is_contiguous():
        return "is not contiguous"
    if tensor.device.type != "cuda" or (tensor.device.index or 0) != index:
        return f"is on {tensor.device}, not on cuda:{index}"
    if tensor.data_ptr() % 16:
        return "does not start at a multiple of 16 bytes"
    return ""


def _index(device: CudaDevice | None) -> int:
    """The number of a CUDA device; 0 where torch sees none, so that asking the driver for it gives the reason."""
    import torch

    if isinstance(device, int):  # torch.device(0) raises where there is no GPU
        return device
    chosen = torch.device("cuda" if device is None else device)
    if chosen.type != "cuda":
        raise InputError(f"device {device!r} is not a CUDA device")
    if chosen.index is not None:
        return int(chosen.index)
    return int(torch.cuda.current_device()) if torch.cuda.is_available() else 0
