"""Tensors of a graph: names, dtypes and shapes that depend on the problem's `Shape`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mktune.shape import Shape

if TYPE_CHECKING:
    import torch

PAGE = 64
"""Tokens of one cache page."""

Fill = Callable[[Shape, "torch.Generator"], "torch.Tensor"]
"""Draws a tensor of one's own kind: for a shape, from a generator and on its device."""

Dim = int | str
Dims = tuple[Dim, ...]

KINDS = ("arg", "weight", "cache", "intermediate", "output")

DTYPE_BYTES = {"bf16": 2, "e4m3": 1, "f32": 4, "i32": 4, "i64": 8, "u8": 1}
"""Element sizes of every dtype name that a tensor may have."""


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple


def pages_per_request(shape: Shape) -> int:
    """Pages that hold `kv` tokens."""
    return -(-shape.kv // PAGE)


SYMBOLS: dict[str, Callable[[Shape], int]] = {
    "m": lambda shape: shape.m,
    "m4": lambda shape: round_up(shape.m, 4),
    "requests": lambda shape: shape.requests,
    "kv": lambda shape: shape.kv,
    "kv256": lambda shape: round_up(shape.kv, 256),
    "blocks": pages_per_request,
    "pages": lambda shape: shape.requests * pages_per_request(shape),
}
"""Dimensions that a shape decides: rows, rows padded to 4 (scale columns), requests, cached tokens, tokens padded to
256 (stride of a row of logits), block-table columns, pages of the pool."""


KV_SYMBOLS = frozenset({"kv", "kv256", "blocks", "pages"})
"""Those that depend on the context capacity."""


def size_of(dims: Dims, shape: Shape) -> tuple[int, ...]:
    """The dimensions as numbers."""
    return tuple(dim if isinstance(dim, int) else SYMBOLS[dim](shape) for dim in dims)


@dataclass(frozen=True)
class Port:
    """What an op wants or makes at one of its ports.

    dims         numbers and names of `SYMBOLS`, outermost first
    fill, scale  how an input is drawn where nothing gives it: a kind of values that `mktune.ops.inputs` knows, or a
                 function that draws them, and their size
    """

    dtype: str
    dims: Dims
    fill: str | Fill = field(default="normal", compare=False)
    scale: float = field(default=1.0, compare=False)

    def __post_init__(self) -> None:
        assert self.dtype in DTYPE_BYTES, self.dtype
        assert all(isinstance(dim, int) or dim in SYMBOLS for dim in self.dims), self.dims

    def size(self, shape: Shape) -> tuple[int, ...]:
        """Dimensions in elements, outermost first."""
        return size_of(self.dims, shape)

    def nbytes(self, shape: Shape) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.size(shape)) * DTYPE_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.dims))}]"


@dataclass(frozen=True)
class TensorSpec:
    """A named tensor of a graph.

    kind   arg           given anew for each run (activations, positions, slots, block table, lengths)
           weight        bound once and constant while the graph runs
           cache         lives across runs and is updated in place
           intermediate  made and used inside the graph
           output        made by the graph for its caller
    """

    name: str
    dtype: str
    dims: Dims
    kind: str

    def __post_init__(self) -> None:
        assert self.kind in KINDS, self.kind

    @property
    def port(self) -> Port:
        """Dtype and dimensions alone."""
        return Port(self.dtype, self.dims)

    def size(self, shape: Shape) -> tuple[int, ...]:
        """Dimensions in elements, outermost first; contiguous."""
        return size_of(self.dims, shape)

    def nbytes(self, shape: Shape) -> int:
        """Bytes of the whole tensor."""
        return self.port.nbytes(shape)
