"""Types of columns that check what they read: SQLite stores text where a number belongs, and a file can be damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from sqlalchemy import BigInteger, Dialect, Float, Integer, LargeBinary, Result, Row, Text
from sqlalchemy.types import TypeDecorator

from mktune import packed
from mktune.errors import InputError, StoreError


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


class Packed(TypeDecorator[str]):
    """Text that is stored as `mktune.packed` writes it; read also where an older schema left it as text."""

    impl, cache_ok = LargeBinary, True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytes | None:
        return None if value is None else packed.pack(value)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], str | None]:
        return _unpacked  # not by LargeBinary's own, which stumbles over text


def _unpacked(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, bytes | memoryview):
        raise StoreError(f"the store holds a damaged row: {str(value)[:40]!r} is no packed text")
    try:
        return packed.unpack(bytes(value), "a stored winner").decode()
    except (InputError, UnicodeDecodeError) as error:
        raise StoreError(f"the store holds a damaged plan: {error}") from None


def whole_rows(result: Result[Any]) -> Iterator[Row[Any]]:
    """The rows of a query whose columns are never NULL. Raises StoreError where one is: the file is damaged.

    All are fetched at once: an error in the middle must not leave a statement open, which would hold its lock.
    """
    for row in result.all():
        if None in row:
            missing = ", ".join(name for name, value in row._mapping.items() if value is None)
            raise StoreError(f"the store holds a damaged row: {missing} missing")
        yield row
