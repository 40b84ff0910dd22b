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
from mktune.search.benches import Benches, Ended
from mktune.search.budget import Spending
from mktune.search.proposals import Proposal, Proposals
from mktune.search.result import Observer, Progress, learned_us, span_of
from mktune.search.stopping import Stop, Stopped
from mktune.store.trials import PlanTaken, StudyFull
from mktune.trial import BUILTIN, Measurement, Outcome, Policy, Status, Trial

if TYPE_CHECKING:
    from mktune.store import Store, Study

LOOK_SECONDS = 0.5
"""How often it is looked at what other processes of the study have done."""
WAIT_SECONDS = 0.1
"""Between two looks where there is nothing else to do."""


@dataclass(frozen=True)
class Begun:
    """A trial that is measured, since `started` (UTC, ISO 8601)."""

    proposal: Proposal
    number: int
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))

    @property
    def is_builtin(self) -> bool:
        return self.proposal.source.startswith(BUILTIN)


@dataclass
class Loop:
    """The trials of one study, and what making them cost.

    part      the op that is measured alone; empty for the study that was asked for
    trace     tell the sampler the critical path of every plan that is better than all before
    resumed   how many trials are from earlier runs
    again     plan id → number of an ended trial that is to be run again
    measured  how many of the trials are of this run
    shared    other processes search the study too; found out where nobody said so
    timed     seconds by phase, of several benches that measure at once their mean
    inside    those of the phase "measure", by what the bench did
    alone     those of the ops' own loops
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
    shared: bool = False
    measured: int = 0
    _last: int = -1
    _look_at: float = 0.0
    _held: Proposal | None = None
    _best_us: float | None = None
    _failed: int = 0

    def resume(self, retry_failed: bool = False) -> list[Trial]:
        """Go on from the stored trials; those that failed, where they are to be run again, apart."""
        stored = self.store.trials(self.study)
        failed = [trial for trial in stored if retry_failed and is_failure(trial)]
        self.again = {trial.plan.plan_id: trial.number for trial in failed}
        self._take_over([trial for trial in stored if trial.plan.plan_id not in self.again] if failed else stored)
        self.resumed = len(self.trials)
        self.shared |= any(trial.elsewhere for trial in self.store.running(self.study))
        return failed

    def _take_over(self, trials: Sequence[Trial]) -> None:
        self.trials, self._best_us, self._failed, self._last = [], None, 0, -1
        for trial in trials:
            self._add(trial)

    def _add(self, trial: Trial) -> None:
        span = span_of(trial)
        self.trials.append(trial)
        self._last = max(self._last, trial.number)
        self._failed += is_failure(trial)
        if span is not None and (self._best_us is None or span < self._best_us):
            self._best_us = span

    def remember(self, policy: Policy, proposals: Proposals) -> None:
        """Never repeat a stored trial; learn from those whose spans were taken under this policy."""
        for trial in self.trials:
            proposals.know(trial.plan, learned_us(trial), is_learned_by(trial, policy))

    def run(
        self,
        benches: Benches[Begun],
        proposals: Proposals,
        before: Callable[[Proposal], None] = lambda proposal: None,
    ) -> None:
        """Until the budget is spent or nothing is left to propose; `before` may end it by raising.

        Where other processes search the study too, what a dead one had begun is begun again here, and what a living one
        still measures is waited for: the trials of all are known in the end.
        """
        try:
            while True:
                while benches.has_room and self.spending.left(len(self.trials) + len(benches.busy)):
                    begun = self._next(benches, proposals, before)
                    if begun is None:
                        break
                    self._give(benches, proposals, begun)
                if benches.busy:
                    self._take(benches, proposals)
                elif not self._others_run():
                    break
        except Stopped:
            for ended in benches.over():
                self._end(ended, proposals, benches.number)
            raise
        if self.shared:
            self._take_over(self.store.trials(self.study))

    def _next(self, benches: Benches[Begun], proposals: Proposals, before: Callable[[Proposal], None]) -> Begun | None:
        """A trial that has begun, and is to be measured; None where there is nothing to do now."""
        while True:
            if self.shared and time.monotonic() >= self._look_at:
                self._learn(benches, proposals)
                if (taken := self._take_up(proposals)) is not None:
                    return taken
            if self._held is None:
                with self.timed("wait"), self.stop.interruptible():
                    self._held = proposals.take(benches.ready, benches.compiled)
            if self._held is None:
                return None
            proposal = self._held
            if not proposal.source.startswith(BUILTIN) and any(each.is_builtin for each in benches.busy):
                return None  # nothing can be judged before the built-in plans are
            before(proposal)
            with self.timed("prepare"):
                benches.prepare([proposal.plan, *proposals.waiting()])
            try:
                with proposals.held():
                    number = self._begin(proposal)
            except PlanTaken:
                self._held = None
                proposals.skip(proposal)
                continue
            except StudyFull:
                return None  # the proposal is kept: what another process has begun may yet be lost
            self._held = None
            return Begun(proposal, number)

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
            self.shared = True
            raise
        self.shared |= number > self._last + 1  # another process has begun one, or left a lost one behind
        self._last = max(self._last, number)
        return number

    def _take_up(self, proposals: Proposals) -> Begun | None:
        """A trial whose process is gone, begun again."""
        with self.timed("store"):
            taken = self.store.take_up(self.study)
        if taken is None:
            return None
        self._look_at = 0.0  # there may be more
        self._last = max(self._last, taken.number)
        return Begun(proposals.adopt(taken.plan, taken.source, taken.key or ""), taken.number)

    def _learn(self, benches: Benches[Begun], proposals: Proposals) -> None:
        """The sampler is told what other processes have measured meanwhile."""
        self._look_at = time.monotonic() + LOOK_SECONDS
        known = {trial.number for trial in self.trials}
        with self.timed("store"):
            new = self.store.trials(self.study, but=known)
        for trial in new:
            self._add(trial)
            proposals.learn(trial.plan, learned_us(trial), is_learned_by(trial, benches.policy))

    def _others_run(self) -> bool:
        """Wait a moment for the trials of other processes; False where none runs, or the time is up."""
        if not self.shared or self.spending.seconds_left() == 0.0:
            return False
        with self.timed("store"):
            others = [trial for trial in self.store.running(self.study) if trial.elsewhere]
        if any(trial.abandoned for trial in others):
            if not self.spending.left(len(self.trials)):
                self.store.lose_abandoned(self.study)
            self._look_at = 0.0
        with self.timed("wait"), self.stop.interruptible():
            time.sleep(WAIT_SECONDS if others else 0.0)
        return bool(others)

    def _give(self, benches: Benches[Begun], proposals: Proposals, begun: Begun) -> None:
        """Have it measured, and the next ones proposed meanwhile."""
        plan, incumbent_us = begun.proposal.plan, None if begun.is_builtin else self.best_us
        benches.begin(begun, lambda bench: measured(bench, plan, incumbent_us))
        proposals.refill()

    def _take(self, benches: Benches[Begun], proposals: Proposals) -> None:
        """Wait until a measurement ends, and commit it."""
        with self.stop.interruptible():
            ended = benches.take()
        self._end(ended, proposals, benches.number)

    def _end(self, ended: Ended[Begun], proposals: Proposals, at_once: int) -> None:
        outcome, begun, proposal = ended.outcome(), ended.begun, ended.begun.proposal
        inside = dict(outcome.seconds)
        inside.pop("total", None)
        compiling = inside.pop("compile", 0.0)
        self.timed.add({"compile": compiling / at_once, "measure": (ended.seconds - compiling) / at_once})
        self.inside.add({name: value / at_once for name, value in inside.items()})
        spent = (*proposal.seconds, ("measure", ended.seconds))
        trial = Trial(begun.number, proposal.plan, outcome, proposal.source, begun.started, spent, ended.gpu)
        try:
            with self.timed("store"), proposals.held():
                self.store.add_trial(self.study, trial)
        except PlanTaken:  # this process was cut off for so long that another has taken the plan up
            self.shared = True
            return
        self.measured += 1
        before_us = self.best_us
        self._add(trial)
        proposals.tell(proposal, learned_us(trial))
        if self.trace and self.best_us != before_us:
            self._trace(ended.bench, proposals, proposal)
        self.observer.trial(trial, self.progress(proposals, trial.source))

    @property
    def best_us(self) -> float | None:
        return self._best_us

    def first_reason(self) -> str:
        """Why the first trial that failed did."""
        failed = next((trial.outcome for trial in self.trials if is_failure(trial)), None)
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


def is_learned_by(trial: Trial, policy: Policy) -> bool:
    """The trial's span means the same as one under `policy`, or it has none."""
    measured = trial.outcome.measurement
    return measured is None or measured.policy == policy


