"""What a missed request differs in from the stored plan that is most like it, field by field of the key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from mktune.gpu_name import normalise_gpu
from mktune.runtime.checks import Asked, has_policy, refused
from mktune.runtime.entries import Entry
from mktune.runtime.explanations import span
from mktune.runtime.fit import misfit
from mktune.runtime.plans import Plans
from mktune.runtime.request import Request

Field: TypeAlias = tuple[str, object, object]
"""Name, what was asked, what is stored."""

# fmt: off
FIELDS = (
    "workload", "contract", "scale_format", "ops", "gpu", "sms", "compute_capability", "tokens_per_request", "m", "kv",
    "simulated",
)
# fmt: on
"""The key's fields in the order of comparing."""


def nearest(request: Request, plans: Plans) -> str:
    """One line: what the request differs in from the plan that agrees with it in the most fields, from the first on."""
    asked = Asked(request, plans, plans.terms.accept)
    entries = [(entry, list(_of_row(entry, asked))) for entry in plans.everything()]
    if not entries:
        return "the book has no plan to compare with"
    entry, fields = min(entries, key=lambda pair: _rank(pair[0], pair[1], request))
    shown = [f"{name}: asked {wanted}, stored {stored}" for name, wanted, stored in fields] or _of_plan(entry, asked)
    return f"nearest is {_name(entry)}, which differs in {'; '.join(shown)}"


def _rank(entry: Entry, fields: list[Field], request: Request) -> tuple[int, ...]:
    agreed = FIELDS.index(fields[0][0]) if fields else len(FIELDS)
    return -agreed, len(fields), abs(entry.m - request.m), abs(entry.kv - request.kv)


def _name(entry: Entry) -> str:
    at = f"of M={entry.m} KV={entry.kv} on {entry.gpu}"
    return f"plan {entry.plan.short_id} {at}" if entry.winner else f"a damaged plan {at}"


def _of_row(entry: Entry, asked: Asked) -> Iterator[Field]:
    """The fields that differ, in the order of `FIELDS`."""
    request = asked.request
    contract, scales = asked.implemented or ("unknown", "unknown")
    device = request.device
    pairs: list[tuple[str, object, object, bool]] = [
        ("workload", request.workload, entry.workload, request.workload == entry.workload),
        ("contract", contract, entry.contract, contract == entry.contract),
        ("scale_format", scales, entry.scale_format, scales == entry.scale_format),
        ("ops", ",".join(request.ops or ()), entry.ops, request.ops is None or ",".join(request.ops) == entry.ops),
        ("gpu", request.gpu, entry.gpu, asked.gpu == normalise_gpu(entry.gpu)),
        ("sms", device and device.sms, entry.sms, device is None or device.sms == entry.sms),
        (
            "compute_capability",
            request.compute_capability or "unknown",
            entry.compute_capability,
            device is None or request.compute_capability == entry.compute_capability,
        ),
        (
            "tokens_per_request",
            request.tokens_per_request,
            entry.tokens_per_request,
            request.tokens_per_request == entry.tokens_per_request,
        ),
        ("m", request.m, span(entry.m_low, entry.m_high), entry.m_low <= request.m <= entry.m_high),
        ("kv", request.kv, span(entry.kv_low, entry.kv_high), entry.kv_low <= request.kv <= entry.kv_high),
        ("simulated", "measured", "simulated", request.allow_simulated or not entry.simulated),
    ]
    return ((name, wanted, stored) for name, wanted, stored, equal in pairs if not equal)


def _of_plan(entry: Entry, asked: Asked) -> list[str]:
    """What speaks against a plan that agrees in every field of the key."""
    if entry.winner is None:
        return ["that it cannot be read"]
    found = [str(difference) for difference in refused(entry, asked)]
    found += ["its measurement policy"] if not has_policy(entry, asked) else []
    wrong = misfit(entry, asked.request)
    return found + ([wrong] if wrong else [])
