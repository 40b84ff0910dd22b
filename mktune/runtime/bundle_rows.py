"""The plans of an exported JSON file as rows: each is parsed once for its key, and kept as text until it is served."""

from __future__ import annotations

import json
import re
from typing import Any

from mktune.bundle import KIND, SCHEMA_VERSION, parse_each
from mktune.errors import InputError
from mktune.runtime.entries import row_of
from mktune.runtime.log import warn
from mktune.trial import SIMULATED

_DECODER = json.JSONDecoder()  # what it takes beyond strict JSON is refused when the plan is about to be served
_HEAD = re.compile(rf'\s*\{{\s*"kind": ?"{KIND}",\s*"schema": ?{SCHEMA_VERSION},\s*"winners": ?\[\s*')
_COMMA = re.compile(r"\s*,\s*")
_END = re.compile(r"\s*\]\s*\}\s*\Z")


def read_rows(content: bytes, where: str) -> list[tuple[Any, ...]]:
    """The rows of the document, as `Row` has them. One wrong plan does not cost the others.

    Raises InputError where the document as a whole is wrong, as `mktune.bundle.parse_bundle` does.
    """
    try:
        return _as_written(content.decode())
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return _as_any(content, where)  # older, written by hand, or wrong: it says what


def _as_written(text: str) -> list[tuple[Any, ...]]:
    """Of a document in the form that `mktune export` gives it, plan by plan: that keeps no more than one in objects.

    Raises one of several errors for any other document.
    """
    head = _HEAD.match(text)
    if head is None:
        raise ValueError
    rows, position = [], head.end()
    while True:
        winner, end = _DECODER.raw_decode(text, position)
        rows.append(_row(winner, text[position:end]))
        comma = _COMMA.match(text, end)
        if comma is None:
            break
        position = comma.end()
    if not _END.match(text, end):
        raise ValueError
    return rows


def _row(winner: dict[str, Any], text: str) -> tuple[Any, ...]:
    plan, gpu = winner["plan"], winner["fingerprint"]
    shape = plan["shape"]
    (m_low, m_high), (kv_low, kv_high) = plan["m_range"], plan["kv_range"]
    row = (
        plan["workload"],
        gpu["gpu"],
        shape["tokens_per_request"],
        plan["contract"],
        plan["scale_format"],
        ",".join(sorted(plan["ops"])),
        shape["requests"],
        shape["kv"],
        gpu["sms"],
        gpu["compute_capability"],
        winner["measurement"]["policy"]["backend"] in SIMULATED,
        m_low,
        m_high,
        kv_low,
        kv_high,
        text,
    )
    hash(row)  # raises TypeError where a list or an object stands for a name or a number
    return row


def _as_any(content: bytes, where: str) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for found in parse_each(content, where):
        if isinstance(found, InputError):
            warn(f"{found}; this plan is not used")
        else:
            rows.append(row_of(found))
    return rows
