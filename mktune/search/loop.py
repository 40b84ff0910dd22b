"""The loop: take a proposal, measure it, commit the trial, tell the sampler."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from mktune.backends.base import Bench
from mktune.errors import CandidateError, InputError, MktuneError
from mktune.phases import Phases
from mktune.plan import Plan
from mktune.search.budget import Spending
from mktune.search.proposals import Proposal, Proposals
from mktune.search.result import Observer, Progress, span_of
from mktune.search.stopping import Stop
from mktune.store.trials import PlanTaken, StudyFull
from mktune.trial import BUILTIN, Measurement, Outcome, Policy, Status, Trial

if TYPE_CHECKING:
    from mktune.store import Store, Study


@dataclass
class Loop:
    """The trials of one study, and what making them cost.

    part     the op that is measured alone; empty for the study that was asked for
    trace    tell the sampler the critical path of every plan that is better than all before
    resumed  how many trials are from earlier runs
    again    plan id → number of an ended trial that is to be run again
    timed    seconds by phase; `inside`: of the phase "measure", by what the bench did; `alone`: of the ops' own loops
    """

    store: Store
    study: Study
    spending: Spending
    observer: Observer
    stop: Stop
    part: str = ""
    trace: bool = False
    trials: list[Trial] = field(default_factory=list)
    resumed: int = 0
    again: dict[str, int] = field(default_factory=dict)
    timed: Phases = field(default_factory=Phases)
    inside: Phases = field(default_factory=Phases)
    alone: Phases = field(default_factory=Phases)
    _shared: bool = False
    _best_us: float | None = None
    _failed: int = 0

    def resume(self, retry_failed: bool = False) -> list[Trial]:
        """Go on from the stored trials; those that failed, where they are to be run again, apart."""
        stored = self.store.trials(self.study)
        failed = [trial for trial in stored if retry_failed and is_failure(trial)]
        self.again = {trial.plan.plan_id: trial.number for trial in failed}
        self._take_over([trial for trial in stored if trial.plan.plan_id not in self.again] if failed else stored)
        self.resumed = len(self.trials)
        return failed

    def _take_over(self, trials: Sequence[Trial]) -> None:
        self.trials, self._best_us, self._failed = [], None, 0
        for trial in trials:
            self._add(trial)

    def _add(self, trial: Trial) -> None:
        span = span_of(trial)
        self.trials.append(trial)
        if span is None:
            self._failed += 1
        elif self._best_us is None or span < self._best_us:
            self._best_us = span

    def remember(self, bench: Bench, proposals: Proposals) -> None:
        """Never repeat a stored trial; learn from those whose spans mean the same as this bench's."""
        for trial in self.trials:
            measured = trial.outcome.measurement
            proposals.know(trial.plan, span_of(trial), measured is None or measured.policy == bench.policy)

    def run(
        self, bench: Bench, proposals: Proposals, before: Callable[[Proposal], None] = lambda proposal: None
    ) -> None:
        """Until the budget is spent or nothing is left to propose; `before` may end it by raising."""
        while self.spending.left(len(self.trials)):
            with self.timed("wait"), self.stop.interruptible():
                proposal = proposals.take(bench.ready)
            if proposal is None:
                break
            before(proposal)
            with self.timed("prepare"):
                bench.prepare([proposal.plan, *proposals.waiting()])
            try:
                number = self._begin(proposal)
            except PlanTaken:
                proposals.skip(proposal)
                continue
            except StudyFull:
                break
            proposals.refill()
            before_us = self.best_us
            trial = self._try(bench, proposal, number)
            proposals.tell(proposal, span_of(trial))
            if self.trace and self.best_us != before_us:
                self._trace(bench, proposals, proposal)
            self.observer.trial(trial, self.progress(proposals, trial.source))
        if self._shared:
            self._take_over(self.store.trials(self.study))

    def _trace(self, bench: Bench, proposals: Proposals, proposal: Proposal) -> None:
        """Tell the sampler where the time of the new incumbent goes; a trace explains, so that failing is no harm."""
        with self.timed("measure"), self.stop.interruptible(), suppress(CandidateError, InputError):
            proposals.tell_path(proposal, bench.trace(proposal.plan).path)

    def _begin(self, proposal: Proposal) -> int:
        """The number of the trial, whose plan is reserved for this process. Raises PlanTaken and StudyFull."""
        again = self.again.pop(proposal.plan.plan_id, None)
        limit = self.spending.budget.trials
        try:
            with self.timed("store"):
                number = self.store.begin_trial(
                    self.study, proposal.plan, proposal.source, key=proposal.key, limit=limit, replaces=again
                )
        except (PlanTaken, StudyFull):
            self._shared = True
            raise
        last = self.trials[-1].number if self.trials else -1
        self._shared |= number > last + 1  # another process has begun one, or left a lost one behind
        return number

    def _try(self, bench: Bench, proposal: Proposal, number: int) -> Trial:
        """Measure one plan and commit it."""
        started = datetime.now(UTC).isoformat(timespec="milliseconds")
        began = time.perf_counter()
        with self.timed("measure"), self.stop.interruptible():
            outcome = measured(bench, proposal.plan, None if proposal.source.startswith(BUILTIN) else self.best_us)
        spent_inside = dict(outcome.seconds)
        spent_inside.pop("total", None)
        compiling = spent_inside.pop("compile", 0.0)
        self.timed.add({"compile": compiling, "measure": -compiling})
        self.inside.add(spent_inside)
        spent = (*proposal.seconds, ("measure", time.perf_counter() - began))
        trial = Trial(number, proposal.plan, outcome, proposal.source, started, spent)
        with self.timed("store"):
            self.store.add_trial(self.study, trial)
        self._add(trial)
        return trial

    @property
    def best_us(self) -> float | None:
        return self._best_us

    def first_reason(self) -> str:
        """Why the first trial that failed did."""
        failed = next((trial.outcome for trial in self.trials if span_of(trial) is None), None)
        return f"{failed.status}: {failed.reason}" if failed else "none was run"

    def progress(self, proposals: Proposals, source: str, phase: str = "") -> Progress:
        return Progress(
            phase=phase or ("builtins" if source.startswith(BUILTIN) else "search"),
            trials=len(self.trials),
            of=self.spending.budget.trials,
            failed=self._failed,
            invalid=proposals.invalid,
            duplicate=proposals.duplicate,
            queued=len(proposals.waiting()),
            best_us=self.best_us,
            part=self.part,
        )


