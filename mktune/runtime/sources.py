"""Reading winners for a book. Nothing is written, created or locked, and no fault of a file is raised: it is a note.

SQLite is read with the standard library, so that a look-up does not import a database toolkit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mktune import resources, strict_json
from mktune.bundle import parse_bundle
from mktune.errors import InputError, MktuneError
from mktune.location import SCHEMA, VERSION_TABLE, StoreLocation
from mktune.records import winner_from_dict
from mktune.trial import Winner

if TYPE_CHECKING:
    import sqlite3

_warned: set[str] = set()
_SQLITE_MAGIC = b"SQLite format 3\0"
_WAL_BYTE = 18  # of the file's header: 2 in WAL mode
_LOCK_TIMEOUT_S = 0.2


@dataclass(frozen=True)
class Reading:
    """What one place gave: its winners, and a line for people where it gave none."""

    winners: tuple[Winner, ...]
    note: str = ""


def read_default() -> tuple[Reading, Reading]:
    """The default store and the bundled plans."""
    try:
        location = StoreLocation.default()
    except InputError as error:
        return _fault(str(error)), read_bundled()
    return read_store(location), read_bundled()


def read_bundled() -> Reading:
    """The plans that ship with the package."""
    found: list[Winner] = []
    for path in sorted(resources.bundled_plans().glob("*/*.json")):
        found += _read_file(path).winners
    return Reading(tuple(found), "" if found else "no plans are bundled")


def read_store(location: StoreLocation) -> Reading:
    """The winners of an SQLite file, a bundle file or a PostgreSQL database."""
    return _read_server(location) if location.path is None else _read_file(location.path)


def _read_file(path: Path) -> Reading:
    try:
        with path.open("rb") as file:
            head = file.read(100)
            if head.startswith(_SQLITE_MAGIC):
                return _read_sqlite(path, in_wal_mode=head[_WAL_BYTE] == 2)
            content = head + file.read(strict_json.MAX_BYTES + 1 - len(head))
    except FileNotFoundError:
        return Reading((), f"there is no store at {path}")
    except OSError as error:
        return _fault(f"cannot read {path}: {error.strerror}")
    try:
        return Reading(tuple(parse_bundle(strict_json.check_size(content, str(path)), str(path))))
    except InputError as error:
        return _fault(f"{error}; its plans are not used")


def _read_sqlite(path: Path, *, in_wal_mode: bool) -> Reading:
    import sqlite3

    log = path.with_name(path.name + "-wal")
    for _ in range(3):
        # Where nobody has a WAL database open, opening it would leave two files beside it, and fail in a folder that
        # cannot be written. Then it is read as the plain file that it is, and read again if it changed meanwhile.
        quiet = in_wal_mode and not log.exists()
        before = path.stat().st_mtime_ns if quiet else 0
        try:
            reading = _query(path, quiet=quiet)
        except sqlite3.Error as error:
            reading = _fault(f"cannot read {path}: {error}; its plans are not used")
        if not quiet or (path.stat().st_mtime_ns == before and not log.exists()):
            break
    return reading


def _query(path: Path, *, quiet: bool) -> Reading:
    import sqlite3

    uri = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if quiet else ''}"
    connection = sqlite3.connect(uri, uri=True, timeout=_LOCK_TIMEOUT_S)
    try:
        connection.execute("BEGIN")  # one state of the database for both queries
        found = _schema(connection)
        if found != SCHEMA:
            return _wrong_schema(path, found)
        rows = connection.execute("SELECT document FROM mktune_plans WHERE replaced IS NULL ORDER BY id").fetchall()
    finally:
        connection.close()
    return _parse((row[0] for row in rows), str(path))


def _schema(connection: sqlite3.Connection) -> str | None:
    tables = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    if connection.execute(tables, (VERSION_TABLE,)).fetchone() is None:
        return None
    row = connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()
    return None if row is None else str(row[0])


def _wrong_schema(path: Path, found: str | None) -> Reading:
    if found is None:
        return _fault(f"{path} is an SQLite database, but not a store of mktune; it is not used")
    which = "a newer" if found > SCHEMA else "an older"
    return _fault(
        f"{path} was made by {which} mktune (schema {found}; this one reads {SCHEMA}); its plans are not used"
    )


def _parse(documents: Iterable[str], where: str) -> Reading:
    """One damaged row does not cost the others."""
    winners = []
    for document in documents:
        try:
            winners.append(winner_from_dict(strict_json.loads(document, where), where))
        except InputError as error:
            _warn(f"{error}; this plan is not used")
    return Reading(tuple(winners), "" if winners else f"{where} holds no plans")


def _read_server(location: StoreLocation) -> Reading:
    try:
        from mktune.store import Store

        with Store.open(location.url, write=False, timeout_s=2.0) as store:
            winners = tuple(store.winners())
    except (MktuneError, ImportError) as error:
        return _fault(f"{error}; its plans are not used")
    return Reading(winners, "" if winners else f"{location} holds no plans")


def _fault(note: str) -> Reading:
    _warn(note)
    return Reading((), note)


def _warn(note: str) -> None:
    """Once for each text in this process: a server may open a book for every worker."""
    import logging  # not at the top: 3 ms that a look-up without faults need not wait for

    if note not in _warned:
        _warned.add(note)
        logging.getLogger("mktune.runtime").warning("%s", note)
