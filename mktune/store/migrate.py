"""Bringing a database to this version's tables. Safe where several processes open an empty database at once."""

from __future__ import annotations

import threading

from sqlalchemy import Connection, inspect, text

from mktune import resources
from mktune.errors import NothingFoundError, StoreError
from mktune.location import SCHEMA, VERSION_TABLE
from mktune.store.database import Database
from mktune.store.problems import newer_schema

_one_at_a_time = threading.Lock()  # alembic keeps its context in module globals


def upgrade(database: Database) -> None:
    """Create or upgrade the tables. Raises StoreError where a newer mktune made them; nothing is written then."""
    with database.read() as connection:
        if schema_of(connection) == SCHEMA:
            return
    with _one_at_a_time, database.write(alone=True) as connection:
        found = schema_of(connection)  # another process may have been here first
        if found != SCHEMA:
            _check_older(database, found)
            if found is None:
                _check_free(database, connection)
            _run(connection)


def check(database: Database, oldest: str = SCHEMA) -> None:
    """Raise StoreError unless the tables are of this version, or of one since `oldest` (for stores opened for reading),
    NothingFoundError where there are none: another process is just making them, or died before it did."""
    with database.read() as connection:
        found = schema_of(connection)
        empty = found is None and not inspect(connection).get_table_names()
    if empty:
        raise NothingFoundError(f"nothing is stored yet: the store {database.location} is empty")
    if found is None:
        raise StoreError(f"{database.location} is a database, but not a store of mktune: give another --store")
    if found != SCHEMA:
        _check_older(database, found)
    if found < oldest:
        raise StoreError(
            f"the store {database.location} has schema {found}; any `mktune tune` with it upgrades it to {SCHEMA}"
        )


def schema_of(connection: Connection) -> str | None:
    """The version of the tables; None where there are none."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return None if found is None else str(found)


def _check_free(database: Database, connection: Connection) -> None:
    """Nothing says which version the tables are: there must be none whose name ours would take."""
    taken = [name for name in inspect(connection).get_table_names() if name.startswith("mktune_")]
    taken = [name for name in taken if name != VERSION_TABLE]
    if taken:
        raise StoreError(
            f"{database.location} holds a table {min(taken)}, but is not a store of mktune: give another --store"
        )


def _check_older(database: Database, found: str | None) -> None:
    """Versions are numbers of four digits, so a name that is not below ours is of a mktune after ours."""
    if found is not None and not found < SCHEMA:
        raise newer_schema(database.location, found, SCHEMA)
    if found is not None and found not in _released():
        raise StoreError(
            f"the store {database.location} has schema {found}, which no mktune up to this one ({SCHEMA}) made: "
            "give another --store"
        )


def _released() -> set[str]:
    """The versions that there are migrations from."""
    return {path.name[: len(SCHEMA)] for path in (resources.migrations() / "versions").glob("[0-9]*.py")}


def _run(connection: Connection) -> None:
    from alembic import command  # 0.3 s to import, and an up-to-date store does not need it
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(resources.migrations()).replace("%", "%%"))
    command.upgrade(config, "head")
