"""A bundle: winners in one JSON document, as `mktune export` writes it and as plans ship with the package.

What an older mktune wrote is brought up to `SCHEMA_VERSION` step by step, by `CONVERTERS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mktune import strict_json
from mktune.errors import InputError
from mktune.records import winner_from_dict
from mktune.trial import Winner

KIND = "mktune-plans"
SCHEMA_VERSION = 2

Document = dict[str, Any]
Check = Callable[[Winner], None]
_STEP = re.compile(r"(?:\.|: (?:plan: )?)([^\s.\[:]+)|\[([0-9]+)\]")


def parse_bundle(text: str | bytes, where: str) -> list[Winner]:
    """The winners in the document `text`; `where` (a file's name) starts every message.

    Raises InputError with line and column where it is not strict JSON or a field is wrong, and with both versions where
    a newer mktune wrote it.
    """
    winners = []
    for found in parse_each(text, where):
        if isinstance(found, InputError):
            raise found
        winners.append(found)
    return winners


def parse_each(text: str | bytes, where: str, check: Check | None = None) -> list[Winner | InputError]:
    """As `parse_bundle`, with the error in place of each winner that is wrong; what is wrong with the whole is raised.

    check  what a winner must pass besides: raises InputError
    """
    data = strict_json.loads(text, where)
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise InputError(f'{where}: not a bundle of plans (no "kind": "{KIND}" at its top)')
    data = _converted(data, where)
    if set(data) != {"kind", "schema", "winners"} or not isinstance(data["winners"], list):
        raise InputError(f'{where}: a bundle holds "kind", "schema" and a list of "winners", nothing else')
    return [_winner(item, number, text, where, check) for number, item in enumerate(data["winners"])]


def read_bundle(path: Path) -> list[Winner]:
    """The winners in the file `path`. Raises InputError where it cannot be read or is not a bundle."""
    return parse_bundle(strict_json.read(path), str(path))


def read_each(path: Path, check: Check | None = None) -> list[Winner | InputError]:
    """As `parse_each`, of the file `path`. Raises InputError where it cannot be read too."""
    return parse_each(strict_json.read(path), str(path), check)


def _winner(item: Any, number: int, text: str | bytes, where: str, check: Check | None) -> Winner | InputError:
    name = f"winners[{number}]"
    try:
        winner = winner_from_dict(item, name)
        if check is not None:
            check(winner)
        return winner
    except InputError as error:
        path = _path(str(error).removeprefix(name)) if str(error).startswith(name) else []
        line, column = strict_json.place(text, ["winners", number, *path])
        return InputError(f"{where}:{line}:{column}: {'' if str(error).startswith(name) else f'{name}: '}{error}")


def _path(message: str) -> list[str | int]:
    """The fields that a message begins with: ".plan: kernels.A0.stream must be …" gives plan, kernels, A0, stream.

    A word that is none may follow them: `strict_json.place` ends before it.
    """
    path: list[str | int] = []
    while step := _STEP.match(message):
        path.append(step[1] if step[1] is not None else int(step[2]))
        message = message[step.end() :]
    return path


def _converted(data: Document, where: str) -> Document:
    """`data` in the form of `SCHEMA_VERSION`. Raises InputError for what is no version, or a newer one."""
    version = data.get("schema")
    if type(version) is not int or version < 1:
        raise InputError(f"{where}: bundle schema {version!r} is not a version (this mktune reads {_READS})")
    if version > SCHEMA_VERSION:
        raise InputError(
            f"{where}: made by a newer mktune (bundle schema {version}; this mktune reads {_READS}): upgrade it"
        )
    for number in range(version, SCHEMA_VERSION):
        data = CONVERTERS[number](data) | {"schema": number + 1}
    return data


def _to_2(data: Document) -> Document:
    """Version 1 knew no attribution: nobody measured where a gain comes from."""
    return _each_winner(data, lambda winner: {"attribution": {}, **winner})


def _each_winner(data: Document, change: Callable[[Document], Document]) -> Document:
    """`data` with `change` made to every winner that is an object; what is no winner is refused later, by its place."""
    winners = data.get("winners")
    if not isinstance(winners, list):
        return data
    return data | {"winners": [change(item) if isinstance(item, dict) else item for item in winners]}


CONVERTERS: Mapping[int, Callable[[Document], Document]] = {1: _to_2}
"""Version → what makes the next one of a document of it, with a stated default for each field that is new."""
_READS = f"1 to {SCHEMA_VERSION}"
