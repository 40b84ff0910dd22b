"""Are these the same bits as before? Tensors as numbers, so that results of every earlier plan can be remembered.

A digest is multilinear over the 32-bit words of a tensor: Σ words × weights, in integers modulo 2^64, with random odd
weights; of large tensors the sums of rows are weighed once more, by the same weights. Tensors that differ have equal
digests with a probability of at most 2^-25 (2^-32 up to 256 KiB), whatever a kernel did wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_ROW = 1 << 16  # words with weights of their own; whole rows are weighed once more
_ROWS = 1 << 10  # weighed at once: the products take 512 MiB
_SEED = 0x6D6B7475


def digests(layers: Sequence[Mapping[str, torch.Tensor]]) -> list[dict[str, int]]:
    """The digest of every (contiguous) tensor of every layer, by name. Waits for the device once."""
    import torch

    each = [_digest(tensor) for layer in layers for tensor in layer.values()]
    values = iter(torch.stack(each).tolist() if each else [])
    return [{name: next(values) for name in layer} for layer in layers]


def _digest(tensor: torch.Tensor) -> torch.Tensor:
    """An int64 number on the tensor's device."""
    import torch

    flat = tensor.view(-1).view(torch.uint8)
    words = flat.view(torch.int32) if flat.numel() % 4 == 0 and flat.data_ptr() % 4 == 0 else flat
    rows = words.numel() // _ROW
    weights = _weights(str(tensor.device), max(_ROW, rows + 1))
    rest = words[rows * _ROW :]
    found = (rest * weights[: rest.numel()]).sum()
    if rows:
        whole = words[: rows * _ROW].view(rows, _ROW).split(_ROWS)
        sums = torch.cat([(part * weights[:_ROW]).sum(1) for part in whole])
        found = found * weights[rows] + (sums * weights[:rows]).sum()
    return found


@cache
def _weights(device: str, count: int) -> torch.Tensor:
    """`count` odd numbers of 64 bits, the same in every process."""
    import torch

    draw = torch.Generator().manual_seed(_SEED)
    drawn = torch.randint(-(1 << 62), 1 << 62, (count,), generator=draw, dtype=torch.int64)
    return (drawn * 2 + 1).to(device)
