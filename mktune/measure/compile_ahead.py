"""Compiling in other processes, ahead of measuring: the GPU should never wait for a compiler."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from dataclasses import asdict
from typing import Any

from mktune.errors import CandidateError, SetupError
from mktune.jit.build import LISTED_TOGETHER, Read, build, is_built
from mktune.launch import KernelSpec
from mktune.measure.worker import Reply, Worker
from mktune.trial import Status

SECONDS = 180.0
_MAX_PROCESSES = 16
_TOGETHER = 8  # kernels that are compiled at once: they are parsed once where they are of one source
_PROVIDED, _PROVIDED_TOGETHER = "providers/", 4  # kernels of templates whose headers take a second to parse
_READERS = 8  # of so many processes one reads, where more is to be compiled
_TOGETHER_SECONDS = 60.0  # after which each is handled by itself: who waits for another one must not be late for it
_NICE = 10

Jobs = dict[KernelSpec, Future[None]]


class CompileHost:
    """What a compiling process does: fill the cache of cubins, then with what is read in them. See `worker`."""

    def __init__(self, arch: str) -> None:
        self._arch = arch
        os.nice(_NICE)  # what measures comes first

    def handle(self, request: Reply) -> Reply:
        build([spec_from_dict(spec) for spec in request["specs"]], self._arch, facts=request["facts"])
        return {}


class CompileAhead:
    """A pool of compiling processes. Each kernel is compiled once, whichever plan asks first.

    It is compiled, then its machine code is read: by itself where little is to be done, else with all that was compiled
    while a few processes read. Where more wait than there are processes, some are compiled together too.
    """

    def __init__(self, arch: str, processes: int | None = None, host: str = f"{__name__}:CompileHost") -> None:
        self._arch, self._host = arch, host
        self._processes = processes or max(1, min(_MAX_PROCESSES, (os.cpu_count() or 2) - 1))
        self._pool = ThreadPoolExecutor(self._processes)
        self._own = threading.local()
        self._workers: list[Worker] = []
        self._jobs: Jobs = {}
        self._closed = False
        self._lock = threading.Lock()
        self._sources: Read = {}
        self._waiting: Jobs = {}  # in the order in which they were asked for
        self._compiled: Jobs = {}  # and not read yet
        self._reading = 0

    def submit(self, specs: Sequence[KernelSpec]) -> None:
        """Start compiling those of `specs` that nobody asked for before and that are not there. Returns at once."""
        self._note_built(specs)
        with self._lock:
            new = [spec for spec in dict.fromkeys(specs) if spec not in self._jobs]
            for spec in new:
                self._jobs[spec] = self._waiting[spec] = Future()
        for _ in new:
            self._pool.submit(self._work)

    def ready(self, specs: Sequence[KernelSpec]) -> bool:
        """Whether `wait` would return, or raise, at once. Starts compiling what nobody asked for before."""
        self.submit(specs)
        return all(self._jobs[spec].done() for spec in specs)

    def has(self, specs: Sequence[KernelSpec]) -> bool:
        """Whether `wait` would return at once. Starts nothing."""
        self._note_built(specs)
        return all(spec in self._jobs and _succeeded(self._jobs[spec]) for spec in specs)

    def _note_built(self, specs: Sequence[KernelSpec]) -> None:
        """What nobody asked for before and is in the cache is done. Reads files: nobody else waits for that."""
        for spec in specs:
            if spec not in self._jobs and is_built(spec, self._arch, self._sources):
                done: Future[None] = Future()
                done.set_result(None)
                with self._lock:
                    self._jobs.setdefault(spec, done)

    def wait(self, specs: Sequence[KernelSpec], seconds: float = SECONDS) -> None:
        """Wait until all of `specs` are in the cache.

        Raises CandidateError (compile_error, or crash where the compiler died) and SetupError.
        """
        self.submit(specs)
        for job in dict.fromkeys(self._jobs[spec] for spec in specs):
            try:
                job.result(seconds)
            except LateError:
                raise CandidateError(Status.COMPILE_ERROR, f"not compiled within {seconds:g} s") from None

    def close(self) -> None:
        """Drop what has not begun and end the processes. May be called twice."""
        with self._lock:
            self._closed = True
            dropped = [*self._waiting.values(), *self._compiled.values()]
            self._waiting, self._compiled = {}, {}
        self._pool.shutdown(wait=False, cancel_futures=True)
        for job in dropped:
            job.cancel()
        for worker in self._workers:
            worker.close()

    def _work(self) -> None:
        """Runs in a thread of the pool, each of which has a process of its own."""
        jobs, reads = self._take()
        done = self._all_or_each(jobs, reads)
        with self._lock:
            self._reading -= reads
            if not reads and not self._closed:
                self._compiled |= done
            if self._compiled:
                self._pool.submit(self._work)
        for job in done.values():
            if reads:
                job.set_result(None)
            elif self._closed:
                job.cancel()

    def _take(self) -> tuple[Jobs, bool]:
        """What is to be done next, and whether that is reading machine code.

        Of what waits, the kernel that has waited longest, and others where there are more than processes: of its source
        first. Of a provider's templates a few of one source in any case, and no others: parsing those takes longest. An
        eighth of the processes reads, so that meanwhile there comes together what the next reads at once.
        """
        with self._lock:
            few = self._reading < max(1, self._processes // _READERS)
            reads = few or not self._waiting or len(self._compiled) >= LISTED_TOGETHER
            if self._compiled and reads:
                self._reading += 1
                return {spec: self._compiled.pop(spec) for spec in list(self._compiled)[:LISTED_TOGETHER]}, True
            share = max(1, min(_TOGETHER, len(self._waiting) // self._processes))
            unit = next((_unit(spec) for spec in self._waiting), None)
            chosen = sorted(self._waiting, key=lambda spec: _unit(spec) != unit)
            if chosen and chosen[0].source.startswith(_PROVIDED):
                chosen = [spec for spec in chosen if _unit(spec) == unit]
                share = max(share, _PROVIDED_TOGETHER)
            return {spec: self._waiting.pop(spec) for spec in chosen[:share]}, False

    def _all_or_each(self, jobs: Jobs, reads: bool) -> Jobs:
        """Those of `jobs` that succeeded; the others have been told why they did not."""
        if len(jobs) > 1:
            try:
                self._ask(list(jobs), reads, _TOGETHER_SECONDS)
            except Exception:
                pass  # one of them is to blame: each for itself says which
            else:
                return jobs
        done = {}
        for spec, job in jobs.items():
            try:
                self._ask([spec], reads)
            except BaseException as error:
                job.set_exception(error)
            else:
                done[spec] = job
        return done

    def _ask(self, specs: Sequence[KernelSpec], reads: bool, seconds: float = SECONDS) -> None:
        if self._closed:
            raise SetupError("the compiling processes have ended")
        if not hasattr(self._own, "worker"):
            self._own.worker = Worker(self._host, {"arch": self._arch})
            self._workers.append(self._own.worker)
        try:
            self._own.worker.ask({"specs": [asdict(spec) for spec in specs], "facts": reads}, seconds)
        except CandidateError as error:
            late = error.status == Status.HANG
            raise CandidateError(Status.COMPILE_ERROR if late else error.status, str(error)) from None


def _succeeded(job: Future[None]) -> bool:
    return job.done() and not job.cancelled() and job.exception() is None


def _unit(spec: KernelSpec) -> tuple[object, ...]:
    """Kernels that agree in this may be one program."""
    return spec.source, spec.prelude, spec.defines


def spec_from_dict(data: dict[str, Any]) -> KernelSpec:
    """The spec that `asdict` took apart and JSON carried."""
    return KernelSpec(
        data["source"],
        data["name_expression"],
        defines=tuple((name, value) for name, value in data["defines"]),
        constants=tuple(data["constants"]),
        scalars=tuple(data["scalars"]),
        prelude=data["prelude"],
    )
