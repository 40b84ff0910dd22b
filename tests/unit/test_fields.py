"""Fields of plain data are read as they are: nothing is converted, and a message starts with the place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from mktune import fields
from mktune.errors import InputError

_RIGHT: list[tuple[Callable[..., Any], Any]] = [
    (fields.mapping, {"a": 1}),
    (fields.items, [1, 2]),
    (fields.text, ""),
    (fields.name, "x"),
    (fields.flag, False),
    (fields.whole, -3),
    (fields.number, -0.5),
    (fields.positive, 1e-9),
]
_WRONG: list[tuple[Callable[..., Any], list[Any]]] = [
    (fields.mapping, [None, [], "a"]),
    (fields.items, [None, {}, "ab", (1, 2)]),
    (fields.text, [None, 1, b"a"]),
    (fields.name, [None, 1, ""]),
    (fields.flag, [None, 0, 1, "true"]),
    (fields.whole, [None, True, 1.0, "1"]),
    (fields.number, [None, True, "1", math.nan, math.inf, 10**400]),
    (fields.positive, [0, -1, True, math.nan, math.inf]),
]


@pytest.mark.parametrize(("read", "value"), _RIGHT)
def test_what_is_right_comes_back_as_it_is(read: Callable[..., Any], value: Any) -> None:
    found = read("plan.x", value)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(("read", "values"), _WRONG)
def test_what_is_wrong_is_named(read: Callable[..., Any], values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InputError, match=r"^plan\.x must be "):
            read("plan.x", value)


def test_a_whole_number_may_have_a_least_value() -> None:
    assert fields.whole("n", 0, low=0) == 0
    with pytest.raises(InputError, match="n must be a whole number from 1"):
        fields.whole("n", 0, low=1)


def test_a_record_has_exactly_its_fields() -> None:
    assert fields.record("r", {"a": 1, "b": 2}, ("a", "b")) == {"a": 1, "b": 2}
    with pytest.raises(InputError, match=r"^r: missing b$"):
        fields.record("r", {"a": 1, "c": 2}, ("a", "b"))
    with pytest.raises(InputError, match=r"^r: unknown 'c'$"):
        fields.record("r", {"a": 1, "b": 2, "c": 3}, ("a", "b"))


def test_a_choice_names_what_is_allowed() -> None:
    assert fields.choice("edge", "full", ("full", "launch_order")) == "full"
    for value in ("half", None, []):
        with pytest.raises(InputError, match=r"^edge is .*; allowed: full, launch_order$"):
            fields.choice("edge", value, ("full", "launch_order"))
