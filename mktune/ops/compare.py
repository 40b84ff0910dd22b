"""Comparison of one output with its reference. Each function returns what is wrong, one line each, or nothing.

A NaN or infinity in an output is wrong wherever it is compared, and so is any value against a row of zeros. One in the
reference raises MktuneError: then the inputs are broken, and no answer to them can be judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mktune.errors import MktuneError
from mktune.ops.tolerances import QuantisedTolerance

if TYPE_CHECKING:
    import torch


def form(name: str, actual: torch.Tensor, expected: torch.Tensor) -> list[str]:
    """Another shape or dtype than the reference's."""
    if actual.shape == expected.shape and actual.dtype == expected.dtype:
        return []
    return [f"{name}: {_form(actual)}, not {_form(expected)}"]


def codes(name: str, actual: torch.Tensor, expected: torch.Tensor, tolerance: QuantisedTolerance) -> list[str]:
    """e4m3 values [M, ...]."""
    if found := form(name, actual, expected):
        return found
    right, given = expected.double(), actual.double()
    if found := _not_finite(name, given, right):
        return found
    steps = (_ordinal(actual) - _ordinal(expected)).abs()
    unequal = int((steps > 0).sum())
    allowed = max(tolerance.unequal, int((1 - tolerance.equal) * steps.numel()))
    if unequal > allowed:
        found.append(f"{name}: {unequal} of {steps.numel()} codes differ, {allowed} may")
    zero = (right.flatten(1) == 0).all(1) & (given.flatten(1) != 0).any(1)
    if bool(zero.any()):
        found.append(f"{name}: {int(zero.sum())} rows must be zero, the first row {first(zero)}")
    far = (steps > 1) & ((given - right).abs() > tolerance.distance)
    if bool(far.any()):
        found.append(f"{name}: {int(far.sum())} codes are further off than a neighbour, the first at {first(far)}")
    return found


def scales(name: str, actual: torch.Tensor, expected: torch.Tensor, tolerance: QuantisedTolerance) -> list[str]:
    """fp32 scales. Where the reference is zero (padding) the scale must be zero."""
    if found := form(name, actual, expected):
        return found
    right, given = expected.double(), actual.double()
    if found := _not_finite(name, given, right):
        return found
    error = (given - right).abs()
    loose = error > tolerance.scale * right.abs()
    allowed = max(tolerance.always_loose, int(tolerance.loose_scales * int((right != 0).sum())))
    if int(loose.sum()) > allowed:
        found.append(f"{name}: {int(loose.sum())} scales differ, {allowed} may")
    far = error > tolerance.loose_scale * right.abs()
    if bool(far.any()):
        found.append(f"{name}: {int(far.sum())} scales are far off, the first at {first(far)}")
    return found


def bf16_rows(name: str, actual: torch.Tensor, expected: torch.Tensor, ulps: int, rms: float) -> list[str]:
    """bf16 rows [M, ...]: distance in units of the row's largest value, and relative RMS of each row."""
    import torch

    if found := form(name, actual, expected):
        return found
    right, given = expected.double().flatten(1), actual.double().flatten(1)
    if found := _not_finite(name, given, right):
        return found
    largest = right.abs().amax(1, keepdim=True)
    unit = torch.where(largest > 0, (largest.clamp_min(1e-300).log2().floor() - 7).exp2(), 0.0)
    far = (given - right).abs() > ulps * unit
    if bool(far.any()):
        found.append(f"{name}: {int(far.sum())} values beyond {ulps} ulp of their row, the first at {first(far)}")
    return found + relative_rms(name, actual, expected, rms)


def relative_rms(
    name: str, actual: torch.Tensor, expected: torch.Tensor, rms: float, peak: float | None = None
) -> list[str]:
    """Rows [M, ...]: RMS error relative to the row's RMS; `peak` bounds the largest error by the same measure."""
    if found := form(name, actual, expected):
        return found
    right, given = expected.double().flatten(1), actual.double().flatten(1)
    if found := _not_finite(name, given, right):
        return found
    error, size = given - right, right.square().mean(1).sqrt()
    wrong = error.square().mean(1).sqrt() > rms * size
    if bool(wrong.any()):
        found.append(f"{name}: RMS error of {int(wrong.sum())} rows above {rms:g}, the first row {first(wrong)}")
    if peak is not None and bool((high := error.abs().amax(1) > peak * size).any()):
        found.append(f"{name}: peak error of {int(high.sum())} rows above {peak:g} RMS, the first row {first(high)}")
    return found


def untouched(name: str, actual: torch.Tensor, before: torch.Tensor, rows: torch.Tensor) -> list[str]:
    """Cache rows [slots] or [slots, ...] that `rows` does not name are bit-equal to what they were."""
    import torch

    if found := form(name, actual, before):
        return found
    given, kept = (side.reshape(len(side), -1).contiguous().view(torch.uint8) for side in (actual, before))
    changed = (given != kept).any(1)
    changed[rows] = False
    if bool(changed.any()):
        return [f"{name}: {int(changed.sum())} rows changed that no slot names, the first row {first(changed)}"]
    return []


def _not_finite(name: str, given: torch.Tensor, right: torch.Tensor) -> list[str]:
    if not bool(right.isfinite().all()):
        raise MktuneError(f"the reference of {name} is not finite: its inputs are broken")
    bad = ~given.isfinite()
    return [f"{name}: {int(bad.sum())} values are not finite, the first at {first(bad)}"] if bool(bad.any()) else []


def _ordinal(values: torch.Tensor) -> torch.Tensor:
    """e4m3 codes as whole numbers in the order of their values; neighbours are 1 apart and −0 equals +0."""
    import torch

    bits = values.contiguous().view(torch.uint8).int()
    magnitude = bits & 0x7F
    return torch.where(bits > 0x7F, -magnitude, magnitude)


def first(mask: torch.Tensor) -> str:
    """The place of the first element that is true, as a message names it."""
    return str(mask.nonzero()[0].tolist()).strip("[]")


def _form(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
