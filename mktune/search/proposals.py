"""Valid, new plans, prepared ahead of the measurement on a thread of their own, so that the GPU never waits for them.

When a measurement begins, so many are asked for that AHEAD - 1 wait behind it. What is compiled goes first, and where
nothing is, more are asked for, up to DEEP: one kernel that takes long to compile holds nobody up. Once compilers have
enough to do, others are sought beside the queue that need none (`search.extras`).
Where everything is always ready, as with a model, what is proposed depends on the seed and the spans alone.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from mktune.closing import Closing
from mktune.errors import PlanError, SpaceError
from mktune.lowering.graph import runs_as
from mktune.phases import Phases
from mktune.plan import Plan
from mktune.search.extras import Extras
from mktune.search.samplers.base import Sampler, at_random
from mktune.space import Choices, SearchSpace
from mktune.trace import CriticalPath
from mktune.trial import BUILTIN
from mktune.validity import check

AHEAD = 4
"""Proposals at hand when a measurement ends, compiled or compiling; and as many at most that need no compiler."""
DEEP = 24
"""Proposals of the queue at most, where none of them is compiled."""
_LOOK_S = 0.002
PATIENCE = 4
"""Rejected proposals of the sampler in a row before chance proposes."""
FEW, MANY = 40, 1000
"""Rejected proposals in a row before a small space is gone through one by one, and before a large one is given up."""


@dataclass(frozen=True)
class Proposal:
    """A plan to measure. `choices` is None for a plan that lies outside the space (a given one may).

    key  equal for plans that run the same kernels in the same graph (`lowered_id`)
    """

    plan: Plan
    source: str
    choices: Choices | None
    key: str
    seconds: tuple[tuple[str, float], ...] = ()
    given: bool = False


@dataclass
class _Counts:
    invalid: int = 0
    duplicate: int = 0
    avoided: int = 0


class Proposals(Closing):
    """See the module. A context manager; `take` and `tell` belong to the thread that measures.

    given  plans to be measured before the sampler is asked, as (source, plan)
    name   what the sampler's own proposals give as their source
    limit  how many proposals will be measured at most (None: nobody knows)
    at_once  how many are measured at a time
    """

    def __init__(
        self,
        space: SearchSpace,
        sampler: Sampler,
        name: str,
        given: Sequence[tuple[str, Plan]],
        limit: int | None = None,
        at_once: int = 1,
    ) -> None:
        self._space, self._sampler, self._name = space, sampler, name
        self._left = math.inf if limit is None else limit  # to be taken
        self._ahead, self._deep = AHEAD + 2 * (at_once - 1), DEEP * at_once
        self._given = deque(given)
        self._seen: set[str] = set()
        self._avoided: set[str] = set()
        self._counts = _Counts()
        self._timed = Phases()
        self._timed.seconds.update(ask=0.0, check=0.0, lower=0.0)
        self._leftover: Iterator[tuple[Choices, Plan]] | None = None
        self._small: bool | None = None
        self._exhausted = ""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mktune-ask")
        self._queue: deque[Future[Proposal | None]] = deque()
        self._free = threading.Event()
        self._free.set()
        self._extras = Extras(self._thread, self._seeks, self._next_of_many, self._withdraw)
        self._closed = False

    @property
    def invalid(self) -> int:
        return self._counts.invalid

    @property
    def duplicate(self) -> int:
        return self._counts.duplicate

    @property
    def avoided(self) -> int:
        """Proposals that are left alone because of how their plan ended elsewhere (`avoid`)."""
        return self._counts.avoided

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

    def learn(self, plan: Plan, span_us: float | None, learn: bool = True) -> None:
        """As `know`, at any time: a plan that another process has measured."""
        self._thread.submit(self.know, plan, span_us, learn)

    def adopt(self, plan: Plan, source: str, key: str) -> Proposal:
        """A proposal of another process, which is measured here and never proposed again."""
        self._thread.submit(self._seen.add, key)
        return Proposal(plan, source, self._space.to_choices(plan), key, given=True)

    def avoid(self, plan: Plan) -> None:
        """A plan that is proposed only where it is a built-in one. Before the first `take`."""
        with suppress(PlanError, KeyError):
            self._avoided.add(self._key(plan))

    def take(
        self,
        ready: Callable[[Plan], bool] = lambda plan: True,
        compiled: Callable[[Plan], bool] = lambda plan: False,
    ) -> Proposal | None:
        """The first plan that is made and `ready` to be measured; None where there is no other. Waits for one.

        ready     starts compiling what is not
        compiled  starts nothing
        """
        while True:
            if not self._queue:
                self.refill(self._ahead)
            if self._is_over():
                return None
            found = self._take_ready(ready) or self._take_beside(compiled)
            if found is not None:
                return found
            time.sleep(_LOOK_S)

    def refill(self, count: int | None = None) -> None:
        """Have so many proposals made behind the one that was taken. Call it when that one's measurement begins.

        Two threads of Python run in turn, not together: what is asked for earlier holds up whoever takes and stores.
        """
        count = self._ahead - 1 if count is None else count
        while len(self._queue) < count and self._may_ask():
            self._ask_for_more()

    def _ask_for_more(self) -> None:
        self._queue.append(self._thread.submit(self._next))

    def _take_beside(self, compiled: Callable[[Plan], bool]) -> Proposal | None:
        """An extra, if one was found; and have more sought, and one more of the queue made."""
        found = self._extras.take()
        self._left -= found is not None
        while self._seeks() and len(self._extras) < self._ahead and self._may_ask():
            self._extras.ask(compiled)
        deep = self._deep if found is None else self._deep // 2  # with extras, compilers need not have so much ahead
        if self._queue and self._queue[-1].done() and len(self._queue) < deep and self._may_ask():
            self._ask_for_more()
        return found

    def _seeks(self) -> bool:
        """Whether extras are wanted: compilers have enough to do; or as much as may wait, where none was found lately.

        Not at first: what is given, or is every sampler's beginning, is not withdrawn.
        """
        enough = self._deep if self._extras.none_lately else self._deep // 4
        begun = self._sampler.can_withdraw and self._extras.told >= self._deep
        return begun and len(self._queue) >= enough and not self._exhausted

    def _take_ready(self, ready: Callable[[Plan], bool]) -> Proposal | None:
        """Out of the queue. Given plans keep their order."""
        for place, entry in enumerate(self._queue):
            proposal = entry.result() if entry.done() else None
            if proposal is None:  # still being made, or the end: nothing comes after it
                return None
            if proposal.given or ready(proposal.plan):
                del self._queue[place]
                self._left -= 1
                return proposal
        return None

    def _is_over(self) -> bool:
        """Nothing waits, and nothing can be asked for. Waits for the first of the queue where there is nothing else."""
        return not self._extras and (not self._queue or self._queue[0].result() is None)

    @contextmanager
    def held(self) -> Iterator[None]:
        """No proposal is begun meanwhile: two threads of Python take twice as long for what each does."""
        try:
            self._free.clear()
            yield
        finally:
            self._free.set()

    def waiting(self) -> list[Plan]:
        """Plans of the queue that are ready to be compiled."""
        made = [entry.result() for entry in self._queue if entry.done() and not entry.cancelled()]
        return [proposal.plan for proposal in made if proposal is not None]

    def made(self) -> list[Plan]:
        """As `waiting`, once all of the queue are made."""
        for entry in self._queue:
            entry.result()
        return self.waiting()

    def tell(self, proposal: Proposal, span_us: float | None) -> None:
        """What came of a proposal (None: it failed)."""
        self._thread.submit(self._tell, proposal, span_us)

    def tell_path(self, proposal: Proposal, path: CriticalPath) -> None:
        """What the span of a measured proposal hung on; see `Sampler.know_path`."""
        if proposal.choices is not None:
            self._thread.submit(self._sampler.know_path, proposal.choices, path)

    def skip(self, proposal: Proposal) -> None:
        """A proposal that was taken is not measured: another process of the study has its plan."""
        self._left += 1
        self._thread.submit(self._skip, proposal)

    def _may_ask(self) -> bool:
        return len(self._queue) + len(self._extras) < self._left

    def close(self) -> None:
        """End the thread with the proposal that is made now; may be called twice."""
        self._closed = True
        self._free.set()
        self._thread.shutdown(cancel_futures=True)

    # On the thread.

    def _tell(self, proposal: Proposal, span_us: float | None) -> None:
        if not proposal.given:
            self._extras.note()
        if proposal.choices is not None:
            self._sampler.tell(proposal.choices, span_us)

    def _skip(self, proposal: Proposal) -> None:
        self._counts.duplicate += 1
        if proposal.choices is not None:
            self._sampler.reject(proposal.choices, invalid=False)

    def _next_of_many(self) -> Proposal | None:
        """As `_next`; None in a small space, of which all is wanted in the end."""
        return None if self._is_small() else self._next()

    def _withdraw(self, proposal: Proposal) -> None:
        self._seen.discard(proposal.key)
        if proposal.source == self._name and proposal.choices is not None:
            self._sampler.withdraw(proposal.choices)

    def _next(self) -> Proposal | None:
        while self._given:
            source, plan = self._given.popleft()
            key = self._new(plan, _Counts(), given=source.startswith(BUILTIN))
            if key is not None:
                return Proposal(plan, source, self._space.to_choices(plan), key, given=True)
        if self._exhausted:
            return None
        for rejected in range(MANY):
            if self._closed:
                return None
            before, invalid = dict(self._timed.seconds), self._counts.invalid
            choices, plan = self._ask(rejected)
            key = self._new(plan, self._counts)
            if key is not None:
                spent = tuple((phase, self._timed.seconds[phase] - before[phase]) for phase in before)
                return Proposal(plan, self._name if rejected < PATIENCE else "random", choices, key, spent)
            if rejected < PATIENCE:
                self._sampler.reject(choices, invalid=self._counts.invalid > invalid)
            if rejected >= FEW and self._is_small():
                return self._one_by_one()
        self._exhausted = f"none of {MANY} proposals in a row was valid and new"
        return None

    def _ask(self, rejected: int) -> tuple[Choices, Plan]:
        self._free.wait()
        with self._timed("ask"):
            return self._sampler.ask() if rejected < PATIENCE else at_random(self._space, self._sampler.draw)

    def _new(self, plan: Plan, counts: _Counts, given: bool = False) -> str | None:
        """The key of a plan that is valid and new, which it is from now on no more; None for every other."""
        with self._timed("check"):
            violations = check(plan, self._space.device)
        if violations:
            counts.invalid += 1
            return None
        key = self._key(plan)
        if key in self._seen:
            counts.duplicate += 1
            return None
        self._seen.add(key)
        if key in self._avoided and not given:
            counts.avoided += 1
            return None
        return key

    def _key(self, plan: Plan) -> str:
        """Equal for plans that run the same kernels in the same graph."""
        with self._timed("lower"):
            return runs_as(plan, self._space.graph)

    def _is_small(self) -> bool:
        if self._small is None:
            self._small = self._space.size().exact
        return self._small

    def _one_by_one(self) -> Proposal | None:
        if self._leftover is None:
            self._leftover = iter(self._space)
        for choices, plan in self._leftover:
            counts = _Counts()
            key = self._new(plan, counts)
            self._counts.avoided += counts.avoided
            if key is not None:
                return Proposal(plan, "enumeration", choices, key)
        self._exhausted = "every valid plan of the space was measured"
        return None


def require_a_plan(space: SearchSpace) -> None:
    """Raise SpaceError where no plan of `space` is valid, with what is wrong with the first. Touches no device.

    A small space is gone through; of a large one MANY plans are drawn.
    """
    draw, first = random.Random(0), ""
    for _, plan in _some(space, draw):
        violations = check(plan, space.device)
        if not violations:
            return
        first = first or str(violations[0])
    raise SpaceError(f"no plan of the search space of {','.join(space.graph.calls)} is valid; the first: {first}")


def _some(space: SearchSpace, draw: random.Random) -> Iterator[tuple[Choices, Plan]]:
    for _ in range(FEW):
        yield at_random(space, draw)
    if space.size().exact:
        yield from space
    else:
        for _ in range(FEW, MANY):
            yield at_random(space, draw)
