"""What a plan must hold to answer a request, in the order of asking, and what a miss says where none holds it."""

from __future__ import annotations

from collections.abc import Callable

from mktune.errors import InputError
from mktune.runtime.entries import Entry, Rules
from mktune.runtime.request import Request
from mktune.shape import MAX_KV, MAX_M


def _contract_of(workload: str) -> tuple[int, str] | None:
    """Contract version and scale format that this mktune implements; None for a workload that it does not know."""
    from mktune.graph.workload import workload as find

    try:
        found = find(workload)
    except InputError:
        return None
    return found.contract, found.scale_format


def _has_contract(entry: Entry, request: Request, rules: Rules) -> bool:
    return _contract_of(request.workload) in (None, (entry.plan.contract, entry.plan.scale_format))


def _has_ops(entry: Entry, request: Request, rules: Rules) -> bool:
    return request.ops is None or tuple(sorted(entry.plan.op_names)) == request.ops


def _has_device(entry: Entry, request: Request, rules: Rules) -> bool:
    fingerprint, device = entry.winner.fingerprint, request.device
    if device is None:
        return True
    return fingerprint.sms == device.sms and fingerprint.compute_capability == device.compute_capability


def _has_shape(entry: Entry, request: Request, rules: Rules) -> bool:
    return entry.plan.shape.tokens_per_request == request.tokens_per_request and entry.holds(request.m, request.kv)


def _may_be_served(entry: Entry, request: Request, rules: Rules) -> bool:
    return request.allow_simulated or not entry.simulated


def _has_build(entry: Entry, request: Request, rules: Rules) -> bool:
    return rules.any_build or rules.same_build(entry)


def _no_contract(entries: list[Entry], request: Request, rules: Rules) -> str:
    known = sorted({f"{entry.plan.contract} {entry.plan.scale_format}" for entry in entries})
    version, scales = _contract_of(request.workload) or (0, "")
    return f"no plan for contract {version} {scales} of {request.workload}; stored: {', '.join(known)}; tune again"


def _no_ops(entries: list[Entry], request: Request, rules: Rules) -> str:
    known = sorted({",".join(entry.plan.op_names) for entry in entries})
    elsewhere = gpus_with_ops(request, rules)
    others = f"; for {', '.join(elsewhere)} these ops are stored" if elsewhere else ""
    return f"no plan for ops {','.join(request.ops or ())} on {request.gpu}; stored: {' or '.join(known)}{others}"


def gpus_with_ops(request: Request, rules: Rules) -> list[str]:
    """The GPUs that some plan for the request's ops (None: any) is stored for, by name."""
    entries = rules.by_workload.get(request.workload, ())
    return sorted({entry.winner.fingerprint.gpu for entry in entries if _has_ops(entry, request, rules)})


def _no_device(entries: list[Entry], request: Request, rules: Rules) -> str:
    asked = request.device
    assert asked is not None
    known = " or ".join(sorted({entry.kind for entry in entries}))
    return f"no plan for {asked.name} with {asked.sms} SMs, {asked.compute_capability}; stored for one with {known}"


def _no_shape(entries: list[Entry], request: Request, rules: Rules) -> str:
    asked = f"M={request.m} KV={request.kv} with {request.tokens_per_request} tokens per request"
    if request.m > MAX_M or request.kv > MAX_KV:
        return f"{asked} is beyond what is tuned (M up to {MAX_M}, KV up to {MAX_KV})"
    known = sorted({(e.plan.m_range, e.plan.kv_range, e.plan.shape.tokens_per_request) for e in entries})
    near = [f"M {_range(m)} KV {_range(kv)} with {tokens}" for m, kv, tokens in known[:6]]
    more = f" and {len(known) - 6} more" if len(known) > 6 else ""
    return f"no plan for {asked}; stored: {'; '.join(near)}{more}"


def _range(ends: tuple[int, int]) -> str:
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]}–{ends[1]}"


def _only_simulated(entries: list[Entry], request: Request, rules: Rules) -> str:
    return "only simulated plans are stored for this; ask with allow_simulated (--allow-simulated) to get one"


def _no_build(entries: list[Entry], request: Request, rules: Rules) -> str:
    stored = ", ".join(sorted({entry.winner.fingerprint.kernels[:12] or "unknown" for entry in entries}))
    here = rules.build_of(entries[0].plan)[:12]
    return f"the plans were measured with other kernel sources ({stored}; here {here}): tune again"


Check = Callable[[Entry, Request, Rules], bool]
Explain = Callable[[list[Entry], Request, Rules], str]
CHECKS: tuple[tuple[str, Check, Explain], ...] = (
    ("contract", _has_contract, _no_contract),
    ("ops", _has_ops, _no_ops),
    ("device", _has_device, _no_device),
    ("shape", _has_shape, _no_shape),
    ("simulated", _may_be_served, _only_simulated),
    ("build", _has_build, _no_build),
)
"""(reason of the miss, does the entry hold it, what to say where no entry does)"""
