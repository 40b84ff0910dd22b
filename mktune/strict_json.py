"""JSON as files should hold it: one document, no duplicate keys, no NaN or Infinity. Errors name line and column."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NoReturn

from mktune.errors import InputError

_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')
_CONSTANTS = ("NaN", "Infinity", "-Infinity")
_MERGE_MARKS = ("<<<<<<<", "=======", ">>>>>>>")
MAX_BYTES = 256 * 2**20  # of one file: far above any bundle, far below the memory of a machine


class _Refused(ValueError):
    """Something that Python's parser takes and we do not; its place is found afterwards."""


def read(path: Path) -> bytes:
    """The content of a file that should hold JSON. Raises InputError where it cannot be read or cannot be JSON.

    No more than `MAX_BYTES` are ever read: a device file has no end.
    """
    try:
        with path.open("rb") as file:
            return check_size(file.read(MAX_BYTES + 1), str(path))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:  # a name with a NUL in it
        raise InputError(f"cannot read {path}: {error}") from None


def check_size(content: bytes, where: str) -> bytes:
    """`content`, read up to one byte past `MAX_BYTES`. Raises InputError where that byte is there, or nothing is."""
    if not content:
        raise InputError(f"{where} is empty")
    if len(content) > MAX_BYTES:
        raise InputError(f"{where} is larger than {MAX_BYTES >> 20} MiB")
    return content


def loads(text: str | bytes, where: str) -> Any:
    """The one document in `text`. Raises InputError that starts with `where:line:column`."""
    if isinstance(text, bytes):
        try:
            return loads(text.decode(), where)
        except UnicodeDecodeError as error:
            head = text[: error.start]
            line, column = head.count(b"\n") + 1, error.start - head.rfind(b"\n")
            raise InputError(f"{where}:{line}:{column}: not UTF-8 text") from None
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_float)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}:{error.lineno}:{error.colno}: {_explain(text, error)}") from None
    except _Refused as error:
        line, column = _place(text)
        raise InputError(f"{where}:{line}:{column}: {error}") from None
    except RecursionError:
        raise InputError(f"{where}: nested too deeply") from None
    except ValueError as error:  # a number of more digits than Python converts
        raise InputError(f"{where}: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        key = next(key for number, key in enumerate(keys) if key in keys[:number])
        raise _Refused(f"the key {key!r} stands twice in one object")
    return found


def _constant(text: str) -> NoReturn:
    raise _Refused(f"{text} is not a JSON number")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _Refused(f"{text} is too large for a number")
    return value


def _explain(text: str, error: json.JSONDecodeError) -> str:
    line = text.splitlines()[error.lineno - 1] if error.lineno <= len(text.splitlines()) else ""
    if line.startswith(_MERGE_MARKS):
        return "an unresolved merge conflict"
    if error.msg == "Extra data":
        return "more than one document in the file"
    return f"not JSON: {error.msg}"


def _place(text: str) -> tuple[int, int]:
    """Line and column (from 1) of the first duplicate key, NaN, Infinity or infinite number in `text`."""
    open_objects: list[set[str] | None] = []
    start = 0
    with suppress(ValueError, IndexError):  # what follows the place may be no JSON at all
        for match, after in pairwise(chain(_TOKEN.finditer(text), [None])):
            assert match is not None
            token, start = match.group(), match.start()
            if token in "{[":
                open_objects.append(set() if token == "{" else None)
            elif token in "}]":
                open_objects.pop()
            elif token[0] == '"' and after is not None and after.group() == ":":
                keys, key = open_objects[-1], json.loads(token)
                if keys is not None and key in keys:
                    break
                if keys is not None:
                    keys.add(key)
            elif token.startswith(_CONSTANTS) or _overflows(token):
                break
    return _line_and_column(text, start)


def place(text: str | bytes, path: Sequence[str | int]) -> tuple[int, int]:
    """Line and column (from 1) of the value at `path` (keys and indexes) in JSON `text` that `loads` takes.

    Where there is no such value: of the innermost one on the way to it that is there.
    """
    text = text if isinstance(text, str) else text.decode("utf-8")
    depth = inside = matched = number = start = 0
    begins, key = True, ""  # whether the next token begins the value at path[:matched]; the last token before it
    for match in _TOKEN.finditer(text):
        token = match.group()
        if begins and token != "]":
            start, begins = match.start(), False
            if matched == len(path) or token != ("{" if isinstance(path[matched], str) else "["):
                break
            inside, number = depth + 1, 0
            if path[matched] == 0:
                matched, begins = matched + 1, True
        elif depth == inside and token == ",":
            number += 1
            begins = number == path[matched]
            matched += begins
        elif depth == inside and token == ":" and json.loads(key) == path[matched]:
            matched, begins = matched + 1, True
        depth += (token in ("{", "[")) - (token in ("}", "]"))
        if depth < inside:
            break
        key = token
    return _line_and_column(text, start)


def _line_and_column(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def _overflows(token: str) -> bool:
    return token[0] in "-0123456789" and not token.lstrip("-").isdigit() and math.isinf(float(token))
