"""Does a token keep its bits from run to run, and whatever other requests stand beside it in the batch?

Kernels whose sums are added in the order in which CTAs happen to arrive give other bits in every run; kernels that
share work between rows may give a row other bits beside other rows. Both may be within tolerance, and both are what
people mean who ask for reproducible serving: they are found at validation and stored with a winner.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mktune.executors.cuda_graph import Kernels
from mktune.graph.tensors import Dims
from mktune.lowering.kernel_graph import KernelGraph
from mktune.measure.correctness import Checked
from mktune.measure.memory import Copies
from mktune.plan import Plan
from mktune.trial import BATCH_INVARIANT, DETERMINISTIC, NO, YES

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]

ONE_REQUEST = "one request: nothing stands beside it"
_ROWS = ("m", "m4")
_VALUES = ("bf16", "e4m3", "f32")


@dataclass(frozen=True)
class Repeatability:
    """What validation found, each "yes", or "no" and why, or why it was not asked."""

    deterministic: str
    batch_invariant: str

    def to_dict(self) -> dict[str, str]:
        return {DETERMINISTIC: self.deterministic, BATCH_INVARIANT: self.batch_invariant}


def repeatability(
    plan: Plan, lowered: KernelGraph, kernels: Kernels, copies: Copies, replays: int, unequal: int
) -> Repeatability:
    """Of a plan of which `unequal` of `replays` runs gave other bits. Runs it twice more, beside other requests."""
    stable = YES if unequal == 0 else f"{NO}{unequal} of {replays} replays differ in bits within tolerance"
    if copies.memory.shape.requests == 1:
        return Repeatability(stable, ONE_REQUEST)
    changed = beside_others(plan, lowered, kernels, copies)
    return Repeatability(stable, f"{NO}{', '.join(changed)} of the first request" if changed else YES)


def beside_others(plan: Plan, lowered: KernelGraph, kernels: Kernels, copies: Copies) -> list[str]:
    """Names of what the first request gets other bits of once other data stand in the rows of the others."""
    checked = Checked(plan, lowered, kernels, copies)
    try:
        checked.replay()
        before = [first_request(copies, layer) for layer in range(len(copies.made))]
        copies.restore()
        with others_changed(copies):
            checked.replay()
        after = [first_request(copies, layer) for layer in range(len(copies.made))]
        copies.restore()
    finally:
        checked.close()
    differ = {name for old, new in zip(before, after, strict=True) for name in old if not old[name].equal(new[name])}
    return sorted(differ)


@contextmanager
def others_changed(copies: Copies) -> Iterator[None]:
    """Every row of the other requests has the data of the first request's first row; places and lengths stay."""
    graph, shape, args = copies.memory.graph, copies.memory.shape, copies.memory.args
    chosen = {name: axis for name in args if (axis := _axis(graph.tensors[name].dims)) is not None}
    chosen = {name: axis for name, axis in chosen.items() if graph.tensors[name].dtype in _VALUES}
    kept = {name: args[name].clone() for name in chosen}
    own = shape.tokens_per_request
    try:
        for name, axis in chosen.items():
            rows = _bytes(args[name]).narrow(axis, own, shape.m - own)
            rows.copy_(_bytes(kept[name]).narrow(axis, 0, 1).expand_as(rows))
        yield
    finally:
        for name, value in kept.items():
            _bytes(args[name]).copy_(_bytes(value))


def first_request(copies: Copies, layer: int) -> Tensors:
    """A copy of what the layer wrote for the first request: its rows of each result, its slots of each cache."""
    import torch

    graph, shape, made = copies.memory.graph, copies.memory.shape, copies.made[layer]
    found: Tensors = {}
    for call in graph.calls.values():
        given = {port: _own_rows(copies, tensor) for port, tensor in call.inputs if tensor in copies.memory.args}
        for port, name in call.outputs:
            axis = _axis(graph.tensors[name].dims)
            if axis is not None:
                found[name] = _bytes(made[name]).narrow(axis, 0, shape.tokens_per_request).clone()
            elif spans := call.op.written(port, given):
                flat = made[name].view(-1).view(torch.uint8)
                found[name] = torch.cat([flat[first : first + size] for first, size in spans])
    return found


def _own_rows(copies: Copies, name: str) -> torch.Tensor:
    """The first request's rows of an argument; all of one that has no rows."""
    axis, value = _axis(copies.memory.graph.tensors[name].dims), copies.memory.args[name]
    return value if axis is None else value.narrow(axis, 0, copies.memory.shape.tokens_per_request)


def _axis(dims: Dims) -> int | None:
    """Which dimension counts the rows; None where none does."""
    return next((place for place, dim in enumerate(dims) if dim in _ROWS), None)


def _bytes(value: torch.Tensor) -> torch.Tensor:
    """The same memory as whole numbers: NaNs of the same bits are equal, and float8 can be copied and compared."""
    import torch

    return value.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[value.element_size()])
