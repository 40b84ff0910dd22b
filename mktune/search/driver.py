"""The search loop: propose, measure, remember; then promote the best and store the winner."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from mktune.backends.base import Backend, Bench, Problem
from mktune.errors import CandidateError, MktuneError, NothingFoundError
from mktune.graph.builtin import builtin_plans
from mktune.measure.promotion import Arm, check_builtins
from mktune.phases import Phases
from mktune.plan import Plan
from mktune.search.budget import Budget
from mktune.search.proposals import Proposal, Proposals
from mktune.search.result import Observer, Progress, TuneResult, span_of
from mktune.search.samplers.base import make_sampler
from mktune.search.stopping import Stop, Stopped
from mktune.space import SearchSpace
from mktune.trial import BUILTIN, Outcome, Status, Trial, Winner

if TYPE_CHECKING:
    from mktune.store import Store, Study

FINALISTS = 4
"""Trials, fastest first, that are measured again beside the built-in plans."""


def tune(
    space: SearchSpace,
    backend: Backend,
    store: Store,
    study: Study,
    budget: Budget,
    *,
    observer: Observer | None = None,
    stop: Stop | None = None,
    worker: int = 0,
) -> TuneResult:
    """Search `space` with the study's sampler and seed, going on from the trials that the study has.

    Built-in plans come first. Every trial is committed when it ends. Raises NothingFoundError where no built-in plan
    runs or no trial succeeded, MktuneError where a built-in plan gives wrong results, SetupError and StoreError.
    """
    search = _Search(space, backend.device.arch, store, study, budget, observer or Observer(), stop or Stop())
    sampler = make_sampler(study.sampler, space, study.seed, worker)
    problem = Problem(study.problem.workload, tuple(space.graph.calls), space.shape, study.seed)
    given = [(BUILTIN + name, plan) for name, plan in search.builtins.items()]
    search.resume()
    limit = None if budget.trials is None else max(0, budget.trials - search.resumed)
    with Proposals(space, sampler, study.sampler, given, limit) as proposals, backend.open(problem) as bench:
        search.remember(bench, proposals)
        try:
            search.loop(bench, proposals)
            proposals.close()  # nothing else runs while the finalists are compared
            winner = search.promote(bench, proposals)
        except Stopped:
            winner = None
        finally:
            proposals.close()
            store.add_counts(study, invalid=proposals.invalid, duplicate=proposals.duplicate)
    return search.result(proposals, winner)


@dataclass
class _Search:
    """One run of the loop: what it knows, and what it has spent."""

    space: SearchSpace
    arch: str
    store: Store
    study: Study
    budget: Budget
    observer: Observer
    stop: Stop
    trials: list[Trial] = field(default_factory=list)
    resumed: int = 0
    stored: bool = False
    timed: Phases = field(default_factory=Phases)
    began: float = field(default_factory=time.perf_counter)
    builtins: dict[str, Plan] = field(init=False)

    def __post_init__(self) -> None:
        space = self.space
        self.builtins = builtin_plans(space.workload, tuple(space.graph.calls), space.shape, self.arch)

    def resume(self) -> None:
        """Go on from the stored trials."""
        self.trials = self.store.trials(self.study)
        self.resumed = len(self.trials)

    def remember(self, bench: Bench, proposals: Proposals) -> None:
        """Never repeat a stored trial; learn from those whose spans mean the same as this bench's."""
        for trial in self.trials:
            measured = trial.outcome.measurement
            proposals.know(trial.plan, span_of(trial), measured is None or measured.policy == bench.policy)

    def loop(self, bench: Bench, proposals: Proposals) -> None:
        spending = self.budget.start()
        while spending.left(len(self.trials)):
            with self.timed("wait"), self.stop.interruptible():
                proposal = proposals.take(bench.ready)
            if proposal is None:
                break
            self.check_builtins(proposal)
            bench.prepare([proposal.plan, *proposals.waiting()])
            trial = self.run(bench, proposal)
            proposals.tell(proposal, span_of(trial))
            self.observer.trial(trial, self.progress(proposals, trial.source))
        self.check_builtins(None)

    def run(self, bench: Bench, proposal: Proposal) -> Trial:
        """Measure one plan and commit it."""
        started = datetime.now(UTC).isoformat(timespec="milliseconds")
        with self.timed("store"):
            number = self.store.begin_trial(self.study, proposal.plan, proposal.source)
        began = time.perf_counter()
        with self.timed("measure"), self.stop.interruptible():
            outcome = measured(bench, proposal.plan, None if proposal.source.startswith(BUILTIN) else self.best_us)
        compiling = dict(outcome.seconds).get("compile", 0.0)
        self.timed.seconds["compile"] = self.timed.seconds.get("compile", 0.0) + compiling
        self.timed.seconds["measure"] -= compiling
        spent = (*proposal.seconds, ("measure", time.perf_counter() - began))
        trial = Trial(number, proposal.plan, outcome, proposal.source, started, spent)
        with self.timed("store"):
            self.store.add_trial(self.study, trial)
        self.trials.append(trial)
        return trial

    def promote(self, bench: Bench, proposals: Proposals) -> Winner:
        """Measure the best once more beside the built-in plans and store what should be served."""
        finalists = self.finalists(bench)
        if not finalists:
            raise NothingFoundError(f"no trial of {len(self.trials)} succeeded: {self.first_reason()}")
        self.observer.progress(self.progress(proposals, "promote", "promote"))
        with self.timed("promote"), self.stop.interruptible():
            winner = bench.promote(finalists, self.builtins)
        with self.timed("store"):
            self.stored = self.store.put_winner(self.study, winner)
        return winner

    def finalists(self, bench: Bench) -> list[Plan]:
        """The fastest plans, best first."""
        comparable = [
            (span, trial.number, trial.plan)
            for trial in self.trials
            if (span := span_of(trial)) is not None
            and trial.outcome.measurement is not None
            and trial.outcome.measurement.policy == bench.policy
        ]
        return [plan for _, _, plan in sorted(comparable, key=lambda entry: entry[:2])[:FINALISTS]]

    def check_builtins(self, following: Proposal | None) -> None:
        """Once every built-in plan has run: stop where all failed or one is wrong, for nothing could be judged then."""
        if following is not None and following.source.startswith(BUILTIN):
            return
        ran = {t.source.removeprefix(BUILTIN): t.outcome for t in self.trials if t.source.startswith(BUILTIN)}
        if ran:
            arms = [Arm(name, self.builtins[name], "builtin") for name in ran if name in self.builtins]
            check_builtins({name: (outcome.status, outcome.reason) for name, outcome in ran.items()}, arms)

    @property
    def best_us(self) -> float | None:
        return min((span for trial in self.trials if (span := span_of(trial)) is not None), default=None)

    def first_reason(self) -> str:
        failed = next((trial.outcome for trial in self.trials if span_of(trial) is None), None)
        return f"{failed.status}: {failed.reason}" if failed else "none was run"

    def progress(self, proposals: Proposals, source: str, phase: str = "") -> Progress:
        return Progress(
            phase=phase or ("builtins" if source.startswith(BUILTIN) else "search"),
            trials=len(self.trials),
            of=self.budget.trials,
            failed=sum(span_of(trial) is None for trial in self.trials),
            invalid=proposals.invalid,
            duplicate=proposals.duplicate,
            queued=len(proposals.waiting()),
            best_us=self.best_us,
        )

    def result(self, proposals: Proposals, winner: Winner | None) -> TuneResult:
        total = {"total": time.perf_counter() - self.began}
        return TuneResult(
            winner=winner,
            stored=self.stored,
            trials=tuple(self.trials),
            resumed=self.resumed,
            invalid=proposals.invalid,
            duplicate=proposals.duplicate,
            seconds={**proposals.seconds, **self.timed.seconds, **total},
            exhausted=proposals.exhausted,
            stopped=self.stop.signal.name if self.stop.signal else "",
        )


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
