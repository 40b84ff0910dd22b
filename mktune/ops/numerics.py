"""The contract's arithmetic in fp64: quantise, block-scaled products, norms, RoPE. torch is imported where it is used.

Rounding points are explicit: nothing here rounds but `to_bf16` and `quantise`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mktune.graph.tensors import round_up
from mktune.ops.dimensions import ACTIVATION_AMAX, E4M3_MAX, GROUP
from mktune.ops.scale_formats import FP32, UE8M0, pack, power_of_two, unpack

if TYPE_CHECKING:
    import torch

_COLUMNS_AT_ONCE = 4096
"""Weight rows that are dequantised to fp64 together: bounds the reference's memory."""


def to_bf16(x: torch.Tensor) -> torch.Tensor:
    import torch

    return x.to(torch.bfloat16)


def quantise(x: torch.Tensor, smallest_amax: float, scale_format: str = FP32) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 codes of `x` [..., 128 · g] and their fp32 scales [..., g], one per 128 neighbours.

    s = max(amax, smallest_amax) / 448 in fp32, in ue8m0 the next power of two; codes are x / s in fp32, clamped and
    rounded to nearest even.
    """
    groups = x.float().unflatten(-1, (-1, GROUP))
    scales = _scales(groups.abs().amax(-1), smallest_amax, scale_format)
    return _codes(groups, scales.unsqueeze(-1)).flatten(-2), scales


def requantise(codes: torch.Tensor, block_scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight of the ue8m0 contract from one in fp32: e4m3 codes [N, K] and the packed words of its rows.

    Given are e4m3 codes [N, K] and the fp32 scales [N / 128 rounded up, K / 128] of blocks of 128 × 128. A zero block
    gets the scale of the smallest amax, as activations do.
    """
    rows, k = codes.shape
    blocks = block_scales.shape[0]
    padded = codes.new_zeros(blocks * GROUP, k, dtype=block_scales.dtype)
    padded[:rows] = codes.to(padded.dtype)
    values = padded.view(blocks, GROUP, -1, GROUP) * block_scales[:, None, :, None]
    scales = _scales(values.abs().amax((1, 3)), ACTIVATION_AMAX, UE8M0)
    made = _codes(values, scales[:, None, :, None]).view(-1, k)[:rows]
    return made, pack(scales.repeat_interleave(GROUP, 0)[:rows])


def _scales(amax: torch.Tensor, smallest_amax: float, scale_format: str) -> torch.Tensor:
    scales = amax.clamp_min(smallest_amax) / E4M3_MAX
    return power_of_two(scales) if scale_format == UE8M0 else scales


def _codes(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    import torch

    return (values / scales).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def store_scales(scales: torch.Tensor, scale_format: str = FP32) -> torch.Tensor:
    """Row scales [M, g] as they are stored: fp32 [g, M rounded up to 4], padding zero; in ue8m0 packed."""
    if scale_format == UE8M0:
        return pack(scales)
    rows, groups = scales.shape
    stored = scales.new_zeros(groups, round_up(rows, 4))
    stored[:, :rows] = scales.T
    return stored


def dequantise(codes: torch.Tensor, stored_scales: torch.Tensor) -> torch.Tensor:
    """Activations [M, K] in fp64 from e4m3 codes and their scales as stored: fp32, or packed words."""
    groups = codes.double().unflatten(-1, (-1, GROUP))
    rows, number, _ = groups.shape
    packed = not stored_scales.is_floating_point()
    scales = unpack(stored_scales, rows, number) if packed else stored_scales[:, :rows].T
    return (groups * scales.double().unsqueeze(-1)).flatten(-2)


def block_fp8_matmul(
    codes: torch.Tensor, stored_scales: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor
) -> torch.Tensor:
    """Σ_g a_s · w_s · Σ_{k in g} a · w in fp64: [M, N] of e4m3 [M, K] and [N, K] with 128 × 128 block scales, which
    are stored as blocks in fp32 and as rows where they are packed."""
    import torch

    a = dequantise(codes, stored_scales)
    columns, k = weight.shape
    if weight_scales.is_floating_point():
        by_row = weight_scales.repeat_interleave(GROUP, 0)[:columns]
    else:
        by_row = unpack(weight_scales, columns, k // GROUP)
    products = []
    for first in range(0, columns, _COLUMNS_AT_ONCE):
        part = weight[first : first + _COLUMNS_AT_ONCE].double()
        spread = by_row[first : first + _COLUMNS_AT_ONCE].double().unsqueeze(-1)
        products.append(a @ part.unflatten(-1, (-1, GROUP)).mul_(spread).flatten(-2).T)
    return torch.cat(products, -1)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension, in fp64."""
    x = x.double()
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double()


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """(x − mean) / sqrt(variance + eps) · weight + bias over the last dimension, in fp64."""
    x = x.double()
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred * (variance + eps).rsqrt() * weight.double() + bias.double()


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotate interleaved pairs (2i, 2i + 1) of `x` [M, ..., 64] in fp64. Tables are [positions, 32]."""
    import torch

    x = x.double()
    shape = (x.shape[0], *(1 for _ in x.shape[2:]), -1)
    c, s = cos[positions].double().view(shape), sin[positions].double().view(shape)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * c - odd * s, even * s + odd * c), -1).flatten(-2)


def rope_tables(positions: int, dims: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [positions, dims / 2] in fp32, computed in fp64. Frequency i is theta^(−2i / dims)."""
    import torch

    frequency = theta ** (-torch.arange(0, dims, 2, dtype=torch.float64) / dims)
    angle = torch.arange(positions, dtype=torch.float64).unsqueeze(-1) * frequency
    return angle.cos().float(), angle.sin().float()


def with_rows(cache: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """A copy of `cache` [slots, ...] with row m of `rows` at slots[m]; slot −1 writes nothing."""
    copy = cache.clone()
    kept = slots >= 0
    copy[slots[kept]] = rows[kept].to(cache.dtype)
    return copy
