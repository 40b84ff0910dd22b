"""The benches of one problem, one for each GPU: each measures on a thread of its own, and one thread begins and ends.

With a single bench there is no other thread: what is begun is measured where it is waited for, so that everything
happens in one order and a signal leaves the measurement itself.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from mktune.backends.base import Backend, Bench, Problem
from mktune.closing import Closing
from mktune.plan import Plan
from mktune.trial import Fingerprint, Outcome, Policy

T = TypeVar("T")
Ask = Callable[[Bench], Outcome]


class Lane:
    """A thread that does one thing after another. It lives as long as its bench: Linux ends a worker process together
    with the thread that started it."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="mktune-bench", daemon=True).start()

    def give(self, work: Callable[[], None]) -> None:
        self._asked.put(work)

    def close(self) -> None:
        """End it after what it does now. Does not wait: a measurement may hang."""
        self._asked.put(None)

    def _run(self) -> None:
        while (work := self._asked.get()) is not None:
            work()


class Ended(Generic[T]):
    """Something that was begun and is over: on which GPU, how long the bench took, and what it gave or raised.

    The bench may be asked for more until the next measurement begins.
    """

    def __init__(self, begun: T, bench: Bench, gpu: str, seconds: float, result: Outcome | BaseException) -> None:
        self.begun, self.bench, self.gpu, self.seconds, self._result = begun, bench, gpu, seconds, result

    def outcome(self) -> Outcome:
        """Raises what the bench raised."""
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result


class Benches(Closing, Generic[T]):
    """See the module. A context manager. `T` is what the caller knows a measurement by.

    Benches of a part of the problem (`alone`) use the threads of the whole.
    """

    def __init__(self, benches: Sequence[Bench], gpus: Sequence[str], lanes: Sequence[Lane] | None = None) -> None:
        self._benches, self._gpus = list(benches), list(gpus)
        self._owns_lanes = lanes is None
        self._lanes = list(lanes) if lanes is not None else [Lane() for _ in benches[1:] and benches]
        self._free = deque(range(len(benches)))
        self._ended: SimpleQueue[tuple[int, Ended[T]]] = SimpleQueue()
        self._next: tuple[T, Ask] | None = None  # what a single bench is to measure
        self._begun: dict[int, T] = {}

    @classmethod
    def open(cls, backends: Sequence[Backend], problem: Problem) -> Benches[T]:
        """A bench on each of the back ends, which must be of the same kind of GPU."""
        with ExitStack() as opened:
            first = opened.enter_context(backends[0].open(problem))
            benches = [first, *(opened.enter_context(backend.open_beside(first)) for backend in backends[1:])]
            opened.pop_all()
        return cls(benches, [_gpu(backend, place) for place, backend in enumerate(backends)])

    @property
    def first(self) -> Bench:
        """The bench that promotes. Only while nothing is measured."""
        return self._benches[0]

    @property
    def policy(self) -> Policy:
        return self.first.policy

    @property
    def fingerprint(self) -> Fingerprint:
        return self.first.fingerprint

    @property
    def number(self) -> int:
        return len(self._benches)

    @property
    def has_room(self) -> bool:
        """Whether a bench has nothing to do."""
        return bool(self._free)

    @property
    def busy(self) -> list[T]:
        """What was begun and was not taken yet."""
        return list(self._begun.values())

    def prepare(self, plans: Sequence[Plan]) -> None:
        """See `Bench.prepare`; what one of them compiles, all find."""
        if 0 in self._free:
            self.first.prepare(plans)
            return
        for plan in plans:  # its thread has the process of that bench now, but the compilers are everybody's
            self.first.ready(plan)

    def ready(self, plan: Plan) -> bool:
        return self.first.ready(plan)

    def compiled(self, plan: Plan) -> bool:
        return self.first.compiled(plan)

    def alone(self, ops: Sequence[str]) -> Benches[T]:
        """See `Bench.alone`. To be closed before this one."""
        with ExitStack() as opened:
            parts = [opened.enter_context(bench.alone(ops)) for bench in self._benches]
            opened.pop_all()
        return Benches(parts, self._gpus, self._lanes)

    def begin(self, what: T, ask: Ask) -> None:
        """Measure on a bench that is free."""
        place = self._free.popleft()
        self._begun[place] = what
        if self._lanes:
            self._lanes[place].give(lambda: self._measure(place, what, ask))
        else:
            self._next = (what, ask)

    def take(self) -> Ended[T]:
        """Wait for a measurement to end. Something must have been begun."""
        if self._next is not None:
            (what, ask), self._next = self._next, None
            began = time.perf_counter()
            try:
                outcome = ask(self.first)
                return Ended(what, self.first, self._gpus[0], time.perf_counter() - began, outcome)
            finally:
                self._is_free(0)
        place, ended = self._ended.get()
        self._is_free(place)
        return ended

    def over(self) -> Iterator[Ended[T]]:
        """What has ended already. Does not wait."""
        while True:
            try:
                place, ended = self._ended.get_nowait()
            except Empty:
                return
            self._is_free(place)
            yield ended

    def _measure(self, place: int, what: T, ask: Ask) -> None:
        result: Outcome | BaseException
        began = time.perf_counter()
        try:
            result = ask(self._benches[place])
        except BaseException as error:  # raised again where it is taken
            result = error
        self._ended.put(
            (place, Ended(what, self._benches[place], self._gpus[place], time.perf_counter() - began, result))
        )

    def _is_free(self, place: int) -> None:
        del self._begun[place]
        self._free.append(place)

    def close(self) -> None:
        """Stop processes and free the devices; a measurement that runs is left behind. May be called twice."""
        if self._owns_lanes:
            for lane in self._lanes:
                lane.close()
        with ExitStack() as closing:  # every one, also where closing another raises
            for bench in self._benches:
                closing.callback(bench.close)


def _gpu(backend: Backend, place: int) -> str:
    return backend.device.uuid or f"{backend.device.name} (simulated) {place}"
