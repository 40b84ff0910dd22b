"""The connection to the database: opening it, transactions, and what SQLite needs to be safe.

SQLite files are in WAL mode while somebody writes them, so that readers and the writer never block each other, and are
put back into rollback mode by the last writer that closes them: a file at rest is then one file that can be copied, and
that a reader without write permission can open. On a network file system WAL is never used.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import QueuePool

from mktune.errors import InputError, NothingFoundError, SetupError, StoreError
from mktune.location import StoreLocation
from mktune.store import filesystem
from mktune.store.problems import mapped, unwritable

_log = logging.getLogger("mktune.store")
_LOOK_SECONDS = 0.25
_PAGE_BYTES = 16384
"""Pages of a new file: about six packed plans of some 2.5 KB fit in one, where SQLite's own 4 KiB would hold one, and a
book of many plans is read in a fraction of the reads."""
_ADVISORY_LOCK = 0x6D6B74756E65  # "mktune": the one lock under which tables are made and rare rows are written


class Database:
    """An open database. `read()` and `write()` give a connection inside a transaction; errors are mapped."""

    def __init__(self, location: StoreLocation, *, write: bool, timeout_s: float) -> None:
        self.location = location
        self.writable = write
        self._closed = False
        with mapped(location):
            self._engine = (
                _postgres(location, timeout_s) if location.path is None else _sqlite(location.path, write, timeout_s)
            )
        self._write_engine = self._engine.execution_options(mktune_write=True)
        self.is_sqlite = location.path is not None
        if write and location.path is not None:
            self._choose_journal(location.path, timeout_s)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection in a transaction that sees one state of the database."""
        self._check_open()
        with mapped(self.location), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def write(self, *, alone: bool = False) -> Iterator[Connection]:
        """A connection in a transaction that is committed at the end, or rolled back where anything raises.

        alone: no other process is inside such a block at the same time (on SQLite that holds for every write).
        """
        self._check_open()
        if not self.writable:
            raise StoreError(f"the store {self.location} was opened for reading only")
        with mapped(self.location), self._write_engine.begin() as connection:
            if alone and not self.is_sqlite:
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
            yield connection

    def close(self) -> None:
        """Free the connections. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._engine.dispose()
        if self.writable and self.location.path is not None:
            _leave_wal(self.location.path)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"the store {self.location} is closed")

    def _choose_journal(self, path: Path, timeout_s: float) -> None:
        if filesystem.is_network(path):
            _log.warning(
                "%s is on a network file system: SQLite is slower there and must not be written by two hosts; "
                "for several hosts give --store postgresql://… or share a file made by `mktune export`",
                path,
            )
            with mapped(self.location):
                _refuse_wal(path, self.location)
            return
        with mapped(self.location):
            _enter_wal(path, timeout_s)


def _sqlite(path: Path, write: bool, timeout_s: float) -> Engine:
    if write:
        _check_writable(path)
    else:
        _check_readable(path)

    def connect() -> sqlite3.Connection:
        connection = _connect(path, "rwc" if write else _read_mode(path), timeout_s)
        try:
            # WAL survives a killed process without an fsync for each commit; a rollback journal needs it.
            wal = connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
            connection.execute(f"PRAGMA synchronous={'NORMAL' if wal else 'FULL'}")
            connection.execute("PRAGMA foreign_keys=ON")
        except BaseException:
            connection.close()
            raise
        return connection

    engine = create_engine(URL.create("sqlite"), creator=connect, poolclass=QueuePool)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A write takes its lock at once: a transaction that reads first could not be made to wait, only to fail.
        immediate = connection.get_execution_options().get("mktune_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    return engine


def _connect(path: Path, mode: str, timeout_s: float) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.as_uri()}?mode={mode}", uri=True, timeout=timeout_s, isolation_level=None, check_same_thread=False
    )


def _check_readable(path: Path) -> None:
    try:
        path.open("rb").close()
    except (FileNotFoundError, NotADirectoryError):
        raise NothingFoundError(f"nothing is stored yet: there is no store at {path}") from None
    except OSError as error:
        raise StoreError(f"cannot read the store {path}: {error.strerror}") from None


def _read_mode(path: Path) -> str:
    """A WAL file that nobody has open, in a folder where no file may be made, can only be read as one that is still."""
    log = path.with_name(path.name + "-wal")
    still = not os.access(path.parent, os.W_OK) and not os.path.exists(log)
    return "ro&immutable=1" if still else "ro"


def _check_writable(path: Path) -> None:
    location = StoreLocation(path=path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(location, f"{error.filename or path.parent}: {error.strerror}") from None
    for place in (path.parent, path):
        if os.path.exists(place) and not os.access(place, os.W_OK):
            raise unwritable(location, f"{place} is not writable")


def _enter_wal(path: Path, timeout_s: float) -> None:
    """Switch to WAL. Where readers of the old mode are in the way for too long, stay: both modes are safe here."""
    connection = _connect(path, "rwc", 0.0)
    deadline = time.monotonic() + min(timeout_s, 1.0)
    try:
        connection.execute(f"PRAGMA page_size={_PAGE_BYTES}")  # of a file that has none yet
        while True:
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > deadline:
                    if _is_busy(error):
                        return
                    raise
                time.sleep(0.005)
    finally:
        connection.close()


def _leave_wal(path: Path) -> None:
    """Back to rollback mode, if nobody else has the file open; otherwise the last one does it.

    Somebody who only looks is gone after a moment: that long it is tried.
    """
    try:
        connection = _connect(path, "rw", 0.0)
    except sqlite3.Error:
        return
    deadline = time.monotonic() + _LOOK_SECONDS
    try:
        while True:
            try:
                connection.execute("PRAGMA journal_mode=DELETE")
                return
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > deadline:
                    return  # in use, or the disk is full: WAL mode is as good
                time.sleep(0.005)
    except sqlite3.Error:
        pass  # damaged
    finally:
        connection.close()


def _refuse_wal(path: Path, location: StoreLocation) -> None:
    """A file that came here in WAL mode leaves it, or is not written: its log's memory is not shared between hosts."""
    _leave_wal(path)
    connection = _connect(path, "rwc", 0.0)
    try:
        if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
            raise StoreError(
                f"the store {location} is on a network file system and open elsewhere in WAL mode, which is not safe "
                "there: end what has it open, or give another --store"
            )
    finally:
        connection.close()


def _is_busy(error: sqlite3.OperationalError) -> bool:
    return (getattr(error, "sqlite_errorname", "") or "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _postgres(location: StoreLocation, timeout_s: float) -> Engine:
    try:
        url = make_url(location.url)
        return create_engine(
            url,
            pool_pre_ping=True,  # servers drop idle connections while a trial runs
            connect_args={"connect_timeout": 10, "options": f"-c lock_timeout={int(timeout_s * 1000)}"},
        )
    except ModuleNotFoundError:
        raise SetupError("a PostgreSQL store needs psycopg: pip install 'mktune[postgres]'") from None
    except (ArgumentError, ValueError) as error:
        raise InputError(f"the store's URL {location} is not valid: {type(error).__name__}") from None
