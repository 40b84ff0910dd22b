"""winners are packed, and the shapes that they serve are columns"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

RANGES = ("m_low", "m_high", "kv_low", "kv_high")
NOTHING = (1, 0, 1, 0)
SOME = 500  # rows at a time: a store may hold more than fits into memory


def upgrade() -> None:
    for name in RANGES:
        op.add_column("mktune_plans", sa.Column(name, sa.Integer(), nullable=True))
    op.add_column("mktune_plans", sa.Column("packed", sa.LargeBinary(), nullable=True))
    _fill("document", (*RANGES, "packed"), lambda found: (*_ranges(found), _packed(found)))
    with op.batch_alter_table("mktune_plans") as batch:
        batch.drop_column("document")
        batch.alter_column("packed", new_column_name="document", existing_type=sa.LargeBinary(), nullable=False)
        for name in RANGES:
            batch.alter_column(name, existing_type=sa.Integer(), nullable=False)


def downgrade() -> None:
    op.add_column("mktune_plans", sa.Column("unpacked", sa.Text(), nullable=True))
    _fill("document", ("unpacked",), lambda found: (_unpacked(found),))
    with op.batch_alter_table("mktune_plans") as batch:
        for name in (*RANGES, "document"):
            batch.drop_column(name)
        batch.alter_column("unpacked", new_column_name="document", existing_type=sa.Text(), nullable=False)


def _fill(source: str, targets: tuple[str, ...], make: Callable[[Any], tuple[Any, ...]]) -> None:
    plans = sa.table("mktune_plans", sa.column("id"), sa.column(source), *map(sa.column, targets))
    own = plans.c.id == sa.bindparam("own")
    change = plans.update().where(own).values({name: sa.bindparam(f"new_{name}") for name in targets})
    for rows in _some(plans, source):
        made = [(row, dict(zip(targets, make(found), strict=True))) for row, found in rows]
        values = [{"own": row} | {f"new_{name}": value for name, value in new.items()} for row, new in made]
        op.get_bind().execute(change, values)


def _some(plans: Any, source: str) -> Iterator[list[Any]]:
    # As bytes: text that SQLite cannot decode is one damaged plan, and does not cost the others.
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    found = sa.cast(plans.c[source], sa.LargeBinary()) if is_sqlite else plans.c[source]
    last = -1
    while True:
        query = sa.select(plans.c.id, found).where(plans.c.id > last).order_by(plans.c.id).limit(SOME)
        rows = list(op.get_bind().execute(query).all())
        if not rows:
            return
        yield rows
        last = rows[-1][0]


def _ranges(document: Any) -> tuple[int, ...]:
    """Of a damaged document none: its plan is not served, and whoever reads it says why."""
    try:
        plan = json.loads(document)["plan"]
        found = (*plan["m_range"], *plan["kv_range"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return NOTHING
    whole = len(found) == len(RANGES) and all(type(value) is int and 0 <= value < 2**31 for value in found)
    return found if whole else NOTHING


def _packed(document: Any) -> bytes:
    """Also what is damaged, as it is."""
    if isinstance(document, bytes):
        return zlib.compress(document)
    return zlib.compress(("" if document is None else str(document)).encode(errors="replace"))


def _unpacked(document: Any) -> str:
    try:
        return zlib.decompress(bytes(document)).decode(errors="replace")
    except (zlib.error, TypeError):
        return ""
