"""Random inputs of a graph: every argument, weight and cache, and what a part of a graph would get from the rest.

Each port says what kind of values it wants (`Port.fill`) and how large they are. A tensor's values depend on the seed
and its own name alone, so a graph and its parts get the same ones.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from mktune.errors import SetupError
from mktune.graph.opgraph import OpGraph
from mktune.graph.tensors import PAGE, Port, pages_per_request
from mktune.ops.dimensions import E4M3_MAX, GROUP, INDEX_DIM, ROPE
from mktune.ops.index_pages import pack
from mktune.ops.numerics import rope_tables
from mktune.ops.scale_formats import WORD
from mktune.ops.scale_formats import pack as pack_exponents
from mktune.shape import Shape

if TYPE_CHECKING:
    import torch

CODE_SIGMA = E4M3_MAX / 4
"""Spread of e4m3 codes: a group of 128 normal values peaks at about four times it, as quantised ones do."""

UNIT_SCALE = 4 / E4M3_MAX
"""The scale that turns such codes into values of unit size."""


def make_inputs(
    graph: OpGraph,
    shape: Shape,
    seed: int = 0,
    device: str = "cpu",
    ragged: bool = False,
    only: Collection[str] | None = None,
) -> dict[str, torch.Tensor]:
    """Tensor name → values, for everything in `graph` that no op makes (of it: what `only` names), caches included.

    Token j of a request has the context of a full cache, kv − tokens_per_request + 1 + j; pages are shuffled. With
    `ragged` each request has its own shorter context and every fifth row is padding (slot −1).

    Raises SetupError for a `device` that torch does not find.
    """
    draw = _Draw(shape, seed, device, ragged)
    made = {}
    for call in graph.calls.values():
        for port, tensor in call.inputs:
            wanted = only is None or tensor in only
            if wanted and tensor not in made and tensor not in dict(call.sources):
                made[tensor] = draw.values(tensor, call.op.ports[port])
    return made


@dataclass
class _Draw:
    """Draws tensors that agree with each other about contexts and pages."""

    shape: Shape
    seed: int
    device: str
    ragged: bool

    def values(self, name: str, port: Port) -> torch.Tensor:
        if isinstance(port.fill, str):
            values = _FILLS[port.fill](self, name, port)
        else:
            values = port.fill(self.shape, self.generator(name))
        assert tuple(values.shape) == port.size(self.shape), name
        return values

    def generator(self, name: str) -> torch.Generator:
        import torch

        try:
            generator = torch.Generator(self.device)
        except RuntimeError as error:
            why = str(error).partition("\n")[0]
            raise SetupError(f"torch finds no device {self.device} here to make inputs on: {why}") from None
        return generator.manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))

    def normal(self, name: str, port: Port) -> torch.Tensor:
        import torch

        values = torch.randn(port.size(self.shape), generator=self.generator(name), device=self.device)
        return values.mul_(port.scale).to({"bf16": torch.bfloat16, "f32": torch.float32}[port.dtype])

    def near_one(self, name: str, port: Port) -> torch.Tensor:
        return self.normal(name, Port(port.dtype, port.dims, scale=0.1)) + 1

    def codes(self, name: str, port: Port) -> torch.Tensor:
        import torch

        values = torch.randn(port.size(self.shape), generator=self.generator(name), device=self.device)
        return values.mul_(CODE_SIGMA).clamp_(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)

    def scales(self, name: str, port: Port) -> torch.Tensor:
        """Within a factor of two of each other, so that a scale in a wrong place shows."""
        import torch

        values = torch.rand(port.size(self.shape), generator=self.generator(name), device=self.device)
        return values.add_(0.5).mul_(UNIT_SCALE * port.scale)

    def row_scales(self, name: str, port: Port) -> torch.Tensor:
        """Scales of rows; those of padding rows are zero."""
        values = self.scales(name, port)
        values[:, self.shape.m :] = 0
        return values

    def row_exponents(self, name: str, port: Port) -> torch.Tensor:
        """Packed scales of rows, within a factor of four of each other; padding is zero."""
        return pack_exponents(self._powers(name, (self.shape.m, WORD * port.size(self.shape)[0]), port.scale))

    def weight_exponents(self, name: str, port: Port) -> torch.Tensor:
        """The same of a weight's rows, equal within each block of 128."""
        words, rows = port.size(self.shape)
        blocks = self._powers(name, (-(-rows // GROUP), WORD * words), port.scale)
        return pack_exponents(blocks.repeat_interleave(GROUP, 0)[:rows])

    def _powers(self, name: str, size: tuple[int, int], scale: float) -> torch.Tensor:
        """Powers of two around `UNIT_SCALE` times `scale`: the nearest, its half and its double."""
        import torch

        steps = torch.randint(-1, 2, size, generator=self.generator(name), device=self.device)
        nearest = 2.0 ** round(math.log2(UNIT_SCALE * scale))
        return torch.tensor([nearest / 2, nearest, nearest * 2], device=self.device)[steps + 1]

    def rope_cos(self, name: str, port: Port) -> torch.Tensor:
        return rope_tables(port.size(self.shape)[0], ROPE, port.scale)[0].to(self.device)

    def rope_sin(self, name: str, port: Port) -> torch.Tensor:
        return rope_tables(port.size(self.shape)[0], ROPE, port.scale)[1].to(self.device)

    def index_pages(self, name: str, port: Port) -> torch.Tensor:
        pages = port.size(self.shape)[0]
        values = self.codes(name, Port("e4m3", (pages * PAGE, INDEX_DIM)))
        return pack(values, self.scales(f"{name} scales", Port("f32", (pages * PAGE,))))

    # ---- which tokens a step has, and where they are cached ------------------------------------------------------

    @cached_property
    def table(self) -> torch.Tensor:
        """[requests, pages of each]: a shuffle of the whole pool."""
        import torch

        shape = (self.shape.requests, pages_per_request(self.shape))
        shuffled = torch.randperm(shape[0] * shape[1], generator=self.generator("block_table"), device=self.device)
        return shuffled.view(shape)

    @cached_property
    def lengths(self) -> torch.Tensor:
        """[M]: context length of each row, its own token included."""
        import torch

        rows, requests, kv = self.shape.tokens_per_request, self.shape.requests, self.shape.kv
        longest = torch.full((requests, 1), kv, device=self.device)
        if self.ragged:
            generator = self.generator("context_lens")
            longest = torch.randint(rows, kv + 1, (requests, 1), generator=generator, device=self.device)
        return (longest - rows + 1 + torch.arange(rows, device=self.device)).flatten()

    def positions(self, name: str, port: Port) -> torch.Tensor:
        return self.lengths - 1

    def slots(self, name: str, port: Port) -> torch.Tensor:
        import torch

        positions = self.lengths - 1
        request = torch.arange(self.shape.m, device=self.device) // self.shape.tokens_per_request
        slots = self.table[request, positions // PAGE] * PAGE + positions % PAGE
        if self.ragged:
            slots[4::5] = -1
        return slots

    def block_table(self, name: str, port: Port) -> torch.Tensor:
        return self.table.int()

    def context_lens(self, name: str, port: Port) -> torch.Tensor:
        return self.lengths.int()


_FILLS: dict[str, Callable[[_Draw, str, Port], torch.Tensor]] = {
    "normal": _Draw.normal,
    "near_one": _Draw.near_one,
    "codes": _Draw.codes,
    "scales": _Draw.scales,
    "row_scales": _Draw.row_scales,
    "row_exponents": _Draw.row_exponents,
    "weight_exponents": _Draw.weight_exponents,
    "cos": _Draw.rope_cos,
    "sin": _Draw.rope_sin,
    "index_pages": _Draw.index_pages,
    "positions": _Draw.positions,
    "slots": _Draw.slots,
    "block_table": _Draw.block_table,
    "context_lens": _Draw.context_lens,
}
"""Kind of values → how they are drawn."""
