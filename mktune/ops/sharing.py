"""What ops need in common for their first kernels to be one launch, and what each of them makes of its placement.

Where a launch waits and triggers is one choice for all of its CTAs; tiles, splits and rings are each op's own. Of the
bytes that each CTA may ask into L2 (`l2_prefetch_bytes`) every op takes as much as its own ring leaves.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mktune.ops.base import Op
from mktune.ops.gemm_schedules import ONE_TILE
from mktune.plan import ConfigValue, KernelPlan, OpPlan

Fields = Mapping[str, ConfigValue]

COMMON = ("finalizer", "impl", "schedule", "warps")
"""Fields of the other ops that decide whether an op can share their launch: all that `apart` looks at."""

IMPLS = ("wgmma", "mma_sync")
"""Implementations whose tiles can stand beside others in one grid; those of a provider are kernels of their own."""


def apart(parts: Sequence[Fields]) -> str:
    """Why ops whose configs (and `impl`) have these fields cannot share a launch; empty where they can.

    A field that is not there, since it has not been chosen yet or the op has none, is no reason.
    """
    if alone := [fields["impl"] for fields in parts if fields.get("impl", IMPLS[0]) not in IMPLS]:
        return f"kernels of impl {alone[0]} are launches of their own: use {' or '.join(IMPLS)}"
    if any(fields.get("finalizer") == "cluster" for fields in parts):
        return "the CTAs of a cluster are a launch of their own: use finalizer last_arriver or kernel"
    if len(parts) > 1 and any(fields.get("schedule", ONE_TILE) != ONE_TILE for fields in parts):
        return "CTAs that go through several tiles are a launch of their own: leave the schedule out"
    for one, other in itertools.combinations(parts, 2):
        if "warps" in one and "warps" in other and one["warps"] != other["warps"]:
            return f"{one['warps']} and {other['warps']} warps: the CTAs of a launch are of one size"
    return ""


def placed_part(op: Op, plan: OpPlan, kernel: KernelPlan) -> KernelPlan:
    """How the first kernel of `op` is placed as a part of a launch that is placed as `kernel`."""
    asked = min(kernel.l2_prefetch_bytes, op.l2_limit(plan))
    return kernel if asked == kernel.l2_prefetch_bytes else replace(kernel, l2_prefetch_bytes=asked)


def l2_limit(parts: Sequence[tuple[Op, OpPlan]]) -> int:
    """Weight bytes of one CTA that the launch of these ops may ask into L2 before its wait."""
    return max(op.l2_limit(plan) for op, plan in parts)