def learned(trials: Sequence[Trial], policy: Policy) -> list[tuple[float, Plan]]:
    """Span and plan of the trials that were measured under `policy`, in order."""
    spans = [(learned_us(trial), trial) for trial in trials if is_learned_by(trial, policy)]
    return [(span, trial.plan) for span, trial in spans if span is not None]


def measured(bench: Bench, plan: Plan, incumbent_us: float | None) -> Outcome:
    """What the bench says of a plan, twice where it beats the incumbent and builds differ: the slower time counts.

    A plan that is built again is a percent or so faster or slower (`Winner.noise_floor`). Without a second look the
    best of some hundred trials is the luckiest, and the search goes on from there.
    """
    first = _answer(bench, plan, incumbent_us)
    if incumbent_us is None or not bench.builds_differ or not _beats(first, incumbent_us):
        return first
    again = _answer(bench, plan, None)
    if first.measurement is not None and _beats(again, first.measurement.span_us):
        again = replace(again, measurement=first.measurement)
    spent = Phases()
    for outcome in (first, again):
        spent.add(dict(outcome.seconds))
    return replace(again, seconds=tuple(sorted(spent.seconds.items())))


def _beats(outcome: Outcome, span_us: float) -> bool:
    found = outcome.measurement
    return outcome.status is Status.OK and found is not None and found.span_us < span_us


def _answer(bench: Bench, plan: Plan, incumbent_us: float | None) -> Outcome:
    """Whatever a candidate raises is its own failure, never the search's."""
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
