"""A lowered plan interpreted in torch: op references in the plan's order, on whatever device the tensors are.

Every op runs where its last kernel stands in the issue order, so a plan whose order does not respect its data flow
fails here too. Used without a GPU, and to say what the right answer is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mktune.access import FUSED
from mktune.errors import InputError, PlanError
from mktune.graph.opgraph import OpGraph
from mktune.lowering.kernel_graph import KernelGraph
from mktune.shape import Shape

if TYPE_CHECKING:
    import torch

    Tensors = Mapping[str, torch.Tensor]


def run_reference(
    lowered: KernelGraph, graph: OpGraph, shape: Shape, tensors: Tensors, layers: int = 1
) -> dict[str, torch.Tensor]:
    """Every tensor by name after `layers` runs one after the other; `tensors` (arguments, weights, caches) stay as
    they are. Caches that an op updates are new tensors.

    Raises InputError where a tensor is missing, PlanError where an op would run before what it reads is there.
    """
    missing = [
        name for name, spec in graph.tensors.items() if spec.kind in ("arg", "weight", "cache") and name not in tensors
    ]
    if missing:
        raise InputError(f"tensors are missing: {', '.join(missing)}")
    known = dict(tensors)
    for _ in range(layers):
        for name in op_order(lowered):
            call = graph.calls[name]
            inputs = {port: _value(known, tensor, name) for port, tensor in call.inputs}
            known.update((call.bindings[port], value) for port, value in call.op.reference(inputs, shape).items())
    return known


def op_order(lowered: KernelGraph) -> tuple[str, ...]:
    """Ops by the place of their last kernel in the issue order."""
    last = {op: place for place, kernel in enumerate(lowered.kernels) for op in kernel.op.split(FUSED)}
    return tuple(sorted(last, key=last.__getitem__))


def _value(known: Tensors, tensor: str, op: str) -> torch.Tensor:
    try:
        return known[tensor]
    except KeyError:
        raise PlanError(f"{op} runs before anything has made {tensor}") from None
