"""Which stored plan answers a request. The checks run in a fixed order; the first that nothing passes is the reason."""

from __future__ import annotations

from mktune.runtime.checks import CHECKS, gpus_with_ops
from mktune.runtime.entries import Entry, Rules
from mktune.runtime.request import Request
from mktune.runtime.result import Hit, Miss


def match(request: Request, rules: Rules) -> Hit | Miss:
    """The plan that answers `request`, or the miss."""
    key = (request.workload, request.gpu, request.tokens_per_request)
    near = [entry for entry in rules.by_tokens.get(key, ()) if entry.holds(request.m, request.kv)]
    if near:  # the common case goes through few plans; a miss looks at all of them for its reason
        found = _check(near, request, rules, "")
        if found:
            return found
    return _explain(request, rules)


def _explain(request: Request, rules: Rules) -> Hit | Miss:
    """As `match`, through every plan."""
    if not rules.by_workload:
        return Miss("store", f"no plans are stored: {rules.notes}")
    if request.workload not in rules.by_workload:
        known = ", ".join(sorted(rules.by_workload))
        return Miss("workload", f"no plan for workload {request.workload!r}; stored: {known}")
    alias, entries = _of_gpu(request, rules)
    if not entries:
        return Miss("device", _no_gpu(request, rules))
    return _check(entries, request, rules, alias)


def _no_gpu(request: Request, rules: Rules) -> str:
    """Names the GPUs that have plans: for the ops that were asked for, else for any."""
    if request.ops is not None and (known := gpus_with_ops(request, rules)):
        return (
            f"no plan for {request.gpu}; {','.join(request.ops)} of {request.workload} is stored for {', '.join(known)}"
        )
    known = sorted({entry.winner.fingerprint.gpu for entry in rules.by_workload[request.workload]})
    return f"no plan for {request.gpu}; stored for {request.workload}: {', '.join(known)}"


def _check(entries: list[Entry], request: Request, rules: Rules, alias: str) -> Hit | Miss:
    for reason, passes, explain in CHECKS:
        left = [entry for entry in entries if passes(entry, request, rules)]
        if not left:
            return Miss(reason, explain(entries, request, rules))
        entries = left
    return _choose(entries, request, rules, alias)


def _of_gpu(request: Request, rules: Rules) -> tuple[str, list[Entry]]:
    """The entries of the request's GPU, else of its alias (the first value says so)."""
    own = rules.by_gpu.get((request.workload, request.gpu), [])
    if own or request.gpu not in rules.aliases:
        return "", own
    return request.gpu, rules.by_gpu.get((request.workload, rules.aliases[request.gpu]), [])


def _choose(entries: list[Entry], request: Request, rules: Rules, alias: str) -> Hit | Miss:
    most = max(len(entry.plan.ops) for entry in entries)
    entries = [entry for entry in entries if len(entry.plan.ops) == most]
    sets = sorted({",".join(entry.plan.op_names) for entry in entries})
    if len(sets) > 1:
        return Miss("ops", f"several sets of ops are stored; give one: {' or '.join(sets)}")
    kinds = sorted({entry.kind for entry in entries})
    if len(kinds) > 1:
        return Miss("device", f"several kinds of {request.gpu} are stored; give a Device: {' or '.join(kinds)}")
    best = min(entries, key=lambda entry: _distance(entry, request))
    return Hit(best.winner, best.source, _differences(best, request, rules), alias)


def _distance(entry: Entry, request: Request) -> tuple[object, ...]:
    """Smallest for the plan to serve: measured, tuned for the smallest M and KV that cover the request, own store."""
    shape = entry.plan.shape
    return (
        entry.simulated,
        shape.m < request.m,
        abs(shape.m - request.m),
        shape.kv < request.kv,
        abs(shape.kv - request.kv),
        entry.source != "store",
        entry.winner.measurement.span_us,
        entry.plan.plan_id,
    )


def _differences(entry: Entry, request: Request, rules: Rules) -> tuple[str, ...]:
    """What may differ and does, for people."""
    stored, device = entry.winner.fingerprint, request.device
    found = []
    if device is not None:
        for name, was, here in (("driver", stored.driver, device.driver), ("CUDA", stored.cuda, device.cuda)):
            if was and here and was != here:
                found.append(f"{name} {was} (here {here})")
    if not rules.same_build(entry):
        found.append(f"kernels {stored.kernels[:12]} (here {rules.build_of(entry.plan)[:12]})")
    return tuple(found)
