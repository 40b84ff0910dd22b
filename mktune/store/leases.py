"""Leases on trials: a process holds what it has begun for a while, and says again and again that it still does.

A lease ends at a time of the database's clock, so that hosts whose clocks differ agree. Where one has expired, or its
process is known to be gone, another process takes the trial up: its plan is begun again under a new number, by one
process only and one time only, for a plan that ends its process twice would end them all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Float, bindparam, func, select, tuple_, update
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from mktune.errors import MktuneError
from mktune.plan import Plan
from mktune.store.models import TrialRow
from mktune.store.owner import is_gone
from mktune.store.stored_plan import stored_plan
from mktune.store.studies import Study

LEASE_SECONDS = 60.0
"""How long a process that says nothing keeps a trial."""
BEAT_SECONDS = 15.0
"""How often it says that it still runs its trials."""
ATTEMPTS = 2
"""How often a plan is begun whose process ends before its trial does."""


class database_seconds(FunctionElement[float]):
    """Seconds since 1970 by the clock of the database, now and not when the transaction began."""

    inherit_cache = True
    type = Float(53)


@compiles(database_seconds)
def _of_a_server(element: Any, compiler: Any, **options: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"


@compiles(database_seconds, "sqlite")
def _of_sqlite(element: Any, compiler: Any, **options: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


LEASE_END = database_seconds() + bindparam("lease_s", type_=Float(53))
"""When a lease that is given now ends; takes `lease_s`."""
EXPIRED = func.coalesce(TrialRow.lease < database_seconds(), True)

_RUNNING = (
    select(TrialRow.id, TrialRow.number, TrialRow.owner, EXPIRED.label("expired"))
    .where(TrialRow.study_id == bindparam("study"), TrialRow.status.is_(None))
    .order_by(TrialRow.number)
)
_CLAIM = (
    select(TrialRow.number, TrialRow.plan, TrialRow.source, TrialRow.reserved, TrialRow.attempt)
    .where(TrialRow.id == bindparam("row"), TrialRow.status.is_(None))
    .with_for_update(skip_locked=True)
)


@dataclass(frozen=True)
class Abandoned:
    """A running trial whose process is gone. `key` is what it had reserved, `attempt` counts from 1."""

    number: int
    plan: Plan
    source: str
    key: str | None
    attempt: int


def abandoned_rows(connection: Connection, study: Study, held: Collection[int]) -> list[int]:
    """The rows of running trials whose processes are gone, by number; not those of the numbers that are held here."""
    rows = connection.execute(_RUNNING, {"study": study.id}).all()
    return [row.id for row in rows if row.number not in held and is_gone(row.owner, bool(row.expired))]


def claim(connection: Connection, row: int) -> Abandoned | None:
    """Lock that trial until the transaction ends; None where another process has it, or it has ended meanwhile."""
    found = connection.execute(_CLAIM, {"row": row}).first()
    if found is None:
        return None
    return Abandoned(found.number, stored_plan(found.plan), found.source, found.reserved, found.attempt)


def renew(connection: Connection, trials: Iterable[tuple[int, int]]) -> None:
    """Give new leases on running trials, each as (study, number)."""
    which = tuple_(TrialRow.study_id, TrialRow.number).in_(list(trials))
    statement = update(TrialRow).where(which, TrialRow.status.is_(None)).values(lease=LEASE_END)
    connection.execute(statement, {"lease_s": LEASE_SECONDS})


class Heartbeat:
    """Calls `beat` every BEAT_SECONDS on a thread of its own, from the first `start` until it is stopped."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self._beat = beat
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, if it does not run."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mktune-lease", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End it; on return no beat is under way. May be called twice."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(BEAT_SECONDS):
            try:
                self._beat()
            except MktuneError:  # locked, or a connection that dropped: a lease outlasts several beats
                continue
