"""Device memory for the tensors and workspaces of a graph, owned by torch."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from mktune.graph.opgraph import OpGraph
from mktune.graph.tensors import TensorSpec
from mktune.plan import Plan
from mktune.shape import Shape

if TYPE_CHECKING:
    import torch


@cache
def dtypes() -> dict[str, torch.dtype]:
    """Dtype names of a graph → torch dtypes."""
    import torch

    return {
        "bf16": torch.bfloat16,
        "e4m3": torch.float8_e4m3fn,
        "f32": torch.float32,
        "i32": torch.int32,
        "i64": torch.int64,
        "u8": torch.uint8,
    }


def allocate(spec: TensorSpec, shape: Shape, device: str) -> torch.Tensor:
    """Uninitialised memory for one tensor."""
    import torch

    return torch.empty(spec.size(shape), dtype=dtypes()[spec.dtype], device=device)


def workspaces(plan: Plan, graph: OpGraph, shape: Shape, device: str, shift: int = 0) -> dict[str, torch.Tensor]:
    """Graph-wide name → bytes of every workspace of `plan`; counters are zero, the rest is uninitialised.

    Each begins `shift` bytes behind the beginning of its allocation.
    """
    import torch

    found = {}
    for name, call in graph.calls.items():
        for space in call.op.workspaces(plan.op[name], shape):
            make = torch.zeros if space.counter else torch.empty
            size = shift + max(16, space.bytes)
            found[call.buffer(space.port)] = make(size, dtype=torch.uint8, device=device)[shift:]
    return found


def counters(plan: Plan, graph: OpGraph, shape: Shape) -> tuple[str, ...]:
    """Graph-wide names of the counters of `plan`: zero before the first launch and again after every launch."""
    return tuple(
        call.buffer(space.port)
        for name, call in graph.calls.items()
        for space in call.op.workspaces(plan.op[name], shape)
        if space.counter
    )
