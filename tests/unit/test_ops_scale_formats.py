"""Scales in ue8m0: the next power of two, its byte, four bytes to a word, and weights brought to it."""

import math

import pytest
import torch

from mktune.errors import InputError
from mktune.ops.numerics import block_fp8_matmul, dequantise, quantise, requantise, store_scales
from mktune.ops.scale_formats import exponents, pack, power_of_two, unpack

F8 = torch.float8_e4m3fn


def powers(rows, groups, seed=0):
    steps = torch.randint(-40, 40, (rows, groups), generator=torch.Generator().manual_seed(seed))
    return torch.ldexp(torch.ones(rows, groups), steps)


@pytest.mark.parametrize("exponent", [-100, -42, -1, 0, 1, 7, 100])
def test_a_scale_is_rounded_up_and_a_power_of_two_stays(exponent):
    power = torch.tensor([2.0**exponent])
    assert power_of_two(power).tolist() == [2.0**exponent]
    above, below = (torch.nextafter(power, torch.tensor([limit])) for limit in (float("inf"), 0.0))
    assert power_of_two(above).tolist() == [2.0 ** (exponent + 1)]
    assert power_of_two(below).tolist() == [2.0**exponent]


def test_the_rule_is_that_of_the_contract_for_every_bf16_value():
    """2^ceil(log2(max(amax, 1e-10) / 448)), worked out in exact integers."""
    bits = torch.arange(0x0000, 0x7F80, dtype=torch.int32)
    peaks = bits.to(torch.int16).view(torch.bfloat16).float()
    _, scales = quantise(peaks[:, None] * torch.eye(1, 128), 1e-10, "ue8m0")
    for peak, scale in zip(peaks.tolist(), scales[:, 0].tolist(), strict=True):
        mantissa, exponent = math.frexp(max(peak, 1e-10))  # peak = mantissa · 2^exponent, 448 = 0.875 · 2^9
        assert scale == 2.0 ** (exponent - 9 + (mantissa > 0.875)), peak


@pytest.mark.parametrize("exponent", [-40, -9, 0, 5, 100])
def test_the_rule_is_exact_however_448_is_divided_out(exponent):
    """GPUs may multiply by the reciprocal: no fp32 value beside the boundary gets another exponent by that."""
    boundary = torch.tensor([448.0 * 2.0**exponent])
    bits = boundary.view(torch.int32) + torch.arange(-64, 65, dtype=torch.int32)
    peaks = bits.view(torch.float32)
    exact = torch.where(peaks > boundary, 2.0 ** (exponent + 1), 2.0**exponent)
    assert torch.equal(power_of_two(peaks / 448), exact)
    assert torch.equal(power_of_two(peaks * torch.tensor(1 / 448)), exact)


@pytest.mark.parametrize(("peak", "scale", "code"), [(448.0, 1, 448.0), (450.0, 2, 224.0), (-896.0, 2, -448.0)])
def test_no_value_passes_448(peak, scale, code):
    x = torch.zeros(1, 128)
    x[0, 7] = peak
    codes, scales = quantise(x, 1e-10, "ue8m0")
    assert (scales.item(), codes[0, 7].item()) == (scale, code)


def test_a_zero_group_has_the_scale_of_the_smallest_amax():
    codes, scales = quantise(torch.zeros(1, 128), 1e-10, "ue8m0")
    assert scales.item() == 2.0**-42
    assert exponents(pack(scales))[0, 0] == 127 - 42
    assert not codes.float().any()


def test_codes_are_exact_where_only_the_exponent_is_taken_out():
    """x / s loses nothing but what e4m3 has no bits for."""
    exact = torch.tensor([[1.0, -1.5, 0.25, 448.0, 13.0]]).repeat(1, 128)[:, :128]
    codes, scales = quantise(exact * 2.0**-9, 1e-10, "ue8m0")
    assert torch.equal(codes.float() * scales, exact * 2.0**-9)


@pytest.mark.parametrize("groups", [1, 3, 4, 5, 16, 48])
@pytest.mark.parametrize("rows", [*range(1, 10), 16, 17, 100])
def test_words_hold_every_exponent_at_its_place_and_zeros_beside(rows, groups):
    scales = powers(rows, groups)
    words = pack(scales)
    assert (words.dtype, words.is_contiguous()) == (torch.int32, True)
    assert words.shape == (-(-groups // 4), -(-rows // 4) * 4)
    for word in range(words.shape[0]):
        for row in range(words.shape[1]):
            value = words[word, row].item() & 0xFFFFFFFF
            for byte in range(4):
                group, found = 4 * word + byte, value >> (8 * byte) & 0xFF
                held = row < rows and group < groups
                assert found == (math.log2(scales[row, group].item()) + 127 if held else 0)
    assert torch.equal(unpack(words, rows, groups), scales)
    assert not exponents(words)[rows:].any()
    assert not exponents(words)[:, groups:].any()


@pytest.mark.parametrize("wrong", [3.0, 0.0, -2.0, float("nan"), 2.0**-140])
def test_only_powers_of_two_are_packed(wrong):
    scales = torch.ones(3, 4)
    scales[2, 1] = wrong
    with pytest.raises(InputError, match="powers of two: round them up"):
        pack(scales)


def test_rows_are_dequantised_alike_from_either_form():
    codes = torch.randn(5, 1024).mul(100).clamp(-448, 448).to(F8)
    scales = powers(5, 8)
    assert torch.equal(dequantise(codes, store_scales(scales)), dequantise(codes, store_scales(scales, "ue8m0")))


def test_a_product_is_the_same_from_either_form():
    a, w = (torch.randn(rows, 512).mul(100).clamp(-448, 448).to(F8) for rows in (3, 300))
    rows, blocks = powers(3, 4), powers(3, 4, seed=1)
    packed = block_fp8_matmul(a, pack(rows), w, pack(blocks.repeat_interleave(128, 0)[:300]))
    assert torch.equal(packed, block_fp8_matmul(a, store_scales(rows), w, blocks))


@pytest.mark.parametrize("n", [128, 192, 300])
def test_a_weight_is_requantised_by_blocks(n):
    generator = torch.Generator().manual_seed(3)
    codes = torch.randn(n, 512, generator=generator).mul(112).clamp(-448, 448).to(F8)
    blocks = torch.rand(-(-n // 128), 4, generator=generator).add(0.5).mul(2.0**-7)
    blocks[0, 2] = 0.0
    made, words = requantise(codes, blocks)
    assert made.shape == codes.shape
    scales = unpack(words, n, 4)
    by_row = blocks.repeat_interleave(128, 0)[:n]
    weight = codes.float() * by_row.repeat_interleave(128, 1)
    again = made.float() * scales.repeat_interleave(128, 1)
    for first in range(0, n, 128):
        for group in range(4):
            rows, columns = slice(first, min(first + 128, n)), slice(128 * group, 128 * group + 128)
            assert scales[rows, group].unique().numel() == 1
            peak = weight[rows, columns].abs().max().clamp_min(1e-10).item()
            assert scales[first, group].item() == 2.0 ** math.ceil(math.log2(peak / 448))
            step = scales[first, group].item() * 16
            assert (again - weight)[rows, columns].abs().max() <= step
    twice, same = requantise(made, scales[::128].contiguous())  # a peak rounded to 224 halves its scale: no value moves
    assert torch.equal(twice.float() * unpack(same, n, 4).repeat_interleave(128, 1), again)
