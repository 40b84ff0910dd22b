"""What a miss says: what was asked and what is stored, where `entries` passed every check before and none this one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from mktune.runtime.checks import Asked, refused
from mktune.runtime.entries import Entry
from mktune.runtime.fit import misfit
from mktune.shape import MAX_KV, MAX_M
from mktune.trial import short_build

Explain: TypeAlias = Callable[[list[Entry], Asked], str]


def _not_known(entries: list[Entry], asked: Asked) -> str:
    return f"plans for workload {asked.request.workload!r} are stored, but this mktune does not have it"


def _no_contract(entries: list[Entry], asked: Asked) -> str:
    known = ", ".join(str(number) for number in sorted({entry.contract for entry in entries}))
    version, _ = asked.implemented or (0, "")
    return f"no plan for contract {version} of {asked.request.workload}; stored: {known}; tune again"


def _no_layout(entries: list[Entry], asked: Asked) -> str:
    known = ", ".join(sorted({entry.scale_format for entry in entries}))
    _, scales = asked.implemented or (0, "")
    return f"no plan for {asked.request.workload} with scale_format {scales}; stored: {known}; tune it with that one"


def _no_ops(entries: list[Entry], asked: Asked) -> str:
    known = sorted({entry.ops for entry in entries})
    elsewhere = asked.plans.gpus(asked.request.workload, asked.request.ops)
    others = f"; for {', '.join(elsewhere)} these ops are stored" if elsewhere else ""
    wanted = ",".join(asked.request.ops or ())
    return f"no plan for ops {wanted} on {asked.request.gpu}; stored: {' or '.join(known)}{others}"


def _no_device(entries: list[Entry], asked: Asked) -> str:
    device = asked.request.device
    assert device is not None
    known = " or ".join(sorted({entry.kind for entry in entries}))
    capability = asked.request.compute_capability or "unknown"
    return f"no plan for {device.name} with {device.sms} SMs, {capability}; stored for one with {known}"


def _no_shape(entries: list[Entry], asked: Asked) -> str:
    shape = f"M={asked.request.m} KV={asked.request.kv} with {asked.request.tokens_per_request} tokens per request"
    if asked.request.m > MAX_M or asked.request.kv > MAX_KV:
        return f"{shape} is beyond what is tuned (M up to {MAX_M}, KV up to {MAX_KV})"
    known = sorted({(e.m_low, e.m_high, e.kv_low, e.kv_high, e.tokens_per_request) for e in entries})
    near = [f"M {rows(*held[:2], held[4])} KV {span(*held[2:4])} with {held[4]}" for held in known[:6]]
    more = f" and {len(known) - 6} more" if len(known) > 6 else ""
    return f"no plan for {shape}; stored: {'; '.join(near)}{more}"


def rows(low: int, high: int, tokens: int) -> str:
    """The M from `low` to `high` that are whole requests of so many tokens: "40, 48, 56, 64"."""
    served = [str(m) for m in range(low, high + 1) if m % tokens == 0]
    return ", ".join([*served[:2], "…", served[-1]] if len(served) > 4 else served)


def span(low: int, high: int) -> str:
    """ "9–16", or the one number."""
    return str(low) if low == high else f"{low}–{high}"


def _only_simulated(entries: list[Entry], asked: Asked) -> str:
    return "only simulated plans are stored for this; ask with allow_simulated (--allow-simulated) to get one"


def _damaged(entries: list[Entry], asked: Asked) -> str:
    return f"what is stored for this in {entries[0].where} is damaged; the log says how"


def _other_policy(entries: list[Entry], asked: Asked) -> str:
    return "the plans for this were measured with warm weights or inputs that are not random: tune again"


def _other_kernels(entries: list[Entry], asked: Asked) -> str:
    stored = ", ".join(sorted({short_build(_fingerprints(entry)) or "unknown" for entry in entries}))
    here = short_build(asked.plans.build_of(entries[0].plan)) or "none"
    return f"the plans were measured with other kernel sources ({stored}; here {here}): tune again"


def _fingerprints(entry: Entry) -> str:
    assert entry.winner is not None
    return entry.winner.fingerprint.kernels


def _other(field: str) -> Explain:
    def explain(entries: list[Entry], asked: Asked) -> str:
        listed = "; ".join(sorted({str(one) for e in entries for one in refused(e, asked) if one.field == field}))
        return f"the plans were measured with {listed}: tune again, or open the book with accept=({field!r},)"

    return explain


def _no_fit(entries: list[Entry], asked: Asked) -> str:
    return f"plan {entries[0].plan.short_id} does not fit what was asked: {misfit(entries[0], asked.request)}"


EXPLANATIONS: Mapping[str, Explain] = {
    "workload": _not_known,
    "contract": _no_contract,
    "layout": _no_layout,
    "ops": _no_ops,
    "device": _no_device,
    "shape": _no_shape,
    "simulated": _only_simulated,
    "store": _damaged,
    "policy": _other_policy,
    "build": _other_kernels,
    "driver": _other("driver"),
    "cuda": _other("cuda"),
    "packages": _other("packages"),
    "constraints": _no_fit,
}
"""Reason of the miss → what to say."""
