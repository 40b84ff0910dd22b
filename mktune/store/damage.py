"""Damaged SQLite files: found before anything is written, and set aside so that a new store can begin.

Only what was a store of mktune, or is nothing but NUL bytes (a file cut off by a power failure), is moved; any other
file may be somebody's own. Nothing is ever deleted.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

CHECK = "PRAGMA quick_check(1)"
_log = logging.getLogger("mktune.store")
_OWN = (b"mktune_", b'"mktune":', b'"m_range":')  # names of tables, and what stands in every winner and plan
_CHUNK = 1 << 20
_DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
_COMPANIONS = ("-wal", "-journal", "-shm")


def damage(path: Path) -> str:
    """What SQLite says is wrong with a file that may be written, in one line; empty where it is sound or missing."""
    try:
        connection = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True)
    except sqlite3.Error:
        return ""
    try:
        found = connection.execute(CHECK).fetchone()[0]
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "") or ""
        return str(error) if name.startswith(_DAMAGE) else ""
    except UnicodeDecodeError:
        return "damaged names"
    finally:
        connection.close()
    return told(found)


def told(found: str) -> str:
    """What `CHECK` found as one line; empty where that is nothing."""
    return "" if found == "ok" else " ".join(found.split()[:20])


def set_aside_if_damaged(path: Path) -> Path | None:
    """Move a damaged store, with its log, to `<name>.corrupt-<time>` beside it; where to, or None if it is sound.

    Of several processes that find it at once, one moves it.
    """
    path = path.resolve()
    if not os.path.isfile(path):  # a device is nobody's to move
        return None
    reason = damage(path)
    if not (reason and _is_ours(path)):
        return None
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not os.path.samestat(os.fstat(file.fileno()), path.stat()) or not damage(path):
                return None  # another process was faster, or the damage was only in our view
            target = _free_name(path)
            for companion in _COMPANIONS:  # before the file: an old log must never meet a new database
                if os.path.exists(source := f"{path}{companion}"):
                    os.rename(source, f"{target}{companion}")
            os.rename(path, target)
    except OSError:  # moved by another process, or not to be moved by this user: then opening it says what is wrong
        return None
    _log.warning("the store %s is damaged (%s): set aside as %s, nothing of it deleted", path, reason, target.name)
    return target


def _is_ours(path: Path) -> bool:
    """Whether the file was a store of mktune, or is nothing but NUL bytes."""
    blank, named, binary, tail = True, False, False, b""
    for chunk in _chunks(path):
        blank = blank and not chunk.strip(b"\0")
        named = named or any(name in tail + chunk for name in _OWN)
        binary = binary or b"\0" in chunk
        tail = chunk[-16:]
    return blank or (named and binary)


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk
    except OSError:
        yield b"?"


def _free_name(path: Path) -> Path:
    stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    names = (path.with_name(f"{path.name}.corrupt-{stamp}{more}") for more in ("", *(f"-{n}" for n in range(2, 1000))))
    return next(name for name in names if not os.path.lexists(name))
