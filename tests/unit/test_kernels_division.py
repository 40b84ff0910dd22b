"""The kernels' division (quant.cuh: a product corrected once) is IEEE division wherever they divide.

Division commutes with powers of two, so mantissas are all that there is to try: x is bf16, the scale comes from a bf16
peak or from a smallest one. Numbers are exact here; `nearest` is what the hardware's fp32 operations do to them.
"""

from __future__ import annotations

import struct
from fractions import Fraction

import pytest


def nearest(value: Fraction) -> Fraction:
    """`value` rounded to 24 bits, ties to even."""
    if not value:
        return value
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    unit = Fraction(2) ** (exponent - 23)
    return round(value / unit) * unit  # Fraction rounds ties to even


def divide(x: Fraction, y: Fraction, reciprocal: Fraction) -> Fraction:
    quotient = nearest(x * reciprocal)
    return nearest(quotient + nearest(x - quotient * y) * reciprocal)


BF16 = [Fraction(mantissa) for mantissa in range(128, 256)]
SMALLEST = [Fraction(struct.unpack("f", struct.pack("f", amax))[0]) for amax in (1e-10, 1e-4)]


def test_scales_are_ieee_quotients() -> None:
    for amax in (*BF16, *SMALLEST):
        assert divide(amax, Fraction(448), nearest(Fraction(1, 448))) == nearest(amax / 448)


@pytest.mark.parametrize("part", range(4))
def test_quantised_values_are_ieee_quotients(part: int) -> None:
    for amax in (*BF16[part::4], *SMALLEST):
        scale = nearest(amax / 448)
        reciprocal = nearest(1 / scale)
        for x in BF16:
            assert divide(x, scale, reciprocal) == nearest(x / scale)


def test_the_product_alone_would_not_do() -> None:
    scale = nearest(BF16[1] / 448)
    assert any(nearest(x * nearest(1 / scale)) != nearest(x / scale) for x in BF16)
