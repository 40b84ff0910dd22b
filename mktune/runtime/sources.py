"""Reading stored plans for a book. Nothing is written, created or locked, and no fault of a file is raised: it is a
note."""

from __future__ import annotations

from pathlib import Path

from mktune import resources, strict_json
from mktune.errors import InputError, MktuneError
from mktune.location import StoreLocation
from mktune.runtime.bundle_rows import read_rows as read_bundle_rows
from mktune.runtime.entries import Entry, Reading, Row, Source
from mktune.runtime.log import warn
from mktune.trial import Winner

_MAGIC = b"SQLite format 3\0"


def read_default() -> list[Reading]:
    """The default store and the bundled plans."""
    try:
        location = StoreLocation.default()
    except InputError as error:
        return [_fault(str(error), "store", "the default store"), *read_bundled()]
    return [read_store(location), *read_bundled()]


def read_bundled() -> list[Reading]:
    """The plans that ship with the package, file by file."""
    folder = resources.bundled_plans()
    files = [_read_file(path, "bundle") for path in sorted(folder.glob("*/*.json"))]
    return files or [Reading((), "bundle", str(folder), "no plans are bundled")]


def bundled_winners() -> list[Winner]:
    """The plans that ship with the package, all of them read."""
    rows = [Entry(Row._make(raw), "bundle", reading.where) for reading in read_bundled() for raw in reading.rows]
    return [entry.winner for entry in rows if entry.winner is not None]


def read_store(location: StoreLocation) -> Reading:
    """The plans of an SQLite file, an exported file or a PostgreSQL database."""
    return _read_server(location) if location.path is None else _read_file(location.path, "store")


def _read_file(path: Path, source: Source) -> Reading:
    try:
        with path.open("rb") as file:
            head = file.read(100)
            if head.startswith(_MAGIC):
                return _read_sqlite(path, head)
            content = head + file.read(strict_json.MAX_BYTES + 1 - len(head))
        rows = read_bundle_rows(strict_json.check_size(content, str(path)), str(path))
    except (FileNotFoundError, NotADirectoryError):
        return Reading((), source, str(path), f"there is no store at {path}")
    except OSError as error:
        return _fault(f"cannot read {path}: {error.strerror}", source, str(path))
    except InputError as error:
        return _fault(f"{error}; its plans are not used", source, str(path))
    return Reading(rows, source, str(path), "" if rows else f"{path} holds no plans")


def _read_sqlite(path: Path, header: bytes) -> Reading:
    import sqlite3

    from mktune.runtime import sqlite_rows

    try:
        rows = sqlite_rows.read_rows(path, header)
    except sqlite_rows.WrongSchemaError as error:
        return _fault(f"{path} {error}", "store", str(path))
    except sqlite3.Error as error:
        return _fault(f"cannot read {path}: {error}; its plans are not used", "store", str(path))
    return Reading(rows, "store", str(path), "" if rows else f"{path} holds no plans")


def _read_server(location: StoreLocation) -> Reading:
    try:
        from mktune.store import Store

        with Store.open(location.url, write=False, timeout_s=2.0) as store:
            rows = [Row.of(winner) for winner in store.winners()]
    except (MktuneError, ImportError) as error:
        return _fault(f"{error}; its plans are not used", "store", str(location))
    return Reading(rows, "store", str(location), "" if rows else f"{location} holds no plans")


def _fault(note: str, source: Source, where: str) -> Reading:
    warn(note)
    return Reading((), source, where, note, failed=True)
