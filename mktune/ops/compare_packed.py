"""Comparison of quantised rows whose scales are packed exponents (ue8m0).

Two right answers may differ by a factor of two in a group whose largest value comes near a power of two times 448: a
rounding before it decides which exponent it gets. Its codes are then the other answer's, halved or doubled, which e4m3
does without loss above its subnormals. So a group's exponents may be one apart, in as few groups as fp32 scales may
differ in, and only where the largest code is 448 on the side of the smaller exponent and 224 on the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mktune.errors import MktuneError
from mktune.ops import compare
from mktune.ops.dimensions import E4M3_MAX, GROUP
from mktune.ops.scale_formats import exponents

if TYPE_CHECKING:
    import torch

    from mktune.ops.base import Tensors
    from mktune.ops.tolerances import QuantisedTolerance

_NOT_A_NUMBER = 255


def quantised(values: str, scales: str, given: Tensors, right: Tensors, tolerance: QuantisedTolerance) -> list[str]:
    """Rows of e4m3 [M, K] at the port `values` with their scales at the port `scales`, in either format."""
    if right[scales].is_floating_point():
        found = compare.codes(values, given[values], right[values], tolerance)
        return found + compare.scales(scales, given[scales], right[scales], tolerance)
    for port in (values, scales):
        if found := compare.form(port, given[port], right[port]):
            return found
    ours, theirs = exponents(given[scales]), exponents(right[scales])
    if found := _not_numbers(scales, ours, theirs):
        return found
    rows, groups = right[values].shape[0], right[values].shape[1] // GROUP
    apart = (ours - theirs)[:rows, :groups]
    found = _exponents(scales, apart, _peaks(given[values]), _peaks(right[values]), tolerance)
    padding = ours.clone()
    padding[:rows, :groups] = 0
    if bool(padding.any()):
        found.append(f"{scales}: {int((padding != 0).sum())} bytes of padding are not zero")
    return found + compare.codes(values, given[values], _shifted(right[values], apart), tolerance)


def _exponents(
    name: str, apart: torch.Tensor, given: torch.Tensor, right: torch.Tensor, tolerance: QuantisedTolerance
) -> list[str]:
    """What is wrong with exponents [M, groups] that are so far `apart`, where the largest codes are these."""
    found = []
    differ = apart != 0
    allowed = max(tolerance.always_loose, int(tolerance.loose_scales * apart.numel()))
    if (number := int(differ.sum())) > allowed:
        found.append(f"{name}: {number} exponents differ, {allowed} may")
    half = E4M3_MAX / 2
    rounded_up = (apart == 1) & (right == E4M3_MAX) & (given == half)
    rounded_down = (apart == -1) & (right == half) & (given == E4M3_MAX)
    wrong = differ & ~rounded_up & ~rounded_down
    if bool(wrong.any()):
        first = compare.first(wrong)
        found.append(f"{name}: {int(wrong.sum())} exponents are off, the first of row, group {first}")
    return found


def _peaks(codes: torch.Tensor) -> torch.Tensor:
    """The largest magnitude [M, groups] of e4m3 rows."""
    return codes.float().unflatten(-1, (-1, GROUP)).abs().amax(-1)


def _shifted(codes: torch.Tensor, apart: torch.Tensor) -> torch.Tensor:
    """e4m3 rows as they are with exponents that are `apart` from their own; far ones are reported elsewhere."""
    groups = codes.float().unflatten(-1, (-1, GROUP))
    factor = (-apart.clamp(-1, 1).float()).exp2().unsqueeze(-1)
    return (groups * factor).clamp(-E4M3_MAX, E4M3_MAX).flatten(-2).to(codes.dtype)


def _not_numbers(name: str, given: torch.Tensor, right: torch.Tensor) -> list[str]:
    if bool((right == _NOT_A_NUMBER).any()):
        raise MktuneError(f"the reference of {name} is not finite: its inputs are broken")
    bad = given == _NOT_A_NUMBER
    if not bool(bad.any()):
        return []
    return [f"{name}: {int(bad.sum())} scales are not finite, the first of row, group {compare.first(bad)}"]
