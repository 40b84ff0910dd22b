"""Which stored plan answers a request. The checks run in a fixed order; the first that nothing passes is the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from mktune.errors import InputError, MktuneError
from mktune.gpu_name import normalise_gpu
from mktune.plan import Plan
from mktune.runtime.request import Request
from mktune.runtime.result import Hit, Miss
from mktune.shape import MAX_KV, MAX_M
from mktune.trial import Winner


@dataclass(frozen=True)
class Entry:
    """One stored plan and where it came from."""

    winner: Winner
    source: Literal["store", "bundle"]

    @property
    def plan(self) -> Plan:
        return self.winner.plan

    @cached_property
    def gpu(self) -> str:
        return normalise_gpu(self.winner.fingerprint.gpu)

    @property
    def simulated(self) -> bool:
        return self.winner.measurement.policy.simulated

    @cached_property
    def ranges(self) -> tuple[int, int, int, int]:
        """Least and greatest M, least and greatest KV."""
        return (*self.plan.m_range, *self.plan.kv_range)

    def holds(self, m: int, kv: int) -> bool:
        """Whether the plan's own ranges hold M and KV."""
        low, high, kv_low, kv_high = self.ranges
        return low <= m <= high and kv_low <= kv <= kv_high


class Rules:
    """What a book knows besides a request: its plans by workload and GPU, aliases, and which build is its own.

    notes  why a place gave no plans, for messages
    """

    def __init__(self, notes: str, aliases: Mapping[str, str], any_build: bool, entries: Sequence[Entry]) -> None:
        self.notes = notes
        self.aliases = dict(aliases)
        self.any_build = any_build
        self.by_workload: dict[str, list[Entry]] = {}
        self.by_gpu: dict[tuple[str, str], list[Entry]] = {}
        self.by_tokens: dict[tuple[str, str, int], list[Entry]] = {}
        for entry in entries:
            self.by_workload.setdefault(entry.plan.workload, []).append(entry)
            self.by_gpu.setdefault((entry.plan.workload, entry.gpu), []).append(entry)
            tokens = entry.plan.shape.tokens_per_request
            self.by_tokens.setdefault((entry.plan.workload, entry.gpu, tokens), []).append(entry)

        self._builds: dict[tuple[str, tuple[str, ...]], str] = {}

    def build_of(self, plan: Plan) -> str:
        """What this package compiles the plan's kernels from, as in `Fingerprint.kernels`; "none" without kernels."""
        from mktune.jit.fingerprint import kernels_fingerprint

        key = (plan.workload, plan.op_names)
        if key not in self._builds:
            try:
                self._builds[key] = kernels_fingerprint(*key)
            except MktuneError:  # a workload, an op or a kernel that this mktune does not have
                self._builds[key] = "none"
        return self._builds[key]

    def same_build(self, entry: Entry) -> bool:
        """True where the plan's span is that of this package's kernels (a model's span never depends on them)."""
        return entry.simulated or entry.winner.fingerprint.kernels == self.build_of(entry.plan)


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
        known = ", ".join(sorted({entry.winner.fingerprint.gpu for entry in rules.by_workload[request.workload]}))
        return Miss("device", f"no plan for {request.gpu}; stored for {request.workload}: {known}")
    return _check(entries, request, rules, alias)


def _check(entries: list[Entry], request: Request, rules: Rules, alias: str) -> Hit | Miss:
    for reason, passes, explain in _CHECKS:
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
    kinds = sorted({_kind(entry) for entry in entries})
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


def _kind(entry: Entry) -> str:
    fingerprint = entry.winner.fingerprint
    return f"{fingerprint.sms} SMs of compute capability {fingerprint.compute_capability}"


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
    return f"no plan for ops {','.join(request.ops or ())}; stored: {' or '.join(known)}"


def _no_device(entries: list[Entry], request: Request, rules: Rules) -> str:
    asked = request.device
    assert asked is not None
    known = " or ".join(sorted({_kind(entry) for entry in entries}))
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
_CHECKS: tuple[tuple[str, Check, Explain], ...] = (
    ("contract", _has_contract, _no_contract),
    ("ops", _has_ops, _no_ops),
    ("device", _has_device, _no_device),
    ("shape", _has_shape, _no_shape),
    ("simulated", _may_be_served, _only_simulated),
    ("build", _has_build, _no_build),
)
