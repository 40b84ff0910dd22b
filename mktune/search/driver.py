"""The search on one screen: learn from the ops alone, propose and measure, promote the best, store the winner."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mktune.backends.base import Backend, Bench, Problem
from mktune.errors import NothingFoundError
from mktune.graph.builtin import builtin_plans
from mktune.jit.fingerprint import is_own_build
from mktune.measure.narrowing import SURELY_SLOWER
from mktune.measure.promotion import TIE_BAND, Arm, check_builtins, simplicity
from mktune.plan import Plan
from mktune.search.benches import Benches
from mktune.search.budget import Budget
from mktune.search.loop import Begun, Loop, ranking
from mktune.search.neighbours import NEIGHBOURS, known_plans
from mktune.search.op_stage import OpStage
from mktune.search.proposals import Proposal, Proposals
from mktune.search.result import PHASES, Observer, TuneResult
from mktune.search.samplers.base import make_sampler
from mktune.search.stopping import Stop, Stopped
from mktune.space import SearchSpace
from mktune.store.owner import this_process
from mktune.trial import BUILTIN, SHIPPED, Measurement, Policy, Status, Trial, Winner

if TYPE_CHECKING:
    from mktune.store import Merged, Store, Study

HARMFUL = (Status.HANG, Status.ILLEGAL_ACCESS, Status.LAUNCH_ERROR, Status.CRASH)
"""What ended so cost a process, and would again: other studies of the same GPU and build do not run it."""
FINALISTS = 10
"""Trials that are measured again beside the built-in plans, for every pair at another place: what screening could not
tell apart is up to a percent apart."""

SWITCH_S = 0.001
"""Seconds after which a thread of Python hands over to another that waits: a proposal takes 2 to 8 ms."""


def tune(
    space: SearchSpace,
    backend: Backend,
    store: Store,
    study: Study,
    budget: Budget,
    *,
    observer: Observer | None = None,
    stop: Stop | None = None,
    process: int = 0,
    others: Sequence[Backend] = (),
    retry_failed: bool = False,
    deterministic: bool = False,
    neighbours: int = NEIGHBOURS,
    shipped: Sequence[Winner] = (),
) -> TuneResult:
    """Search `space` with the study's sampler and seed, going on from the trials that the study has.

    Each op alone comes first, where the sampler learns from that, then the built-in plans, then those of `shipped` at
    this shape, then winners at other shapes, of the store and of `shipped`, made to fit (`neighbours` of them at most).
    Every trial is committed when it ends. Several processes may search one study: one of them measures a plan, and the
    trials of all count.

    process       a number of this process: its sampler draws otherwise than those of the study's other processes
    others        more GPUs of the kind of `backend`: they all measure at once, one sampler proposes, one thread stores
    retry_failed  run the study's failed trials again, and do not avoid what hung or faulted in others on this build
    deterministic  the winner's bits must repeat (see `Bench`), and a stored winner whose bits do not gives way to it

    Raises NothingFoundError where no built-in plan runs, no trial succeeded or no plan's bits repeat as asked,
    MktuneError where a built-in plan gives wrong results, SetupError and StoreError.
    """
    store.limit_trials(study, budget.trials or 0)
    loop = Loop(store, study, budget.start(), observer or Observer(), stop or Stop())
    how = _How(process, True, retry_failed, deterministic, neighbours, shipped)
    return _search(space, [backend, *others], loop, how)


def work(
    space: SearchSpace,
    backend: Backend,
    store: Store,
    study: Study,
    budget: Budget,
    *,
    observer: Observer | None = None,
    stop: Stop | None = None,
    others: Sequence[Backend] = (),
) -> TuneResult:
    """Search a study that `tune` has started, beside it, with a sampler of one's own that is told the trials of all.

    Ends when the study has its trials, `tune`'s `budget` or this one's being spent; promotion is `tune`'s. Raises as
    `tune` does, but for NothingFoundError where no trial succeeded.
    """
    loop = Loop(store, study, budget.start(), observer or Observer(), stop or Stop(), shared=True)
    number = int.from_bytes(hashlib.sha256(this_process().encode()).digest()[:6], "big")
    return _search(space, [backend, *others], loop, _How(number))


@dataclass(frozen=True)
class _How:
    """What differs between the processes of a study: see `tune`, whose defaults these are not."""

    process: int
    promotes: bool = False
    retry_failed: bool = False
    deterministic: bool = False
    neighbours: int = 0
    shipped: Sequence[Winner] = ()


def _search(space: SearchSpace, backends: Sequence[Backend], loop: Loop, how: _How) -> TuneResult:
    store, study, budget, device = loop.store, loop.study, loop.spending.budget, backends[0].device
    calls = tuple(space.graph.calls)
    builtins = builtin_plans(space.workload, calls, space.shape, device.arch)
    sampler = make_sampler(study.sampler, space, study.seed, how.process)
    loop.trace = sampler.wants_path
    loop.spending = budget.start()  # not before: a sampler may take a second to import
    failed = loop.resume(how.retry_failed)
    limit = None if budget.trials is None else max(0, budget.trials - loop.resumed)
    given = [(BUILTIN + name, plan) for name, plan in builtins.items()]
    if how.promotes:
        given += known_plans(store, space, backends[0], how.neighbours, how.shipped)
    given += [(trial.source, trial.plan) for trial in failed if not trial.source.startswith(BUILTIN)]
    search = _Search(loop, builtins, {plan.plan_id for source, plan in given if source == SHIPPED})
    with (
        _handing_over_soon(),
        Proposals(space, sampler, study.sampler, given, limit, len(backends)) as proposals,
        Benches[Begun].open(backends, Problem.of(space.workload, calls, space.shape, study.seed)) as benches,
    ):
        try:
            if sampler.wants_ops:
                OpStage(space, benches, device, loop).run(sampler.know_op)
            loop.remember(benches.policy, proposals)
            for plan in [] if how.retry_failed else store.failed_elsewhere(study, HARMFUL):
                proposals.avoid(plan)
            loop.run(benches, proposals, search.check_builtins)
            search.check_builtins(None)
            proposals.close()  # nothing else runs while the finalists are compared
            benches.first.deterministic = how.deterministic
            winner = search.promote(benches.first, proposals) if how.promotes else None
        except Stopped:
            winner = None
        finally:
            proposals.close()
            store.add_counts(study, invalid=proposals.invalid, duplicate=proposals.duplicate)
    return search.result(proposals, winner)


@contextmanager
def _handing_over_soon() -> Iterator[None]:
    """While one thread proposes, another waits for it whenever it comes back from a file or a worker: 5 ms each time,
    else. (While a trial is stored, a dozen times, `Proposals.held` keeps the one from proposing.)"""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def choose_finalists(trials: Sequence[Trial], policy: Policy, ships: Collection[str] = ()) -> list[Plan]:
    """The fastest trials under `policy`, what ships (plan ids), and the simplest of those that screening cannot tell
    from the fastest.

    Among plans that are equally fast, chance decides which come first in a screening. The simplest is the one that wins
    a tie, so it takes part whatever its place: two searches of the same plans end with the same winner. What ships has
    won a promotion before, and screening flatters the best of hundreds: it takes part unless it is clearly slower.
    """
    ranked = ranking(trials, policy)
    if not ranked:
        return []
    fastest = ranked[0][0]
    shipped = [p for measured, p in ranked if p.plan_id in ships and _is_near(measured, fastest, SURELY_SLOWER)]
    tied = [plan for measured, plan in ranked if _is_near(measured, fastest, TIE_BAND)]
    plans = [plan for _, plan in ranked]
    first = (plans[0], min(tied, key=simplicity), *shipped, *plans)
    chosen = list(dict.fromkeys(plan.plan_id for plan in first))[:FINALISTS]
    return [plan for plan in plans if plan.plan_id in chosen]


def _is_near(measured: Measurement, fastest: Measurement, band: float) -> bool:
    """Not surely slower by more than the band, as far as one screening each can tell."""
    return measured.low_us <= fastest.high_us * (1.0 + band)


@dataclass
class _Search:
    """How a search ends: the built-in plans that everything is judged by, ids of what ships, and the winner."""

    loop: Loop
    builtins: dict[str, Plan]
    ships: Collection[str]
    kept: Merged | None = None
    judged: bool = False
    began: float = field(default_factory=lambda: time.perf_counter())

    def check_builtins(self, following: Proposal | None) -> None:
        """Once every built-in plan has run: stop where all failed or one is wrong, for nothing could be judged then."""
        if self.judged or (following is not None and following.source.startswith(BUILTIN)):
            return
        loop = self.loop
        if loop.shared and any(each.source.startswith(BUILTIN) for each in loop.store.running(loop.study)):
            return  # another process still measures one
        ran = {t.source.removeprefix(BUILTIN): t.outcome for t in self.loop.trials if t.source.startswith(BUILTIN)}
        if ran:
            arms = [Arm(name, self.builtins[name], "builtin") for name in ran if name in self.builtins]
            self.judged = True
            check_builtins({name: (outcome.status, outcome.reason) for name, outcome in ran.items()}, arms)

    def promote(self, bench: Bench, proposals: Proposals) -> Winner:
        """Measure the best once more beside the built-in plans and store what should be served."""
        loop = self.loop
        finalists = choose_finalists(loop.trials, bench.policy, self.ships)
        if not finalists:
            raise NothingFoundError(f"no trial of {len(loop.trials)} succeeded: {loop.first_reason()}")
        loop.observer.progress(loop.progress(proposals, "promote", "promote"))
        with loop.timed("promote"), loop.stop.interruptible():
            winner = bench.promote(finalists, self.builtins)
        with loop.timed("store"):
            self.kept = loop.store.put_winner(loop.study, winner, own_build=is_own_build, repeats=bench.deterministic)
        return winner

    def result(self, proposals: Proposals, winner: Winner | None) -> TuneResult:
        loop = self.loop
        return TuneResult(
            winner=winner,
            stored=bool(self.kept),
            replaced=self.kept.replaced if self.kept else None,
            trials=tuple(loop.trials),
            resumed=loop.resumed,
            invalid=proposals.invalid,
            duplicate=proposals.duplicate,
            avoided=proposals.avoided,
            seconds=self._seconds(proposals),
            within={"measure": dict(loop.inside.seconds), "alone": dict(loop.alone.seconds)},
            exhausted=proposals.exhausted,
            stopped=loop.stop.signal.name if loop.stop.signal else "",
            measured=loop.measured,
        )

    def _seconds(self, proposals: Proposals) -> dict[str, float]:
        spent = {**dict.fromkeys(PHASES, 0.0), **proposals.seconds, **self.loop.timed.seconds}
        return spent | {"total": time.perf_counter() - self.began}
