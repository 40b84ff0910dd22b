"""Checks that every op shares: does a config exist, can kernels wait and trigger there, does it fit the device."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

from mktune.access import Access
from mktune.device import Device
from mktune.ops.base import Op, Violation
from mktune.plan import ConfigValue, KernelPlan, OpPlan

BARRIER_BYTES = 1024
"""Shared memory of mbarriers and of aligning the ring to a swizzle atom."""


def reads(ports: Collection[str], after_wait: bool) -> tuple[Access, ...]:
    return tuple(Access(port, False, after_wait) for port in ports)


def writes(ports: Collection[str]) -> tuple[Access, ...]:
    """Writes, all behind the wait."""
    return tuple(Access(port, True, True) for port in ports)


def trigger_class(trigger: str) -> str:
    """What a trigger means to the closure rule: exit, after_wait or before_wait.

    Every thread of our kernels executes the wait, at the latest after the prologue; so whatever comes later in any
    thread stands behind it.
    """
    return {"exit": "exit", "start": "before_wait", "after_wait": "after_wait", "before_epilogue": "after_wait"}[
        trigger
    ]


@cache
def _choices(op: Op, arch: str) -> dict[str, dict[str, tuple[ConfigValue, ...]]]:
    """Ops are stateless, so their choices are made up once and not for every plan that is checked."""
    return op.choices(arch)


def config_violations(op: Op, plan: OpPlan, arch: str, optional: Collection[str] = ()) -> list[Violation]:
    """An implementation, field or value that `choices` does not have, or a field (not `optional`) that is missing."""
    known = _choices(op, arch)
    if plan.impl not in known:
        return [Violation("impl", "", f"{op.title} has no impl {plan.impl!r} on {arch}; known: {', '.join(known)}")]
    fields = known[plan.impl]
    given = dict(plan.config)
    found = [
        Violation("config", "", f"{op.title} has no field {name!r}; known: {', '.join(fields)}")
        for name in given
        if name not in fields
    ]
    for name, values in fields.items():
        if name not in given:
            if name not in optional:
                found.append(Violation("config", "", f"{name} is missing"))
        elif type(given[name]) is not type(values[0]) or given[name] not in values:
            listed = ", ".join(map(str, values))
            found.append(Violation("config", "", f"{name} = {given[name]!r}; allowed: {listed}"))
    return found


def placement_violations(op: Op, plan: OpPlan, kernels: tuple[KernelPlan, ...]) -> list[Violation]:
    """Waits and triggers that a kernel does not know, and L2 prefetch where nothing runs before the wait."""
    suffixes = op.kernels(plan)
    if len(suffixes) != len(kernels):
        return [
            Violation("kernels", "", f"{op.title} has {len(suffixes)} kernels here, the plan places {len(kernels)}")
        ]
    found = []
    for suffix, kernel in zip(suffixes, kernels, strict=True):
        gdc, trigger = op.gdc_values(plan, suffix), op.trigger_values(plan, suffix)
        early = kernel.l2_prefetch_bytes and kernel.gdc != "prefetch"
        if kernel.gdc in gdc and kernel.trigger in trigger and not early:
            continue
        name = f"kernel {suffix!r}" if suffix else "its kernel"
        if kernel.gdc not in gdc:
            found.append(Violation("gdc", "", f"{name} cannot wait at {kernel.gdc}; it knows {', '.join(gdc)}"))
        if kernel.trigger not in trigger:
            found.append(
                Violation("trigger", "", f"{name} cannot trigger at {kernel.trigger}; it knows {', '.join(trigger)}")
            )
        if early:
            found.append(Violation("l2_prefetch", "", f"{name} prefetches into L2 only with gdc = prefetch"))
    return found


def smem_violations(needed: int, device: Device) -> list[Violation]:
    """Shared memory of one CTA beyond what the device gives."""
    if needed <= device.smem_per_block:
        return []
    message = f"{needed} bytes of shared memory, {device.name} has {device.smem_per_block}; use fewer stages"
    return [Violation("smem", "", message)]
