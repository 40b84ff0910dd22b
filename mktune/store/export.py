"""Winners as one JSON document that can be shipped, reviewed and compared: the same winners give the same bytes."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mktune.bundle import KIND, SCHEMA_VERSION, read_bundle
from mktune.errors import InputError, NothingFoundError
from mktune.locked_file import held
from mktune.records import winner_to_dict
from mktune.store.winners import best_of, place_of
from mktune.trial import Winner

__all__ = ["Added", "add_to_bundle", "bundle_text", "write_bundle"]


def bundle_text(winners: Iterable[Winner]) -> str:
    """The document of `winners`: sorted, each once, keys sorted, one line for each list of plain values.

    Raises NothingFoundError where there are none: an empty file would look like an answer.
    """
    items = sorted((winner_to_dict(winner) for winner in dict.fromkeys(winners)), key=_order)
    if not items:
        raise NothingFoundError("no plan to export: nothing that matches is stored")
    return _pretty({"kind": KIND, "schema": SCHEMA_VERSION, "winners": items}, 0) + "\n"


def write_bundle(path: Path, winners: Iterable[Winner]) -> None:
    """Write the document to `path`, whole or not at all; a link keeps pointing where it does, and a pipe or a device
    is written to, not replaced. Raises InputError where it cannot be written."""
    text = bundle_text(winners)
    if not path.name:
        raise InputError(f"cannot write {path}: give the name of a file")
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8")
        else:
            _write_whole(target, text)
    except (OSError, RuntimeError, ValueError) as error:  # links that lead in a circle; a name with a NUL in it
        raise InputError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from None


@dataclass(frozen=True)
class Added:
    """What a file holds after winners were added; `replaced`: each that took another's place, with that one."""

    holds: tuple[Winner, ...]
    replaced: tuple[tuple[Winner, Winner], ...]


def add_to_bundle(
    path: Path, winners: Iterable[Winner], own_build: Callable[[Winner], bool], *, repeats: bool = False
) -> Added:
    """Write what `path` holds together with `winners`, whole or not at all.

    Of two winners for the same key, whose plans need the same packages, that one stays which a store would serve that
    imports both; with `repeats` one whose bits repeat, even if the other is faster. Processes that add to one file at
    once wait for each other, so that none loses what another has written. Raises InputError where the file cannot be
    read, locked or written; it is as before then.
    """
    new = list(winners)
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"cannot add to {path}: it is no file")
        target = path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        with held(target.parent, wait=True):  # the file itself is replaced
            before = best_of(read_bundle(target) if target.exists() else [], own_build, repeats)
            both = best_of([*before, *new], own_build, repeats)
            write_bundle(target, both)
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"cannot add to {path}: {getattr(error, 'strerror', None) or error}") from None
    known = {place_of(winner): winner for winner in before}
    replaced = [(winner, known[place_of(winner)]) for winner in both if known.get(place_of(winner), winner) != winner]
    return Added(tuple(both), tuple(replaced))


def _write_whole(path: Path, text: str) -> None:
    """Under another name first, with the access rights of the file that it replaces, or of a new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:50]}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            os.fchmod(handle, _mode(path))
            file.write(text)
            file.flush()
            os.fsync(handle)  # a rename may reach the disk before the text does
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _mode(path: Path) -> int:
    with suppress(OSError):
        return stat.S_IMODE(path.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _order(item: dict[str, Any]) -> tuple[Any, ...]:
    plan, gpu = item["plan"], item["fingerprint"]
    shape = plan["shape"]
    size = (shape["requests"] * shape["tokens_per_request"], shape["kv"], shape["tokens_per_request"])
    what = (plan["workload"], plan["contract"], plan["scale_format"], sorted(plan["ops"]))
    return (*what, gpu["gpu"], gpu["sms"], *size, item["plan_id"])


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
