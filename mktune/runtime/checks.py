"""What a plan must hold to answer a request, in the order of asking.

The first checks need a plan's row alone; from "store" on the plan itself is read, of those few that are left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from mktune.errors import InputError
from mktune.runtime.entries import Entry
from mktune.runtime.fit import misfit
from mktune.runtime.plans import Plans
from mktune.runtime.request import Request
from mktune.runtime.versions import Difference, differences
from mktune.shape import MAX_KV, MAX_M


@dataclass(frozen=True)
class Asked:
    """A request to a book, and which checked fields may differ."""

    request: Request
    plans: Plans
    accept: frozenset[str]

    @cached_property
    def gpu(self) -> str:
        """The GPU whose plans may answer: the request's own, or where that has none in the workload, its alias's."""
        request, aliases = self.request, self.plans.terms.aliases
        if request.gpu not in aliases or self.plans.has(request.workload, request.gpu):
            return request.gpu
        return aliases[request.gpu]

    @cached_property
    def implemented(self) -> tuple[int, str] | None:
        """The contract version that this mktune implements, and the scale format that is asked for or else the
        workload's own; None for a workload that it does not know."""
        from mktune.graph.workload import workload as find

        try:
            found = find(self.request.workload)
        except InputError:
            return None
        return found.contract, self.request.scale_format or found.scale_format


Check: TypeAlias = Callable[[Entry, Asked], bool]


def _is_known(entry: Entry, asked: Asked) -> bool:
    return asked.implemented is not None


def _has_contract(entry: Entry, asked: Asked) -> bool:
    return asked.implemented is not None and entry.contract == asked.implemented[0]


def _has_layout(entry: Entry, asked: Asked) -> bool:
    return asked.implemented is not None and entry.scale_format == asked.implemented[1]


def _has_ops(entry: Entry, asked: Asked) -> bool:
    return asked.request.ops is None or entry.ops == ",".join(asked.request.ops)


def _has_device(entry: Entry, asked: Asked) -> bool:
    device = asked.request.device
    if device is None:
        return True
    return 0 < entry.sms == device.sms and "" != entry.compute_capability == asked.request.compute_capability


def _has_shape(entry: Entry, asked: Asked) -> bool:
    m, kv = asked.request.m, asked.request.kv
    held = entry.m_low <= m <= entry.m_high and entry.kv_low <= kv <= entry.kv_high
    return held and entry.tokens_per_request == asked.request.tokens_per_request and m <= MAX_M and kv <= MAX_KV


def _may_be_served(entry: Entry, asked: Asked) -> bool:
    return asked.request.allow_simulated or not entry.simulated


def _is_whole(entry: Entry, asked: Asked) -> bool:
    return entry.winner is not None


def has_policy(entry: Entry, asked: Asked) -> bool:
    assert entry.winner is not None
    policy = entry.winner.measurement.policy
    return policy.cold and policy.inputs == "random"


def differing(entry: Entry, asked: Asked) -> tuple[Difference, ...]:
    """What of the checked fields differs between a whole entry and here."""
    assert entry.winner is not None
    return differences(entry.winner, asked.plans.build_of(entry.plan), asked.request.device)


def refused(entry: Entry, asked: Asked) -> list[Difference]:
    """Those of `differing` that are not accepted."""
    return [found for found in differing(entry, asked) if found.field not in asked.accept]


def _same(field: str) -> Check:
    def same(entry: Entry, asked: Asked) -> bool:
        return all(found.field != field for found in refused(entry, asked))

    return same


def _fits(entry: Entry, asked: Asked) -> bool:
    return not misfit(entry, asked.request)


OF_ROWS: tuple[tuple[str, Check], ...] = (
    ("workload", _is_known),
    ("contract", _has_contract),
    ("layout", _has_layout),
    ("ops", _has_ops),
    ("device", _has_device),
    ("shape", _has_shape),
    ("simulated", _may_be_served),
)
"""(reason of a miss where no entry holds it, does the entry hold it)"""
OF_PLANS: tuple[tuple[str, Check], ...] = (
    ("store", _is_whole),
    ("policy", has_policy),
    ("packages", _same("packages")),  # before "build": kernels of a package that is not here are other kernels too
    ("build", _same("kernels")),
    ("driver", _same("driver")),
    ("cuda", _same("cuda")),
    ("constraints", _fits),
)
"""As `OF_ROWS`; each may rely on those before it."""
