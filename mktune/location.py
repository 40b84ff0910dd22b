"""Where a store is: what a user may write for it, and how it is shown to people.

sqlite:///PATH      an SQLite file; everything behind the third slash is the path, also %, ?, # and blanks
PATH                the same
postgresql://…      a PostgreSQL database
nothing             MKTUNE_STORE, else mktune.db in MKTUNE_HOME
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from mktune import knobs
from mktune.errors import InputError

FILE_NAME = "mktune.db"
SCHEMA = "0005"
"""The newest migration: the version of the tables that this mktune reads and writes."""
OLDEST = "0001"
"""Since then the columns of a winner's key are what they are: look-ups read every store from there on."""
PACKED = "0005"
"""Since then a winner's document is packed, and the ranges that it serves are columns."""
VERSION_TABLE = "mktune_alembic_version"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_POSTGRES = ("postgresql", "postgres", "postgresql+psycopg")


@dataclass(frozen=True)
class StoreLocation:
    """A file (`path`) or a PostgreSQL database (`url`, which may hold a password). `str()` hides the password."""

    path: Path | None = None
    url: str = field(default="", repr=False)

    @classmethod
    def parse(cls, text: str | os.PathLike[str] | None) -> StoreLocation:
        """The place that `text` names. Raises InputError where it names none."""
        if text is None:
            return cls.default()
        given = os.fspath(text)
        match = _SCHEME.match(given)
        scheme = match.group(1).lower() if match else ""
        if scheme in _POSTGRES:
            if given.partition("?")[0].count("@") > 1:  # where such a URL is cut decides how much of a password shows
                raise InputError("the store's URL holds more than one @: write %40 for one in a name or a password")
            return cls(url="postgresql+psycopg" + given[len(scheme) :])
        if scheme in ("sqlite", "sqlite+pysqlite"):
            given = _sqlite_path(given[len(scheme) + 3 :])
        elif scheme:
            raise InputError(f"a store is sqlite:///PATH, PATH or postgresql://…, not {scheme}://")
        return cls(path=_file(given))

    @classmethod
    def default(cls) -> StoreLocation:
        """What the environment says, else the file in the user's data folder."""
        if url := knobs.store_url():
            return cls.parse(url)
        return cls(path=(knobs.home() / FILE_NAME).absolute())

    def __str__(self) -> str:
        return hide_password(self.url) if self.path is None else str(self.path)


def hide_password(text: str) -> str:
    """`text` with the password of any URL in it replaced; also where a path has swallowed one of its slashes."""
    text = re.sub(r"(:/{1,2}[^:/@\s]*:)\S*@", r"\1***@", text)
    return re.sub(r"(?i)(password=)('[^']*'|[^&\s'\"]+)", r"\1***", text)


def _sqlite_path(rest: str) -> str:
    if not rest.startswith("/") or rest in ("/", "/:memory:"):
        raise InputError("an SQLite store is sqlite:///PATH (four slashes for an absolute path)")
    return rest[1:]


def _file(text: str) -> Path:
    if not text or "\0" in text:
        raise InputError("the store's path is empty" if not text else "the store's path holds a NUL character")
    try:
        os.fsencode(text)
        path = Path(text).expanduser().absolute()
    except (RuntimeError, UnicodeError) as error:  # no such user; no name that a file can have
        raise InputError(f"the store {text!r}: {error}") from None
    if os.path.isdir(path):  # unlike path.is_dir(), no error for a place that may not be looked at
        raise InputError(f"the store {path} is a folder; give a file, such as {path / FILE_NAME}")
    return path
