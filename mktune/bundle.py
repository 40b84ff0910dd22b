"""A bundle: winners in one JSON document, as `mktune export` writes it and as plans ship with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mktune import strict_json
from mktune.errors import InputError
from mktune.records import winner_from_dict
from mktune.trial import Winner

KIND = "mktune-plans"
SCHEMA_VERSION = 1


def parse_bundle(text: str | bytes, where: str) -> list[Winner]:
    """The winners in the document `text`; `where` (a file's name) starts every message.

    Raises InputError with line and column where it is not strict JSON, with the field where one is wrong, and with
    both versions where a newer mktune wrote it.
    """
    data = strict_json.loads(text, where)
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise InputError(f'{where}: not a bundle of plans (no "kind": "{KIND}" at its top)')
    _check_version(data.get("schema"), where)
    if set(data) != {"kind", "schema", "winners"} or not isinstance(data["winners"], list):
        raise InputError(f'{where}: a bundle holds "kind", "schema" and a list of "winners", nothing else')
    return [winner_from_dict(item, f"{where}: winners[{i}]") for i, item in enumerate(data["winners"])]


def read_bundle(path: Path) -> list[Winner]:
    """The winners in the file `path`. Raises InputError where it cannot be read or is not a bundle."""
    return parse_bundle(strict_json.read(path), str(path))


def _check_version(version: Any, where: str) -> None:
    if type(version) is not int or version < 1:
        raise InputError(f"{where}: bundle schema {version!r} is not a version (this mktune reads {SCHEMA_VERSION})")
    if version > SCHEMA_VERSION:
        raise InputError(
            f"{where}: made by a newer mktune (bundle schema {version}; this mktune reads {SCHEMA_VERSION}): upgrade it"
        )
