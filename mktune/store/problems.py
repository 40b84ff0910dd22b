"""Database errors as mktune's: the one boundary. Every message is one line that says what to do; no password in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from mktune.errors import InputError, MktuneError, StoreError
from mktune.location import StoreLocation, hide_password

_SQLITE: dict[str, str] = {
    "BUSY": "is locked by another process: wait for it to end, or give each its own --store",
    "LOCKED": "is locked by another process: wait for it to end, or give each its own --store",
    "FULL": "the disk is full: free some space and go on with --resume; what was stored is intact",
    "CORRUPT": "is damaged: restore a copy, or go on: the next `mktune tune` or `import` sets the file aside",
    "NOTADB": "is not an SQLite database: give another --store",
}
_UNWRITABLE = ("READONLY", "CANTOPEN", "PERM", "AUTH")
_POSTGRES: dict[str, str] = {
    "53100": "the server's disk is full: free some space and go on with --resume; what was stored is intact",
    "55P03": "is locked by another process: wait for it to end",
    "40P01": "is locked by another process: run again",
    "57014": "is locked by another process: wait for it to end",
}
_POSTGRES_UNWRITABLE = ("25006", "42501")


@contextmanager
def mapped(location: StoreLocation) -> Iterator[None]:
    """Raise what the database raises in here as a StoreError or InputError about the store at `location`."""
    try:
        yield
    except DBAPIError as error:
        raise explain(error.orig or error, location) from None
    except (sqlite3.Error, SQLAlchemyError) as error:
        raise explain(error, location) from None
    except UnicodeDecodeError:  # SQLite quotes a damaged name in its own message
        raise StoreError(_sentence(location, _SQLITE["CORRUPT"])) from None


def explain(error: BaseException, location: StoreLocation) -> MktuneError:
    """The exception to raise for `error`."""
    if isinstance(error, sqlite3.Error):
        return _sqlite(error, location)
    state = getattr(error, "sqlstate", None) or ""
    if state in _POSTGRES_UNWRITABLE:
        return unwritable(location, _first_line(error))
    hint = _POSTGRES.get(state, f"{_first_line(error)}; check the server and the URL")
    return StoreError(_sentence(location, hint))


def unwritable(location: StoreLocation, why: str) -> InputError:
    """The exception for a store that this user may not write."""
    return InputError(
        f"cannot write the store {location} ({why}): "
        "give --store, or set MKTUNE_STORE or MKTUNE_HOME to a place that you may write"
    )


def newer_schema(location: StoreLocation, found: str, known: str) -> StoreError:
    """The exception for a database that a newer mktune made."""
    return StoreError(
        f"the store {location} was made by a newer mktune (schema {found}; this mktune knows up to {known}): upgrade it"
    )


def _sqlite(error: sqlite3.Error, location: StoreLocation) -> MktuneError:
    name = getattr(error, "sqlite_errorname", "") or ""
    code = name.removeprefix("SQLITE_").partition("_")[0]
    if code in _UNWRITABLE:
        return unwritable(location, str(error))
    hint = _SQLITE.get(code, f"{_first_line(error)} ({name or type(error).__name__})")
    return StoreError(_sentence(location, hint))


def _sentence(location: StoreLocation, hint: str) -> str:
    return f"the store {location}{' ' if hint.startswith('is ') else ': '}{hint}"


def _first_line(error: BaseException) -> str:
    lines = hide_password(str(error)).strip().splitlines()
    return lines[0].rstrip(":. ") if lines else type(error).__name__
