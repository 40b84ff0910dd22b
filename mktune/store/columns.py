"""Types of columns that check what they read: SQLite stores text where a number belongs, and a file can be damaged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from sqlalchemy import BigInteger, Dialect, Float, Integer, Result, Row, Text
from sqlalchemy.types import TypeDecorator

from mktune.errors import StoreError


class _Checked(TypeDecorator[Any]):
    """Raises StoreError where a value is neither NULL nor of `kinds`."""

    kinds: ClassVar[tuple[type, ...]]

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        if value is not None and type(value) not in self.kinds:
            raise StoreError(f"the store holds a damaged row: {str(value)[:40]!r} is no {self.kinds[0].__name__}")
        return value


class Words(_Checked):
    """Text."""

    impl, cache_ok, kinds = Text, True, (str,)


class Whole(_Checked):
    """A whole number of 32 bits."""

    impl, cache_ok, kinds = Integer, True, (int,)


class Large(_Checked):
    """A whole number of 64 bits."""

    impl, cache_ok, kinds = BigInteger, True, (int,)


class Real(_Checked):
    """A number."""

    impl, cache_ok, kinds = Float(53), True, (float, int)


def whole_rows(result: Result[Any]) -> Iterator[Row[Any]]:
    """The rows of a query whose columns are never NULL. Raises StoreError where one is: the file is damaged.

    All are fetched at once: an error in the middle must not leave a statement open, which would hold its lock.
    """
    for row in result.all():
        if None in row:
            missing = ", ".join(name for name, value in row._mapping.items() if value is None)
            raise StoreError(f"the store holds a damaged row: {missing} missing")
        yield row
