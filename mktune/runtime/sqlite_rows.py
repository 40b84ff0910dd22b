"""The served plans of an SQLite store, read with the standard library: a look-up imports no database toolkit.

Nothing is written, made or waited for longer than `_LOCK_TIMEOUT_S`. In WAL mode, as a file is while it is written, no
writer stands in a reader's way. A database is opened by SQLite alone: to open and close it besides would take from this
process the locks that it holds, for example as a tuner that writes the same file.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mktune.location import OLDEST, PACKED, SCHEMA, VERSION_TABLE
from mktune.runtime.entries import KEYS, Row

_LOCK_TIMEOUT_S = 0.2
# NOT INDEXED: the rows in the order of the file. By the index of keys each of them would be a search of its own.
# AS BLOB: what SQLite cannot decode is a damaged plan, and does not cost the others.
_QUERY = "SELECT {columns}, CAST(document AS BLOB) FROM mktune_plans NOT INDEXED WHERE replaced IS NULL"
_RANGES = re.compile(r'"kv_range":\[(\d{1,9}),(\d{1,9})\],"m_range":\[(\d{1,9}),(\d{1,9})\]')
_PAGES = 16  # that SQLite keeps: each is read once, and few of them stay in the processor's cache


class WrongSchemaError(Exception):
    """The database is not a store of this mktune; the message says what it is."""


def read_rows(path: Path) -> list[tuple[Any, ...]] | None:
    """The rows as `Row` has them; None for a file that is no database. Raises WrongSchemaError, OSError, sqlite3.Error.

    What lies still is read without asking for a lock: also where it is locked whole, and where the two files that WAL
    mode needs could not be made, or should not.
    """
    try:
        if not path.with_name(path.name + "-wal").exists():
            found = _while_still(path, lambda: _query(path, "immutable=1"))
            if found is not None:
                return found
        try:
            return _query(path, "")
        except sqlite3.OperationalError:  # in a folder where its log cannot be opened
            found = _while_still(path, lambda: _query(path, "immutable=1"))
            if found is None:
                raise
            return found
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorname", "") == "SQLITE_NOTADB":
            return None
        raise


def _while_still(path: Path, read: Callable[[], list[tuple[Any, ...]]]) -> list[tuple[Any, ...]] | None:
    """What `read` gives, unless a writer was at the file meanwhile or has left it half written."""
    for _ in range(3):
        before = _state(path)
        try:
            found = read()
        except sqlite3.DatabaseError:
            if _state(path) == before:
                raise
            continue
        if before is not None and _state(path) == before:
            return found
    return None


def _state(path: Path) -> tuple[int, ...] | None:
    """What changes with every write; None while a rollback journal says that a write is under way."""
    if path.with_name(path.name + "-journal").exists():
        return None
    log = path.with_name(path.name + "-wal")
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size, log.stat().st_mtime_ns if log.exists() else 0


def _query(path: Path, how: str) -> list[tuple[Any, ...]]:
    uri = f"{path.absolute().as_uri()}?mode=ro&{how}"
    connection = sqlite3.connect(uri, uri=True, timeout=_LOCK_TIMEOUT_S, isolation_level=None)
    try:
        connection.execute(f"PRAGMA cache_size={_PAGES}")
        connection.execute("BEGIN")  # one state of the database for all queries
        if _schema(connection) < PACKED:
            return [_of_text(raw) for raw in _rows(connection, Row._fields[:KEYS])]
        return _rows(connection, Row._fields[:-1]).fetchall()
    except UnicodeDecodeError:  # SQLite quotes a damaged name in its own message
        raise sqlite3.DatabaseError("database disk image is malformed") from None
    finally:
        connection.close()


def _rows(connection: sqlite3.Connection, columns: tuple[str, ...]) -> sqlite3.Cursor:
    return connection.execute(_QUERY.format(columns=", ".join(columns)))


def _of_text(raw: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row of a schema before `PACKED`: the ranges stand in the document, which is text. None for what is damaged.

    The quoted names cannot stand in a text of the document, where a quote has a backslash before it.
    """
    try:
        text = raw[-1].decode()
    except (AttributeError, UnicodeDecodeError):
        text = ""
    found = _RANGES.match(text, text.find('"kv_range":'))
    if found is None:
        return *raw[:-1], None, None, None, None, None
    kv_low, kv_high, m_low, m_high = map(int, found.groups())
    return *raw[:-1], m_low, m_high, kv_low, kv_high, text


def _schema(connection: sqlite3.Connection) -> str:
    """Raises WrongSchemaError where it is none that is read."""
    tables = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    row = None
    if connection.execute(tables, (VERSION_TABLE,)).fetchone() is not None:
        row = connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()
    if row is None:
        raise WrongSchemaError("is an SQLite database, but not a store of mktune")
    if not isinstance(row[0], str) or not OLDEST <= row[0] <= SCHEMA:
        which = "a newer" if str(row[0]) > SCHEMA else "an older"
        raise WrongSchemaError(f"was made by {which} mktune (schema {row[0]}; this one reads {SCHEMA})")
    return row[0]
