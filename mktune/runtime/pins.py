"""Pins: a book that gives the plans of some ids, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mktune import packed
from mktune.errors import InputError
from mktune.runtime.entries import Entry, Reading, is_row

_SHORTEST = 4


def pinned(readings: Sequence[Reading], pins: Sequence[str]) -> list[Reading]:
    """`readings` with the plans whose ids begin as one of `pins` does.

    Raises InputError for a pin that is no such beginning, or one of several plans.
    """
    starts = [_checked(pin) for pin in pins]
    found: dict[str, set[str]] = {start: set() for start in starts}
    kept = []
    for reading in readings:
        rows = []
        for raw in reading.rows:
            plan_id = _id_if_any(raw, reading, starts)
            for start in starts:
                if plan_id.startswith(start):
                    found[start].add(plan_id)
                    rows.append(raw)
                    break
        kept.append(replace(reading, rows=rows))
    for start, ids in found.items():
        if len(ids) > 1:
            listed = ", ".join(sorted(plan_id[:16] for plan_id in ids)[:5])
            raise InputError(f"{len(ids)} plans start with {start!r}: {listed}; add digits to the pin")
    return kept


def _checked(pin: str) -> str:
    start = pin.strip().lower()
    if len(start) < _SHORTEST or not set(start) <= set("0123456789abcdef"):
        raise InputError(f"a pin is at least {_SHORTEST} hexadecimal digits of a plan's id, not {pin!r}")
    return start


def _id_if_any(raw: tuple[Any, ...], reading: Reading, starts: Sequence[str]) -> str:
    """The id of the plan, or nothing where it holds none of `starts`: then it need not be parsed."""
    if not is_row(raw) or not _may_hold(raw[-1], starts, reading.where):
        return ""
    winner = Entry(raw, reading.source, reading.where).winner
    return winner.plan.plan_id if winner else ""


def _may_hold(document: Any, starts: Sequence[str], where: str) -> bool:
    """Whether one of `starts` stands anywhere in a document; of a value, or a damaged one, only the plan tells."""
    if isinstance(document, bytes):
        try:
            text = packed.unpack(document, where)
        except InputError:
            return True
        return any(start.encode() in text for start in starts)
    return not isinstance(document, str) or any(start in document for start in starts)
