"""Which stored plan answers a request.

A plan may answer where everything in `checks` holds for it. Of those that may the answer is the one with

1. nothing that differs from here (see `versions`), before what the book was opened to accept;
2. the most ops, where the request names none;
3. a measured span, before a modelled one;
4. the smallest tuned M that covers the request's; where none does, the largest below it;
5. the smallest tuned KV that covers the request's; where none does, the largest below it;
6. the nearest versions of what differs;
7. the user's store, before the plans that ship;
8. the shorter span, then the smaller id.
"""

from __future__ import annotations

from itertools import groupby
from typing import TypeAlias

from mktune.runtime.checks import OF_PLANS, OF_ROWS, Asked, differing
from mktune.runtime.entries import Entry
from mktune.runtime.explanations import EXPLANATIONS
from mktune.runtime.plans import Plans
from mktune.runtime.request import Request
from mktune.runtime.result import Hit, Miss
from mktune.runtime.versions import CHECKED
from mktune.shape import Shape

Preference: TypeAlias = tuple[int | bool, ...]


def match(request: Request, plans: Plans) -> Hit | Miss:
    """The plan that answers `request`, or the miss."""
    # What the book accepts is looked at only where nothing is as it should be: accepting more changes no other answer.
    levels = dict.fromkeys((frozenset[str](), frozenset(CHECKED) if plans.terms.pins else plans.terms.accept))
    for accept in levels:
        asked = Asked(request, plans, accept)
        found = _find(asked)
        if found is not None:
            return found
    return _explain(asked)


def _find(asked: Asked) -> Hit | Miss | None:
    """What plans answer; None where none does. Parses no more plans than it must."""
    request = asked.request
    near = asked.plans.near((request.workload, asked.gpu, request.tokens_per_request), request.m)
    for _, holds in OF_ROWS:
        near = [entry for entry in near if holds(entry, asked)]
    near.sort(key=lambda entry: _preference(entry, request))
    for _, equals in groupby(near, key=lambda entry: _preference(entry, request)):
        answering = [entry for entry in equals if _answers(entry, asked)]
        if answering:
            best = min(answering, key=lambda entry: _tie(entry, asked))
            unclear = _ambiguous(best, near, asked)
            return _hit(best, asked) if unclear is None else unclear
    return None


def _answers(entry: Entry, asked: Asked) -> bool:
    return all(holds(entry, asked) for _, holds in OF_PLANS)


def _preference(entry: Entry, request: Request) -> Preference:
    """Smallest for the plan to serve, as far as its row tells."""
    m, kv = entry.m - request.m, entry.kv - request.kv
    return -entry.ops.count(","), bool(entry.simulated), m < 0, abs(m), kv < 0, abs(kv)


def _tie(entry: Entry, asked: Asked) -> tuple[object, ...]:
    """Smallest for the plan to serve among plans of one cell."""
    assert entry.winner is not None
    distances = tuple(found.distance for found in differing(entry, asked))
    return distances, entry.source != "store", entry.winner.measurement.span_us, entry.plan.plan_id


def _ambiguous(best: Entry, near: list[Entry], asked: Asked) -> Miss | None:
    """The miss where the request does not say which of several sets of ops, or kinds of GPU, it means."""
    rivals = {(best.ops, best.kind)}
    for entry in near:
        as_many = entry.ops.count(",") == best.ops.count(",")
        if as_many and (entry.ops, entry.kind) not in rivals and _answers(entry, asked):
            rivals.add((entry.ops, entry.kind))
    sets, kinds = (sorted(set(found)) for found in zip(*rivals, strict=True))
    if len(sets) > 1:
        return Miss("ops", f"several sets of ops are stored; give one: {' or '.join(sets)}")
    if len(kinds) > 1:
        return Miss("device", f"several kinds of {asked.request.gpu} are stored; give a Device: {' or '.join(kinds)}")
    return None


def _hit(entry: Entry, asked: Asked) -> Hit:
    request = asked.request
    assert entry.winner is not None
    shape = Shape(request.m // request.tokens_per_request, request.tokens_per_request, request.kv)
    differs = tuple(str(found) for found in differing(entry, asked))
    return Hit(entry.winner, entry.source, shape, differs, "" if asked.gpu == request.gpu else request.gpu)


def _explain(asked: Asked) -> Miss:
    """The first thing that no stored plan has."""
    request, plans = asked.request, asked.plans
    pins = f"pinned to {', '.join(plans.terms.pins)}: " if plans.terms.pins else ""
    if not plans.count:
        return Miss("pin", f"{pins}no such plan is in the book") if pins else Miss("store", _empty(plans))
    if request.workload not in plans.workloads:
        known = ", ".join(plans.workloads)
        return Miss("workload", f"{pins}no plan for workload {request.workload!r}; stored: {known}")
    entries = plans.of_gpu(request.workload, asked.gpu)
    if not entries:
        return Miss("device", f"{pins}{_no_gpu(request, plans)}")
    for reason, holds in (*OF_ROWS, *OF_PLANS):
        left = [entry for entry in entries if holds(entry, asked)]
        if not left:
            return Miss(reason, f"{pins}{EXPLANATIONS[reason](entries, asked)}")
        entries = left
    raise AssertionError(f"{request} has an answer")


def _empty(plans: Plans) -> str:
    return f"no plans are stored: {plans.notes}"


def _no_gpu(request: Request, plans: Plans) -> str:
    """Names the GPUs that have plans: for the ops that were asked for, else for any."""
    if request.ops is not None and (known := plans.gpus(request.workload, request.ops)):
        return (
            f"no plan for {request.gpu}; {','.join(request.ops)} of {request.workload} is stored for {', '.join(known)}"
        )
    known = plans.gpus(request.workload, None)
    return f"no plan for {request.gpu}; stored for {request.workload}: {', '.join(known)}"
