"""How the scales of quantised values are represented: `scale_format`, a part of the contract and of every plan's key.

fp32    s = max(amax, floor) / 448, as it is. Stored in fp32: of rows [groups, rows rounded up to 4], of weights
        [N / 128, groups], one for each block of 128 × 128
ue8m0   s rounded up to a power of two, 2^ceil(log2(max(amax, floor) / 448)): rounded down, the largest value would pass
        448. Stored as the exponent's byte, e + 127, which is the exponent field of the fp32 number; four groups that
        follow each other along K make a word, the first in its lowest byte: i32 [groups / 4, rows rounded up to 4].
        Weights are requantised once, when they are loaded, to blocks of 128 × 128 with such scales, and stored as rows
        are: every row of a block has its block's byte

In both a group is 128 neighbours along K, and padding is zero. The packed form is what Blackwell's block-scaled FP8
GEMM of DeepGEMM reads through TMA, for activations and weights (its csrc/apis/layout.hpp: fp32 scales of any
granularity become int32, one row each, MN-major, aligned to 16 bytes). A kernel that wants fp32 shifts a byte left by
23 bits. What scales single tokens of the indexer's query and key stays fp32 in both formats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mktune.errors import InputError
from mktune.graph.tensors import Port, round_up
from mktune.ops.dimensions import GROUP

if TYPE_CHECKING:
    import torch

FP32: Final = "fp32"
UE8M0: Final = "ue8m0"
SCALE_FORMATS: Final = (FP32, UE8M0)

WORD: Final = 4
"""Groups whose exponents make a word; rows are padded to as many, 16 bytes."""

BIAS: Final = 127
"""What a byte is above its exponent. 0 is padding and 255 no number: no scale of the contract comes near either."""

_MANTISSA: Final = 23
"""Bits of an fp32 number below its exponent."""


def row_words(k: int) -> Port:
    """The port of packed scales of rows [M, k]."""
    assert k % (GROUP * WORD) == 0, k
    return Port("i32", (k // GROUP // WORD, "m4"), "row_exponents")


def weight_words(n: int, k: int) -> Port:
    """The port of packed scales of a weight [n, k]."""
    assert k % (GROUP * WORD) == 0, k
    assert n % WORD == 0, n
    return Port("i32", (k // GROUP // WORD, n), "weight_exponents", k**-0.5)


def power_of_two(scales: torch.Tensor) -> torch.Tensor:
    """The smallest power of two that is at least each of the fp32 `scales`, which are positive and no subnormals.

    Of max(amax, floor) / 448 it is exact, be that divided or multiplied by the fp32 number nearest to 1 / 448: only at
    448 times a power of two does a rounding decide, and there both give the power itself.
    """
    import torch

    carried = scales.view(torch.int32) + ((1 << _MANTISSA) - 1)  # any bit below the exponent raises it by one
    return ((carried >> _MANTISSA) << _MANTISSA).view(torch.float32)


def pack(scales: torch.Tensor) -> torch.Tensor:
    """The words [groups / 4 rounded up, rows rounded up to 4] of fp32 scales [rows, groups], padded with zeros.

    Raises InputError for a scale that is no power of two.
    """
    import torch

    bits = scales.contiguous().view(torch.int32)
    if bool((bits & ((1 << _MANTISSA) - 1)).any()) or bool((bits <= 0).any()):
        raise InputError("scales in ue8m0 are powers of two: round them up (mktune.ops.scale_formats.power_of_two)")
    rows, groups = scales.shape
    exponents = torch.zeros(round_up(rows, WORD), round_up(groups, WORD), dtype=torch.uint8, device=scales.device)
    exponents[:rows, :groups] = bits >> _MANTISSA
    return exponents.view(torch.int32).T.contiguous()  # hosts of CUDA are little-endian, as GPUs are


def exponents(words: torch.Tensor) -> torch.Tensor:
    """The bytes of packed `words` [w, r] as int32 [r, 4 · w]: one for each row and group, padding included."""
    import torch

    parts = [(words >> (8 * place)) & 0xFF for place in range(WORD)]
    return torch.stack(parts, -1).transpose(0, 1).flatten(1)


def unpack(words: torch.Tensor, rows: int, groups: int) -> torch.Tensor:
    """The fp32 scales [rows, groups] of packed `words`. Byte 0 reads as zero, byte 255 as infinity."""
    import torch

    return (exponents(words)[:rows, :groups] << _MANTISSA).view(torch.float32)
