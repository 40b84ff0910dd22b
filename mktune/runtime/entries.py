"""Stored plans as a book holds them: the columns of their key at once, the rest parsed when it is about to be served.

Opening ten thousand plans must not cost ten thousand parsers; serving one must not touch the disk. So the text of every
plan is read when the book is opened, and parsed at the first look-up that comes to it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from mktune import strict_json
from mktune.errors import InputError
from mktune.plan import Plan
from mktune.records import winner_from_dict
from mktune.runtime.log import warn
from mktune.trial import Winner

Source: TypeAlias = Literal["store", "bundle"]

_RANGES = re.compile(r'"kv_range": ?\[(\d{1,9}), ?(\d{1,9})\],\s*"m_range": ?\[(\d{1,9}), ?(\d{1,9})\]')
Ranges: TypeAlias = tuple[int, int, int, int]
_NOTHING: Ranges = (1, 0, 1, 0)


class Row(NamedTuple):
    """The key of a stored plan, as the columns of `mktune_plans` have it, and all of it as JSON or as a value.

    The columns are what a store wrote beside the document; `Entry.winner` holds them against it.
    """

    workload: str
    gpu: str
    tokens_per_request: int
    contract: int
    scale_format: str
    ops: str
    requests: int
    kv: int
    sms: int
    compute_capability: str
    simulated: bool
    document: str | Winner

    @classmethod
    def of(cls, winner: Winner, document: str | None = None) -> Row:
        """The row of `winner`."""
        plan, gpu = winner.plan, winner.fingerprint
        return cls(
            plan.workload,
            gpu.gpu,
            plan.shape.tokens_per_request,
            plan.contract,
            plan.scale_format,
            ",".join(sorted(plan.op_names)),
            plan.shape.requests,
            plan.shape.kv,
            gpu.sms,
            gpu.compute_capability,
            winner.measurement.policy.simulated,
            winner if document is None else document,
        )


@dataclass(frozen=True)
class Reading:
    """What one place gave.

    rows    plain tuples in the order of `Row`: of ten thousand, only what look-ups need becomes entries
    where   the place, for messages
    note    one line for people where it gave no plans
    failed  it could not be read, which need not last
    """

    rows: Sequence[tuple[Any, ...]]
    source: Source
    where: str
    note: str = ""
    failed: bool = False


_TYPES = (str, str, int, int, str, str, int, int, int, str)


def is_row(raw: tuple[object, ...]) -> bool:
    """Whether the columns of a key are of the types of `Row`: a database may hold anything."""
    return tuple(map(type, raw[:10])) == _TYPES and isinstance(raw[10], int) and isinstance(raw[11], str | Winner)


class Entry:
    """One stored plan: its row, where it came from, and the least and greatest M and KV that it states."""

    __slots__ = ("_parsed", "_winner", "m", "ranges", "row", "source", "where")

    def __init__(self, row: Row, source: Source, where: str) -> None:
        self.row, self.source, self.where = row, source, where
        self.m = row.requests * row.tokens_per_request
        self._winner = row.document if isinstance(row.document, Winner) else None
        self._parsed = self._winner is not None
        self.ranges = self._find_ranges()

    @property
    def winner(self) -> Winner | None:
        """All of it. None where it cannot be read or is not what its row says, which is logged once."""
        if not self._parsed:
            self._winner = self._parse()
            self._parsed = True
        return self._winner

    @property
    def plan(self) -> Plan:
        """Of an entry that is whole."""
        assert self.winner is not None
        return self.winner.plan

    @property
    def kind(self) -> str:
        """What tells GPUs of one name apart, in words."""
        return f"{self.row.sms} SMs of compute capability {self.row.compute_capability}"

    def holds_m(self, m: int) -> bool:
        """Whether the stated range holds M."""
        return self.ranges[0] <= m <= self.ranges[1]

    def holds_kv(self, kv: int) -> bool:
        """Whether the stated range holds KV."""
        return self.ranges[2] <= kv <= self.ranges[3]

    def _find_ranges(self) -> Ranges:
        stated = _stated(self.row.document) if isinstance(self.row.document, str) else None
        if stated is None:  # a value, or a text that mktune did not write: only parsing tells
            return _ranges_of(self.winner.plan) if self.winner else _NOTHING
        return stated

    def _parse(self) -> Winner | None:
        text = self.row.document
        assert isinstance(text, str)
        try:
            winner = winner_from_dict(strict_json.loads(text, self.where), self.where)
            if Row.of(winner, text) != self.row or _stated(text) not in (None, _ranges_of(winner.plan)):
                raise InputError(f"{self.where}: plan {winner.plan.short_id} is not what its row says")
            return winner
        except InputError as error:
            warn(f"{error}; this plan is not used")
            return None


def _stated(document: str) -> Ranges | None:
    """The ranges in a document as mktune writes it, found without parsing it; None where they are not found.

    The quoted names cannot stand in a text of the document, where a quote has a backslash before it.
    """
    found = _RANGES.match(document, document.find('"kv_range":'))
    if found is None:
        return None
    kv_low, kv_high, m_low, m_high = map(int, found.groups())
    return m_low, m_high, kv_low, kv_high


def _ranges_of(plan: Plan) -> Ranges:
    return (*plan.m_range, *plan.kv_range)
