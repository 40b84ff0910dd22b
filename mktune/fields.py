"""Fields of plain JSON data, read strictly: each function returns the value, or raises InputError that names its place.

`where` is that place, as messages give it: "plan.kernels.A0.stream". Nothing is converted: True is no number, and 1.0
is no whole number.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from mktune.errors import InputError


def expect(condition: bool, message: str) -> None:
    """Raises InputError where the condition does not hold."""
    if not condition:
        raise InputError(message)


def mapping(where: str, value: Any) -> dict[str, Any]:
    """A copy of an object."""
    expect(isinstance(value, dict), f"{where} must be an object")
    return dict(value)


def record(where: str, value: Any, names: Collection[str]) -> dict[str, Any]:
    """An object that has exactly the fields `names`."""
    data = mapping(where, value)
    missing = [name for name in names if name not in data]
    unknown = [name for name in data if name not in names]
    expect(not missing, f"{where}: missing {', '.join(missing)}")
    expect(not unknown, f"{where}: unknown {', '.join(map(repr, unknown))}")
    return data


def items(where: str, value: Any) -> list[Any]:
    """A copy of a list."""
    expect(isinstance(value, list), f"{where} must be a list")
    return list(value)


def text(where: str, value: Any) -> str:
    """Text, which may be empty."""
    expect(isinstance(value, str), f"{where} must be text")
    return str(value)


def name(where: str, value: Any) -> str:
    """Text that is not empty."""
    expect(isinstance(value, str) and bool(value), f"{where} must be text that is not empty")
    return str(value)


def flag(where: str, value: Any) -> bool:
    """True or false; 0 and 1 are neither."""
    expect(isinstance(value, bool), f"{where} must be true or false")
    return bool(value)


def whole(where: str, value: Any, low: int | None = None) -> int:
    """A whole number, not below `low`."""
    at_least = "" if low is None else f" from {low}"
    expect(type(value) is int and (low is None or value >= low), f"{where} must be a whole number{at_least}")
    return int(value)


def number(where: str, value: Any) -> float:
    """A finite number."""
    expect(type(value) in (int, float), f"{where} must be a number")
    try:
        found = float(value)
    except OverflowError:  # a whole number that no float reaches
        found = math.inf
    expect(math.isfinite(found), f"{where} must be a number")
    return found


def positive(where: str, value: Any) -> float:
    """A finite number above 0."""
    found = number(where, value)
    expect(found > 0, f"{where} must be above 0")
    return found


def choice(where: str, value: Any, allowed: Collection[str]) -> str:
    """One of the names that are allowed."""
    expect(value in allowed, f"{where} is {value!r}; allowed: {', '.join(allowed)}")
    return str(value)
