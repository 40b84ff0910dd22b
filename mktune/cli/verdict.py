"""What the checks say of a plan, every line of it: for `mktune show --check`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from mktune.cli import render
from mktune.device import Device
from mktune.ops.base import Violation
from mktune.plan import Plan
from mktune.validity import check

RELIES = "{} of its orders hold only because a kernel in between waits, which counts; --json lists them"


def judge(plan: Plan, device: Device, as_json: bool) -> bool:
    """Print why `plan` must not be built on `device`, or where a right one relies on waits; whether it may be built."""
    found = check(plan, device)
    transitive = [] if found else check(plan, device, strict=True)
    if as_json:
        render.document(
            {
                "plan_id": plan.plan_id,
                "arch": device.arch,
                "violations": [asdict(violation) for violation in found],
                "transitive": [asdict(violation) for violation in transitive],
            }
        )
        return not found
    render.folded(f"plan {plan.plan_id}", "bold")
    render.folded(f"must not be built for {device.arch}:" if found else f"may be built for {device.arch}")
    _list(found)
    if transitive:
        render.folded(RELIES.format(len(transitive)))
    return not found


def _list(violations: Sequence[Violation]) -> None:
    for violation in violations:
        render.folded(f"  {violation}")
