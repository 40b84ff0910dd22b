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
from mktune.jit.build import build
from mktune.launch import KernelSpec
from mktune.measure.worker import Reply, Worker
from mktune.trial import Status

SECONDS = 180.0
_MAX_PROCESSES = 16
_TOGETHER = 8  # kernels that are disassembled at once, and parsed at once where they are of one source
_TOGETHER_SECONDS = 60.0  # after which each is compiled by itself: who waits for another one must not be late for it
_NICE = 10


class CompileHost:
    """What a compiling process does: fill the cache of cubins. See `worker`."""

    def __init__(self, arch: str) -> None:
        self._arch = arch
        os.nice(_NICE)  # what measures comes first

    def handle(self, request: Reply) -> Reply:
        build([spec_from_dict(spec) for spec in request["specs"]], self._arch)
        return {}


class CompileAhead:
    """A pool of compiling processes. Each kernel is compiled once, whichever plan asks first.

    Where more wait than there are processes, some are compiled together: it takes a fraction of the time of each alone.
    """

    def __init__(self, arch: str, processes: int | None = None, host: str = f"{__name__}:CompileHost") -> None:
        self._arch, self._host = arch, host
        self._processes = processes or max(1, min(_MAX_PROCESSES, (os.cpu_count() or 2) - 1))
        self._pool = ThreadPoolExecutor(self._processes)
        self._own = threading.local()
        self._workers: list[Worker] = []
        self._jobs: dict[KernelSpec, Future[None]] = {}
        self._closed = False
        self._lock = threading.Lock()
        self._waiting: dict[KernelSpec, Future[None]] = {}  # in the order in which they were asked for

    def submit(self, specs: Sequence[KernelSpec]) -> None:
        """Start compiling those of `specs` that nobody asked for before. Returns at once."""
        with self._lock:
            new = [spec for spec in dict.fromkeys(specs) if spec not in self._jobs]
            for spec in new:
                self._jobs[spec] = self._waiting[spec] = Future()
        for _ in new:
            self._pool.submit(self._compile_next)

    def ready(self, specs: Sequence[KernelSpec]) -> bool:
        """Whether `wait` would return, or raise, at once. Starts compiling what nobody asked for before."""
        self.submit(specs)
        return all(self._jobs[spec].done() for spec in specs)

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
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            dropped, self._waiting = self._waiting, {}
        for job in dropped.values():
            job.cancel()
        for worker in self._workers:
            worker.close()

    def _compile_next(self) -> None:
        """Runs in a thread of the pool, each of which has a process of its own."""
        jobs = self._take()
        if len(jobs) > 1:
            try:
                self._compile(list(jobs), _TOGETHER_SECONDS)
            except Exception:
                pass  # one of them is to blame: each for itself says which
            else:
                for job in jobs.values():
                    job.set_result(None)
                return
        for spec, job in jobs.items():
            try:
                self._compile([spec])
            except BaseException as error:
                job.set_exception(error)
            else:
                job.set_result(None)

    def _take(self) -> dict[KernelSpec, Future[None]]:
        """The kernel that has waited longest, and others where there are more than processes: of its source first."""
        with self._lock:
            share = max(1, min(_TOGETHER, len(self._waiting) // self._processes))
            unit = next((_unit(spec) for spec in self._waiting), None)
            chosen = sorted(self._waiting, key=lambda spec: _unit(spec) != unit)[:share]
            return {spec: self._waiting.pop(spec) for spec in chosen}

    def _compile(self, specs: Sequence[KernelSpec], seconds: float = SECONDS) -> None:
        if self._closed:
            raise SetupError("the compiling processes have ended")
        if not hasattr(self._own, "worker"):
            self._own.worker = Worker(self._host, {"arch": self._arch})
            self._workers.append(self._own.worker)
        try:
            self._own.worker.ask({"specs": [asdict(spec) for spec in specs]}, seconds)
        except CandidateError as error:
            late = error.status == Status.HANG
            raise CandidateError(Status.COMPILE_ERROR if late else error.status, str(error)) from None


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
