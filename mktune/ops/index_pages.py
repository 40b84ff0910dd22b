"""The indexer's key pages: 64 tokens of 128 e4m3 values, token-major, then their 64 fp32 scales, as bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mktune.graph.tensors import PAGE
from mktune.ops.dimensions import INDEX_DIM, INDEX_PAGE_BYTES

if TYPE_CHECKING:
    import torch

_VALUE_BYTES = PAGE * INDEX_DIM


def unpack(pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies of the e4m3 values [tokens, 128] and fp32 scales [tokens] of u8 pages [pages, 8448]."""
    import torch

    values = pages[:, :_VALUE_BYTES].contiguous().view(torch.float8_e4m3fn).view(-1, INDEX_DIM)
    return values, pages[:, _VALUE_BYTES:].contiguous().view(torch.float32).view(-1)


def spans_of(slot: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """(first byte, bytes) of a token's values and of its scale."""
    page, token = divmod(slot, PAGE)
    base = page * INDEX_PAGE_BYTES
    return (base + token * INDEX_DIM, INDEX_DIM), (base + _VALUE_BYTES + token * 4, 4)


def tokens(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows of e4m3 `values`, chosen as bytes: not every build of torch can index e4m3."""
    import torch

    return values.view(torch.uint8)[rows].view(torch.float8_e4m3fn)


def pack(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The u8 pages [pages, 8448] of e4m3 values [tokens, 128] and fp32 scales [tokens]."""
    import torch

    parts = values.contiguous().view(torch.uint8).view(-1, _VALUE_BYTES), scales.view(torch.uint8).view(-1, 4 * PAGE)
    pages = torch.cat(parts, 1)
    assert pages.shape[1] == INDEX_PAGE_BYTES
    return pages
