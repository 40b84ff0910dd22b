"""How far a right answer may be from the fp64 reference. Part of the contract: a change is a new contract version.

Shares of codes and scales are counted per tensor, RMS and peaks per token row. Correct fp32 kernels, fp16 tensor-core
kernels and vendor kernels stay within these; planted faults do not (`tests/unit/test_faults_*.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class QuantisedTolerance:
    """e4m3 values with their scales.

    equal           share of codes that must be equal; up to `unequal` others always pass
    distance        what the other codes may be apart where that is more than one code (on the scale of e4m3, ±448)
    scale           relative error of a scale; a share of `loose_scales`, but always 2, may reach `loose_scale`. Scales
                    in ue8m0 are equal, but that so many may be one exponent apart where the group's largest value is
                    at the boundary of the two; its codes are compared as they are with that exponent
    """

    equal: float
    unequal: int
    distance: float
    loose_scales: float
    loose_scale: float
    scale: float = 1e-6
    always_loose: int = 2


DIRECT: Final = QuantisedTolerance(equal=0.995, unequal=2, distance=0.0, loose_scales=0.001, loose_scale=2.0**-7)
"""Quantised straight from bf16 values that are given: A0, and a finalizer judged on its producer's own result."""

THROUGH_GEMM: Final = QuantisedTolerance(
    equal=0.97, unequal=16, distance=448 / 128, loose_scales=0.1, loose_scale=2.0**-6
)
"""Behind a GEMM, whose bf16 result may itself round either way."""

BF16_ULPS: Final = 2
"""bf16 outputs: units in the last place of the row's largest value."""
MLA_ROW_ULPS: Final = 3
"""The same for a row of the MLA cache, whose 512 and 64 values are judged apart."""
BF16_RMS: Final = 8e-3
"""bf16 outputs: RMS error of a row relative to the row's RMS."""

GATE_RMS: Final = 3e-3
HEAD_WEIGHT_RMS: Final = 1e-2
LOGITS_RMS: Final = 1e-3
LOGITS_PEAK: Final = 1e-2
"""Largest error of a row of logits, relative to the row's RMS."""

END_TO_END_RMS: Final = 0.15
"""A sanity bound on a whole graph: e4m3 amplifies roundings, so only the check per op decides."""
