"""Leases on trials: a process holds what it has begun for a while, and says again and again that it still does.

A lease ends at a time of the database's clock, so that hosts whose clocks differ agree. That clock may be set as well,
so whoever waits for a lease also watches it by a clock of his own that nobody sets: see `Watch`. Where one is over, or
its process is known to be gone, another process takes the trial up: its plan is begun again under a new number, by one
process only and one time only, for a plan that ends its process twice would end them all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic
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
STILL_SECONDS = 2 * BEAT_SECONDS
"""How long a lease that has expired must have been watched without change before its trial may be taken up."""
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
    select(TrialRow.id, TrialRow.number, TrialRow.owner, TrialRow.lease, EXPIRED.label("expired"))
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


class Watch:
    """How long running trials' leases have stood still, by the monotonic clock of this process.

    Once the database's clock is set back, the lease of a dead process lasts for hours; set forward, that of a living
    one is over. So an expired lease counts as over only after it was watched for two beats, in which a living process
    would have renewed it, and one that was watched for its whole length is over whatever the database's clock says.
    """

    def __init__(self) -> None:
        self._seen: dict[int, dict[int, tuple[float | None, float]]] = {}  # study → row → its lease, since when

    def over(self, study: int, leases: Iterable[tuple[int, float | None, bool]]) -> set[int]:
        """The rows whose leases are over, of all that run: each row, its lease, whether that has expired."""
        now, before = monotonic(), self._seen.get(study, {})
        found, seen = set(), {}
        for row, lease, expired in leases:
            known = before.get(row)
            seen[row] = known if known is not None and known[0] == lease else (lease, now)
            if now - seen[row][1] >= (STILL_SECONDS if expired else LEASE_SECONDS):
                found.add(row)
        self._seen[study] = seen
        return found


def abandoned_rows(connection: Connection, study: Study, watch: Watch) -> dict[int, int]:
    """Row → number of the running trials whose processes are gone, by number."""
    rows = connection.execute(_RUNNING, {"study": study.id}).all()
    over = watch.over(study.id, [(row.id, row.lease, bool(row.expired)) for row in rows])
    return {row.id: row.number for row in rows if row.id in over or is_gone(row.owner)}


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
