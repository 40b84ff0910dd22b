"""Valid, new plans, prepared ahead of the measurement on a thread of their own, so that the GPU never waits for them.

One is asked for whenever one has been told, on one thread, so that AHEAD of them wait for the next measurement. What is
compiled goes first, and where nothing is, more are asked for, up to DEEP: one kernel that takes long to compile holds
nobody up. Where everything is always ready, as with a model, what is proposed depends on the seed and the spans alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from mktune.closing import Closing
from mktune.errors import PlanError
from mktune.lowering.graph import lower, lowered_id
from mktune.phases import Phases
from mktune.plan import Plan
from mktune.search.samplers.base import Sampler, at_random
from mktune.space import Choices, SearchSpace
from mktune.validity import check

AHEAD = 4
"""Proposals that wait, compiled or compiling, behind the one that is measured."""
DEEP = 24
"""Proposals that wait at most, where none of them is compiled."""
_LOOK_S = 0.002
PATIENCE = 4
"""Rejected proposals of the sampler in a row before chance proposes."""
FEW, MANY = 40, 1000
"""Rejected proposals in a row before a small space is gone through one by one, and before a large one is given up."""


@dataclass(frozen=True)
class Proposal:
    """A plan to measure. `choices` is None for a plan that lies outside the space (a given one may)."""

    plan: Plan
    source: str
    choices: Choices | None
    seconds: tuple[tuple[str, float], ...] = ()
    given: bool = False


@dataclass
class _Counts:
    invalid: int = 0
    duplicate: int = 0


class Proposals(Closing):
    """See the module. A context manager; `take` and `tell` belong to the thread that measures.

    given  plans to be measured before the sampler is asked, as (source, plan)
    name   what the sampler's own proposals give as their source
    limit  how many proposals will be measured at most (None: nobody knows)
    """

    def __init__(
        self,
        space: SearchSpace,
        sampler: Sampler,
        name: str,
        given: Sequence[tuple[str, Plan]],
        limit: int | None = None,
    ) -> None:
        self._space, self._sampler, self._name = space, sampler, name
        self._left = limit
        self._given = deque(given)
        self._seen: set[str] = set()
        self._counts = _Counts()
        self._timed = Phases()
        self._timed.seconds.update(ask=0.0, check=0.0, lower=0.0)
        self._leftover: Iterator[tuple[Choices, Plan]] | None = None
        self._small: bool | None = None
        self._exhausted = ""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mktune-ask")
        self._queue: deque[Future[Proposal | None]] = deque()

    @property
    def invalid(self) -> int:
        return self._counts.invalid

    @property
    def duplicate(self) -> int:
        return self._counts.duplicate

    @property
    def seconds(self) -> dict[str, float]:
        """ask, check and lower: spent on the thread, beside measuring."""
        return dict(self._timed.seconds)

    @property
    def exhausted(self) -> str:
        """Why there is nothing left to propose; empty where there is."""
        return self._exhausted

    def know(self, plan: Plan, span_us: float | None, learn: bool = True) -> None:
        """A plan of an earlier run: never proposed again, and told to the sampler. Before the first `take`."""
        with suppress(PlanError, KeyError):  # written when the ops had other kernels or fields: it cannot come again
            self._seen.add(self._key(plan))
        choices = self._space.to_choices(plan) if learn else None
        if choices is not None:
            self._sampler.tell(choices, span_us)

    def take(self, ready: Callable[[Plan], bool] = lambda plan: True) -> Proposal | None:
        """The first plan that is made and `ready` to be measured; None where there is no other. Waits for one."""
        while True:
            while len(self._queue) < AHEAD and self._may_ask():
                self._ask_for_more()
            if not self._queue:
                return None
            place = self._first_ready(ready)
            if place is not None:
                entry = self._queue[place]
                del self._queue[place]
                return entry.result()
            if self._queue[-1].done() and len(self._queue) < DEEP and self._may_ask():
                self._ask_for_more()
            else:
                time.sleep(_LOOK_S)

    def _ask_for_more(self) -> None:
        self._queue.append(self._thread.submit(self._next))

    def _first_ready(self, ready: Callable[[Plan], bool]) -> int | None:
        """Its place in the queue; that of the end, where only the end is left. Given plans keep their order."""
        self._queue[0].result()
        for place, entry in enumerate(self._queue):
            proposal = entry.result() if entry.done() else None
            if proposal is None:  # still being made, or the end: nothing comes after it
                return place if place == 0 else None
            if proposal.given or ready(proposal.plan):
                return place
        return None

    def waiting(self) -> list[Plan]:
        """Plans of the queue that are ready to be compiled."""
        made = [entry.result() for entry in self._queue if entry.done() and not entry.cancelled()]
        return [proposal.plan for proposal in made if proposal is not None]

    def tell(self, proposal: Proposal, span_us: float | None) -> None:
        """What came of a proposal (None: it failed)."""
        self._thread.submit(self._tell, proposal, span_us)

    def _may_ask(self) -> bool:
        if self._left is None:
            return True
        self._left -= 1
        return self._left >= 0

    def close(self) -> None:
        """End the thread with what it does now; may be called twice."""
        self._thread.shutdown(cancel_futures=True)

    # On the thread.

    def _tell(self, proposal: Proposal, span_us: float | None) -> None:
        if proposal.choices is not None:
            self._sampler.tell(proposal.choices, span_us)

    def _next(self) -> Proposal | None:
        while self._given:
            source, plan = self._given.popleft()
            if self._is_new(plan, _Counts()):
                return Proposal(plan, source, self._space.to_choices(plan), given=True)
        if self._exhausted:
            return None
        for rejected in range(MANY):
            before, invalid = dict(self._timed.seconds), self._counts.invalid
            choices, plan = self._ask(rejected)
            if self._is_new(plan, self._counts):
                spent = tuple((phase, self._timed.seconds[phase] - before[phase]) for phase in before)
                return Proposal(plan, self._name if rejected < PATIENCE else "random", choices, spent)
            if rejected < PATIENCE:
                self._sampler.reject(choices, invalid=self._counts.invalid > invalid)
            if rejected >= FEW and self._is_small():
                return self._one_by_one()
        self._exhausted = f"none of {MANY} proposals in a row was valid and new"
        return None

    def _ask(self, rejected: int) -> tuple[Choices, Plan]:
        with self._timed("ask"):
            return self._sampler.ask() if rejected < PATIENCE else at_random(self._space, self._sampler.draw)

    def _is_new(self, plan: Plan, counts: _Counts) -> bool:
        with self._timed("check"):
            violations = check(plan, self._space.device)
        if violations:
            counts.invalid += 1
            return False
        key = self._key(plan)
        if key in self._seen:
            counts.duplicate += 1
            return False
        self._seen.add(key)
        return True

    def _key(self, plan: Plan) -> str:
        """Equal for plans that run the same kernels in the same graph."""
        with self._timed("lower"):
            return lowered_id(plan, lower(plan, self._space.graph, plan.shape))

    def _is_small(self) -> bool:
        if self._small is None:
            self._small = self._space.size().exact
        return self._small

    def _one_by_one(self) -> Proposal | None:
        if self._leftover is None:
            self._leftover = iter(self._space)
        for choices, plan in self._leftover:
            if self._is_new(plan, _Counts()):
                return Proposal(plan, "enumeration", choices)
        self._exhausted = "every valid plan of the space was measured"
        return None
