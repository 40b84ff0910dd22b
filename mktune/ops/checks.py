"""Checks that ops share: do the fields of a config exist, does it fit the device, what does a trigger mean."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

from mktune.access import Access
from mktune.device import Device
from mktune.ops.base import Op, Violation
from mktune.plan import ConfigValue, OpPlan

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
    return op.implementations(arch)


@cache
def _pairs(op: Op, arch: str, impl: str) -> frozenset[tuple[str, ConfigValue]]:
    """Every field with each of its values."""
    return frozenset((name, value) for name, values in _choices(op, arch)[impl].items() for value in values)


def field_violations(op: Op, plan: OpPlan, arch: str, optional: frozenset[str] = frozenset()) -> list[Violation]:
    """An implementation, field or value that `choices` does not have, or a field (not `optional`) that is missing."""
    known = _choices(op, arch)
    if plan.impl not in known:
        if plan.impl in op.choices(arch):
            others = f"; {' and '.join(known)} can" if known else ""
            return [Violation("scale_format", "", f"{plan.impl} cannot compute {op.scale_format} on {arch}{others}")]
        return [Violation("impl", "", f"{op.title} has no impl {plan.impl!r} on {arch}; known: {', '.join(known)}")]
    fields = known[plan.impl]
    given = dict(plan.config)
    types = set(map(type, given.values()))  # True and 1.0 equal 1, and are no value of a field
    complete = len(given) == len(fields) or fields.keys() - given.keys() <= optional
    if complete and types <= {int, str} and _pairs(op, arch, plan.impl).issuperset(plan.config):
        return []
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


def smem_violations(needed: int, device: Device) -> list[Violation]:
    """Shared memory of one CTA beyond what the device gives."""
    if needed <= device.smem_per_block:
        return []
    message = f"{needed} bytes of shared memory, {device.name} has {device.smem_per_block}; use fewer stages"
    return [Violation("smem", "", message)]
