"""Stored plans as a book holds them: the columns of their key at once, the rest parsed when it is about to be served.

Opening ten thousand plans must not cost ten thousand parsers; serving one must not touch the disk. So all of every plan
is read when the book is opened, as it is stored, and unpacked and parsed at the first look-up that comes to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from mktune.errors import InputError
from mktune.runtime.log import warn

if TYPE_CHECKING:
    from mktune.plan import Plan
    from mktune.trial import Winner

Source: TypeAlias = Literal["store", "bundle"]

KEYS = 11
"""The first columns of `Row` are the key."""


class Row(NamedTuple):
    """The key of a stored plan and the ranges that it serves, in the columns of `mktune_plans`, and all of it.

    The columns are what a store wrote beside the document; `Entry.winner` holds them against it.

    m_low, m_high    rows that it states to serve
    kv_low, kv_high  the same for KV
    document         JSON, or as a store packs it (bytes), or a value
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
    m_low: int
    m_high: int
    kv_low: int
    kv_high: int
    document: str | bytes | Winner


def row_of(winner: Winner) -> Row:
    """The row of `winner`."""
    from mktune.records import winner_key, winner_ranges

    return Row(**(winner_key(winner) | winner_ranges(winner)), document=winner)


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


_KEY_TYPES = (str, str, int, int, str, str, int, int, int, str)  # and whether it is simulated: SQLite has no bool
_RANGE_TYPES = (int, int, int, int)


def is_row(raw: tuple[Any, ...]) -> bool:
    """Whether the columns are of the types of `Row`: a database may hold anything."""
    document = raw[-1]
    typed = tuple(map(type, raw[: KEYS - 1])) == _KEY_TYPES and isinstance(raw[KEYS - 1], int)
    ranged = tuple(map(type, raw[KEYS:-1])) == _RANGE_TYPES
    return typed and ranged and (isinstance(document, str | bytes) or hasattr(document, "plan"))


class Entry:
    """One stored plan: the columns of its `Row`, where it came from, and the rows `m` that it was tuned at."""

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
    m_low: int
    m_high: int
    kv_low: int
    kv_high: int
    document: Any

    __slots__ = (*Row._fields, "_parsed", "_winner", "m", "source", "where")

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
            self.m_low,
            self.m_high,
            self.kv_low,
            self.kv_high,
            self.document,
        ) = raw
        self.source, self.where = source, where
        self.m = self.requests * self.tokens_per_request
        self._parsed = not isinstance(self.document, str | bytes)
        self._winner: Winner | None = self.document if self._parsed else None

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

    def _parse(self) -> Winner | None:
        from mktune import packed, strict_json
        from mktune.records import winner_from_dict

        try:
            text = self.document if isinstance(self.document, str) else packed.unpack(self.document, self.where)
            winner = winner_from_dict(strict_json.loads(text, self.where), self.where)
            row = row_of(winner)
            if any(getattr(self, name) != getattr(row, name) for name in Row._fields[:-1]):
                raise InputError(f"{self.where}: plan {winner.plan.short_id} is not what its row says")
            return winner
        except InputError as error:
            warn(f"{error}; this plan is not used")
            return None
