"""Reading stored plans for a book. Nothing is written, created or locked, and no fault of a file is raised: it is a
note."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mktune.errors import InputError, MktuneError
from mktune.location import OLDEST, StoreLocation
from mktune.runtime.entries import Entry, Reading, Source, row_of
from mktune.runtime.log import warn

if TYPE_CHECKING:
    from mktune.trial import Winner


def read_default() -> list[Reading]:
    """The default store and the bundled plans."""
    try:
        location = StoreLocation.default()
    except InputError as error:
        return [_fault(str(error), "store", "the default store"), *read_bundled()]
    return [read_store(location), *read_bundled()]


def read_bundled() -> list[Reading]:
    """The plans that ship with the package, file by file."""
    from mktune import resources  # a store by its name does without

    folder = resources.bundled_plans()
    files = [_read_file(path, "bundle") for path in sorted(folder.glob("*/*.json"))]
    return files or [Reading((), "bundle", str(folder), "no plans are bundled")]


def bundled_winners() -> list[Winner]:
    """The plans that ship with the package, all of them read."""
    rows = [Entry(raw, "bundle", reading.where) for reading in read_bundled() for raw in reading.rows]
    return [entry.winner for entry in rows if entry.winner is not None]


def read_store(location: StoreLocation) -> Reading:
    """The plans of an SQLite file, an exported file or a PostgreSQL database."""
    return _read_server(location) if location.path is None else _read_file(location.path, "store")


def _read_file(path: Path, source: Source) -> Reading:
    where = str(path)
    try:
        rows = _database_rows(path) if path.is_file() else None
        if rows is None:
            rows = _bundle_rows(path)
    except (FileNotFoundError, NotADirectoryError):
        return Reading((), source, where, f"there is no store at {path}")
    except OSError as error:
        return _fault(f"cannot read {path}: {error.strerror}", source, where)
    except InputError as error:
        return _fault(f"{error}; its plans are not used", source, where)
    return Reading(rows, source, where, "" if rows else f"{path} holds no plans")


def _database_rows(path: Path) -> list[tuple[Any, ...]] | None:
    """Of an SQLite file; None where it is none. Raises InputError, OSError."""
    import sqlite3

    from mktune.runtime import sqlite_rows

    if path.stat().st_size == 0:  # SQLite would take it for a database
        return None
    try:
        return sqlite_rows.read_rows(path)
    except sqlite_rows.WrongSchemaError as error:
        raise InputError(f"{path} {error}") from None
    except sqlite3.Error as error:
        raise InputError(f"cannot read {path}: {error}") from None


def _bundle_rows(path: Path) -> list[tuple[Any, ...]]:
    """Of an exported file. Raises InputError, OSError."""
    from mktune import strict_json
    from mktune.runtime import bundle_rows  # a store does without it, and without all that reads a plan

    with path.open("rb") as file:
        content = file.read(strict_json.MAX_BYTES + 1)
    return bundle_rows.read_rows(strict_json.check_size(content, str(path)), str(path))


def _read_server(location: StoreLocation) -> Reading:
    try:
        from mktune.store import Store

        with Store.open(location.url, write=False, timeout_s=2.0, oldest=OLDEST) as store:
            rows = [row_of(winner) for winner in store.winners()]
    except (MktuneError, ImportError) as error:
        return _fault(f"{error}; its plans are not used", "store", str(location))
    return Reading(rows, "store", str(location), "" if rows else f"{location} holds no plans")


def _fault(note: str, source: Source, where: str) -> Reading:
    warn(note)
    return Reading((), source, where, note, failed=True)
