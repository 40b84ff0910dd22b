"""How Alembic reaches the tables: over the connection that `mktune.store` hands in, or over `-x store=URL`."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from mktune.location import VERSION_TABLE, StoreLocation
from mktune.store.database import Database
from mktune.store.models import Base


def _include(name: str | None, kind: str, _parents: object) -> bool:
    return kind != "table" or (name or "").startswith("mktune_")


def _migrate(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        version_table=VERSION_TABLE,
        include_name=_include,
        transactional_ddl=True,
        render_as_batch=connection.dialect.name == "sqlite",
    )
    with context.begin_transaction():
        context.run_migrations()


if given := context.config.attributes.get("connection"):
    _migrate(given)
else:
    location = StoreLocation.parse(context.get_x_argument(as_dictionary=True).get("store"))
    database = Database(location, write=True, timeout_s=15.0)
    with database.write(alone=True) as opened:
        _migrate(opened)
    database.close()