def is_failure(trial: Trial) -> bool:
    """The trial has no span, and not because its plan was clearly slower."""
    return trial.outcome.status not in (Status.OK, Status.PRUNED)


def ranking(trials: Sequence[Trial], policy: Policy) -> list[tuple[Measurement, Plan]]:
    """Measurement and plan of the trials that succeeded under `policy`, fastest first."""
    found = [
        (measured, trial)
        for trial in trials
        if (measured := trial.outcome.measurement) is not None
        and measured.policy == policy
        and trial.outcome.status is Status.OK
    ]
    found.sort(key=lambda entry: (entry[0].span_us, entry[1].number))
    return [(measured, trial.plan) for measured, trial in found]


def comparable(trials: Sequence[Trial], policy: Policy) -> list[tuple[float, Plan]]:
    """Span and plan of the trials that succeeded under `policy`, fastest first."""
    return [(measured.span_us, plan) for measured, plan in ranking(trials, policy)]


def measured(bench: Bench, plan: Plan, incumbent_us: float | None) -> Outcome:
    """What the bench says of a plan; whatever a candidate raises is its own failure, never the search's."""
    try:
        outcome = bench.measure(plan, incumbent_us)
    except CandidateError as error:
        return Outcome(Status(error.status), str(error))
    except MktuneError:
        raise
    except (Exception, SystemExit) as error:
        return Outcome(Status.CRASH, f"{type(error).__name__}: {error}")
    span = outcome.measurement.span_us if outcome.measurement else None
    if outcome.status is Status.OK and not (span is not None and math.isfinite(span) and span > 0):
        return replace(outcome, status=Status.CRASH, reason=f"a span of {span} µs", measurement=None)
    return outcome
