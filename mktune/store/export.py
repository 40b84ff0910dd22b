"""Winners as one JSON document that can be shipped, reviewed and compared: the same winners give the same bytes."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mktune.bundle import KIND, SCHEMA_VERSION
from mktune.errors import InputError, NothingFoundError
from mktune.records import winner_to_dict
from mktune.trial import Winner

__all__ = ["bundle_text", "write_bundle"]


def bundle_text(winners: Iterable[Winner]) -> str:
    """The document of `winners`: sorted, keys sorted, one line for each list of plain values.

    Raises NothingFoundError where there are none: an empty file would look like an answer.
    """
    items = sorted((winner_to_dict(winner) for winner in winners), key=_order)
    if not items:
        raise NothingFoundError("no plan to export: nothing that matches is stored")
    return _pretty({"kind": KIND, "schema": SCHEMA_VERSION, "winners": items}, 0) + "\n"


def write_bundle(path: Path, winners: Iterable[Winner]) -> None:
    """Write the document to `path`, whole or not at all. Raises InputError where it cannot be written."""
    text = bundle_text(winners)
    if not path.name:
        raise InputError(f"cannot write {path}: give the name of a file")
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name[:100]}.", delete=False) as file:
            temporary = file.name
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _order(item: dict[str, Any]) -> tuple[Any, ...]:
    plan, gpu = item["plan"], item["fingerprint"]
    shape = plan["shape"]
    size = (shape["requests"] * shape["tokens_per_request"], shape["kv"], shape["tokens_per_request"])
    return (plan["workload"], plan["contract"], sorted(plan["ops"]), gpu["gpu"], gpu["sms"], *size, item["plan_id"])


def _pretty(value: Any, depth: int) -> str:
    """JSON with two blanks for each level; what holds no further object or list stands on one line."""
    items = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list) or not any(isinstance(item, dict | list) for item in items):
        return json.dumps(value, sort_keys=True, allow_nan=False)
    margin = "  " * (depth + 1)
    if isinstance(value, dict):
        lines = [f"{margin}{json.dumps(key)}: {_pretty(value[key], depth + 1)}" for key in sorted(value)]
        return "{\n" + ",\n".join(lines) + "\n" + "  " * depth + "}"
    return "[\n" + ",\n".join(margin + _pretty(item, depth + 1) for item in value) + "\n" + "  " * depth + "]"
