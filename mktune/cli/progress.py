"""How a search shows itself: one bar on a terminal, one line per trial anywhere else. Always on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mktune import knobs
from mktune.cli import render
from mktune.cli.summary import size
from mktune.search import Observer

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from mktune.search import Progress
    from mktune.trial import Trial


@contextmanager
def watching(cell: str, trials: int | None, simulated: bool) -> Iterator[Observer]:
    """An observer for one search of `cell` ("M 16, KV 8192"), for as long as it runs."""
    if sys.stderr.isatty() and not knobs.plain_terminal():
        with _bar() as bar:
            yield BarObserver(bar, cell, trials, simulated)
    else:
        yield LineObserver(cell, simulated)


class LineObserver(Observer):
    """One line per trial."""

    def __init__(self, cell: str, simulated: bool) -> None:
        self._cell, self._mark = cell, " simulated" if simulated else ""

    def trial(self, trial: Trial, progress: Progress) -> None:
        of = f"/{progress.of}" if progress.of is not None else ""
        best = f"best {progress.best_us:.2f} µs" if progress.best_us is not None else "no span yet"
        what = f"{progress.part} alone" if progress.part else "trial"
        line = f"{self._cell}  {what} {progress.trials}{of}  {_ended(trial)}{self._mark}  {best}"
        render.note(f"{line}  {trial.plan.short_id}  {trial.source}")


class BarObserver(Observer):
    """A bar with the best span, and a line above it for each plan that is better than all before."""

    def __init__(self, bar: Bar, cell: str, trials: int | None, simulated: bool) -> None:
        self._bar, self._mark = bar, " simulated" if simulated else ""
        self._best: float | None = None
        bar.console.print(cell, style="bold", markup=False)
        self._task: TaskID = bar.add_task(cell, total=trials, best="", state="starting")

    def progress(self, progress: Progress) -> None:
        best = f"best {progress.best_us:.2f} µs{self._mark}" if progress.best_us is not None else ""
        state = "promoting the finalists" if progress.phase == "promote" else f"{progress.failed} failed"
        state = f"{progress.part} alone, before the search" if progress.part else state
        self._bar.update(self._task, completed=progress.trials, total=progress.of, best=best, state=state)

    def trial(self, trial: Trial, progress: Progress) -> None:
        self.progress(progress)
        if not progress.part and progress.best_us is not None and (self._best is None or progress.best_us < self._best):
            self._best = progress.best_us
            line = f"trial {progress.trials}  {_ended(trial)}{self._mark}  {trial.plan.short_id}  {trial.source}"
            text = render.visible(f"{line}  {size(trial.plan)}")
            self._bar.console.print(text, markup=False, emoji=False)


def _ended(trial: Trial) -> str:
    measured = trial.outcome.measurement
    span = f" {measured.span_us:.2f} µs" if measured is not None else ""
    reason = f": {render.one_line(trial.outcome.reason)}" if trial.outcome.reason else ""
    return f"{trial.outcome.status}{span}{reason}"


def _bar() -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[best]}", markup=False),
        TextColumn("{task.fields[state]}", markup=False),
        TimeElapsedColumn(),
        console=Console(file=sys.stderr, highlight=False),
        transient=True,
    )
