"""`mktune leaderboard --watch`: a running study followed live, by looking at the store again and again.

Each look opens the store for reading and closes it, so that nothing of the search ever waits for the one who looks, and
its last writer finds the file unused. A terminal is drawn anew; anywhere else each change is a line.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import typer

from mktune import knobs
from mktune.cli import render
from mktune.cli.leaderboard import Wanted, find, problem, tables
from mktune.cli.options import check_known
from mktune.cli.summary import count, shape_words, structure
from mktune.errors import NothingFoundError, StoreError
from mktune.location import StoreLocation
from mktune.search import Stop
from mktune.search.stopping import Stopped

if TYPE_CHECKING:
    from mktune.store import Activity, LeaderboardRow, Store

RATE_SECONDS = 30.0  # over which trials per minute are counted


@dataclass(frozen=True)
class Look:
    """What one look at the store found. `note` says why there is nothing new, where there is not."""

    store: str
    time: datetime
    studies: tuple[Activity, ...] = ()
    rows: tuple[LeaderboardRow, ...] = ()
    note: str = ""


def follow(url: str | None, wanted: Wanted, every: float) -> None:
    """Show what is wanted until Ctrl-C, or where nothing is filtered the study that did something last.

    Raises InputError for what can never be there; a store or study that is not there yet is waited for.
    """
    location = str(StoreLocation.parse(url))
    check_known(wanted.workload, wanted.ops)
    last = Look(location, datetime.now(UTC))
    with Stop(before_exit=render.restore_cursor) as stop, _view() as view:
        while not stop.asked:
            last = _look(url, wanted, last)
            view.show(last)
            _wait(stop, every)
    raise typer.Exit(stop.exit_code)  # a signal is the one way to end


def _wait(stop: Stop, seconds: float) -> None:
    """Until the next look is due or a signal has come. A look itself is never torn by one."""
    due = time.monotonic() + seconds
    with suppress(Stopped):
        while not stop.asked and (left := due - time.monotonic()) > 0:
            with stop.interruptible():
                time.sleep(min(left, 0.5))


def _look(url: str | None, wanted: Wanted, last: Look) -> Look:
    """What is there now; of a store that cannot be read at this moment, what was there before."""
    from mktune.store import Store

    now = datetime.now(UTC)
    try:
        with Store.open(url, write=False, timeout_s=1.0) as store:
            return replace(_found(store, wanted), store=last.store, time=now)
    except (NothingFoundError, StoreError) as error:
        return replace(last, time=now, note=str(error))


def _found(store: Store, wanted: Wanted) -> Look:
    active = store.activity()
    if not active:
        return Look("", datetime.now(UTC), note="no trial has begun yet")
    if wanted.everything:
        wanted = replace(wanted, study=active[-1].study.name)
    rows = tuple(find(store, wanted))
    shown = {row.study for row in rows} if wanted.study is None else {wanted.study}
    studies = tuple(each for each in active if each.study.name in shown)
    return Look("", datetime.now(UTC), studies, rows, "" if rows else "no span of what is wanted yet")


class Lines:
    """A line for each problem whenever something of it has changed."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def show(self, look: Look) -> None:
        clock = f"{look.time.astimezone():%H:%M:%S}"
        lines = [look.note] if look.note else []
        for _, group in groupby(look.rows, key=problem):
            lines.append(_best(next(iter(group)), look))
        for text in lines:
            if text not in self._said:
                render.line(f"{clock}  {text}")
        self._said = set(lines)
        render.flush()


class Screen:
    """The tables, drawn over themselves, with as many rows as the terminal has room for."""

    def __init__(self, redrawn: render.Redrawn) -> None:
        self._redrawn = redrawn
        self._ended: dict[str, deque[tuple[float, int]]] = {}

    def show(self, look: Look) -> None:
        most = max((row.rank for row in look.rows), default=1)
        self._redrawn.draw(partial(self._draw, look, rows) for rows in range(most, 0, -1))

    def _draw(self, look: Look, most: int) -> None:
        render.folded(f"{look.store}  {look.time.astimezone():%H:%M:%S}  Ctrl-C ends", "dim")
        for each in look.studies:
            render.folded(f"{each.study.name}: {_progress(each)}, {self._rate(each)}{_ago(each, look.time)}")
        if look.note:
            render.folded(look.note, "yellow")
        if look.rows:
            render.line()
            tables([row for row in look.rows if row.rank <= most], structure)

    def _rate(self, each: Activity) -> str:
        """Trials a minute since this view first saw the study, or of late."""
        now = time.monotonic()
        seen = self._ended.setdefault(each.study.name, deque())
        seen.append((now, each.ended))
        while seen[0][0] < now - RATE_SECONDS:
            seen.popleft()
        seconds, trials = now - seen[0][0], each.ended - seen[0][1]
        return f"{60 * trials / seconds:.0f} a minute, " if seconds > 0 and trials > 0 else ""


@contextmanager
def _view() -> Iterator[Screen | Lines]:
    if render.is_terminal() and not knobs.plain_terminal():
        with render.Redrawn() as redrawn:
            yield Screen(redrawn)
    else:
        yield Lines()


def _best(row: LeaderboardRow, look: Look) -> str:
    """The first of a problem on one line."""
    mark = " simulated" if row.simulated else ""
    span = f"best {row.span_us:.2f} µs{mark}"
    gain = f"  ×{row.speedup:.2f} of serial" if row.speedup is not None else ""
    progress = [_progress(each) for each in look.studies if each.study.name == row.study]
    parts = [",".join(row.ops), shape_words(row.shape), row.gpu, *progress, f"{span}{gain}", row.plan.short_id]
    return "  ".join([*parts, "winner" if row.winner else row.source])


def _progress(each: Activity) -> str:
    """ "34 trials, 2 hang, 1 running"."""
    others = [f"{number} {status}" for status, number in sorted(each.counts.items()) if status != "ok"]
    return ", ".join([count(each.ended, "trial"), *others])


def _ago(each: Activity, now: datetime) -> str:
    try:
        seconds = (now - datetime.fromisoformat(each.last)).total_seconds()
    except (ValueError, TypeError):
        return f"last at {each.last}"
    return "now" if seconds < 2 else f"last {seconds:.0f} s ago" if seconds < 600 else f"last at {each.last[:16]} UTC"
