"""Stored plans as a book holds them: the columns of their key at once, the rest parsed when it is about to be served.

Opening ten thousand plans must not cost ten thousand parsers; serving one must not touch the disk. So the text of every
plan is read when the book is opened, and parsed at the first look-up that comes to it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from mktune.errors import InputError
from mktune.runtime.log import warn

if TYPE_CHECKING:
    from mktune.plan import Plan
    from mktune.trial import Winner

Source: TypeAlias = Literal["store", "bundle"]

_RANGES = r'"kv_range": ?\[(\d{1,9}), ?(\d{1,9})\],\s*"m_range": ?\[(\d{1,9}), ?(\d{1,9})\]'
_IN_TEXT, _IN_BYTES = re.compile(_RANGES), re.compile(_RANGES.encode())
Ranges: TypeAlias = tuple[int, int, int, int]
_NOTHING: Ranges = (1, 0, 1, 0)


class Row(NamedTuple):
    """The key of a stored plan, as the columns of `mktune_plans` have it, and all of it as JSON or as a value.

    The columns are what a store wrote beside the document; `Entry.winner` holds them against it. JSON is text, or the
    bytes of it where nobody has looked at them yet.
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
    document: str | bytes | Winner


def row_of(winner: Winner) -> Row:
    """The row of `winner`."""
    from mktune.records import winner_key

    return Row(**winner_key(winner), document=winner)


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


def is_row(raw: tuple[Any, ...]) -> bool:
    """Whether the columns are of the types of `Row`: a database may hold anything."""
    document = raw[11]
    typed = tuple(map(type, raw[:10])) == _TYPES and isinstance(raw[10], int)
    return typed and (isinstance(document, str | bytes) or hasattr(document, "plan"))


class Entry:
    """One stored plan: the columns of its row, where it came from, and the ranges that it states.

    m                       rows that it was tuned at
    m_low, m_high           rows that it states to serve; none where it cannot be read
    kv_low, kv_high         the same for KV
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
    document: Any

    __slots__ = (*Row._fields, "_parsed", "_winner", "kv_high", "kv_low", "m", "m_high", "m_low", "source", "where")

    def __init__(self, raw: tuple[Any, ...], source: Source, where: str) -> None:
        (
            self.workload,
            self.gpu,
            self.tokens_per_request,
            self.contract,
            self.scale_format,
            self.ops,
            self.requests,
            self.kv,
            self.sms,
            self.compute_capability,
            self.simulated,
            self.document,
        ) = raw
        self.source, self.where = source, where
        self.m = self.requests * self.tokens_per_request
        self._parsed = not isinstance(self.document, str | bytes)
        self._winner: Winner | None = self.document if self._parsed else None
        self.m_low, self.m_high, self.kv_low, self.kv_high = self._find_ranges()

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
        return f"{self.sms} SMs of compute capability {self.compute_capability}"

    def _find_ranges(self) -> Ranges:
        stated = None if self._parsed else _stated(self.document)
        if stated is None:  # a value, or a text that mktune did not write: only parsing tells
            return _ranges_of(self.winner.plan) if self.winner else _NOTHING
        return stated

    def _parse(self) -> Winner | None:
        from mktune import strict_json
        from mktune.records import winner_from_dict

        try:
            winner = winner_from_dict(strict_json.loads(self.document, self.where), self.where)
            row, stated = row_of(winner), _stated(self.document)
            same = all(getattr(self, name) == getattr(row, name) for name in Row._fields[:-1])
            if not same or stated not in (None, _ranges_of(winner.plan)):
                raise InputError(f"{self.where}: plan {winner.plan.short_id} is not what its row says")
            return winner
        except InputError as error:
            warn(f"{error}; this plan is not used")
            return None


def _stated(document: str | bytes) -> Ranges | None:
    """The ranges in a document as mktune writes it, found without parsing it; None where they are not found.

    The quoted names cannot stand in a text of the document, where a quote has a backslash before it.
    """
    if isinstance(document, str):
        found: re.Match[Any] | None = _IN_TEXT.match(document, document.find('"kv_range":'))
    else:
        found = _IN_BYTES.match(document, document.find(b'"kv_range":'))
    if found is None:
        return None
    kv_low, kv_high, m_low, m_high = map(int, found.groups())
    return m_low, m_high, kv_low, kv_high


def _ranges_of(plan: Plan) -> Ranges:
    return (*plan.m_range, *plan.kv_range)
