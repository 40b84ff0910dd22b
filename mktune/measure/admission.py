"""What must hold before plans are timed beside each other: each may be built, and each computes what it should."""

from __future__ import annotations

from collections.abc import Mapping

from mktune.backends.base import Bench
from mktune.device import Device
from mktune.errors import CandidateError, PlanError, SetupError
from mktune.plan import Plan
from mktune.trial import Status
from mktune.validity import check


def refuse_invalid(plans: Mapping[str, Plan], device: Device) -> None:
    """Raises PlanError with the first reason why one of `plans` must not be built on `device`, SetupError where that is
    only a package which this machine lacks."""
    for name, plan in plans.items():
        found = sorted(check(plan, device), key=lambda violation: violation.of_machine)
        for violation in found:
            if violation.of_machine:
                raise SetupError(f"{name} cannot run here: {violation.where}: {violation.message}")
            raise PlanError(f"{name} must not run at M {plan.shape.m}, KV {plan.shape.kv}: {violation}")


def verify_all(bench: Bench, plans: Mapping[str, Plan]) -> None:
    """Raises CandidateError where one of `plans` fails or gives wrong results: none is timed then."""
    for name, plan in plans.items():
        if wrong := bench.verify(plan):
            status = wrong.partition(":")[0]
            raise CandidateError(status if status in list(Status) else Status.WRONG_RESULT, f"{name}: {wrong}")
