"""Compiling in other processes, ahead of measuring: the GPU should never wait for a compiler."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import TimeoutError as LateError
from concurrent.futures.process import BrokenProcessPool

from mktune.errors import CandidateError, MktuneError, SetupError
from mktune.launch import KernelSpec
from mktune.trial import Status

SECONDS = 180.0
_MAX_PROCESSES = 8

Failure = tuple[str, str] | None
"""None, or (status, reason); status is empty where the machine, not the kernel, is at fault."""


class CompileAhead:
    """A pool that fills the cache of cubins. Each kernel is compiled once, whichever plan asks first."""

    def __init__(self, arch: str, processes: int | None = None) -> None:
        self._arch = arch
        self._processes = processes or max(1, min(_MAX_PROCESSES, (os.cpu_count() or 2) - 1))
        self._pool: ProcessPoolExecutor | None = None
        self._jobs: dict[KernelSpec, Future[Failure]] = {}

    def submit(self, specs: Sequence[KernelSpec]) -> None:
        """Start compiling those of `specs` that nobody asked for before. Returns at once."""
        new = [spec for spec in dict.fromkeys(specs) if spec not in self._jobs]
        if new:
            job = self._executor().submit(compile_specs, new, self._arch)
            self._jobs.update((spec, job) for spec in new)

    def wait(self, specs: Sequence[KernelSpec], seconds: float = SECONDS) -> None:
        """Wait until all of `specs` are in the cache.

        Raises CandidateError (compile_error, or crash where the compiler died) and SetupError.
        """
        self.submit(specs)
        for job in dict.fromkeys(self._jobs[spec] for spec in specs):
            failure = self._result(job, seconds)
            if failure and not failure[0]:
                raise SetupError(failure[1])
            if failure:
                raise CandidateError(*failure)

    def close(self) -> None:
        """Drop what has not begun and end the processes. May be called twice."""
        pool, self._pool = self._pool, None
        self._jobs.clear()
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def _result(self, job: Future[Failure], seconds: float) -> Failure:
        try:
            return job.result(seconds)
        except LateError:
            return Status.COMPILE_ERROR, f"not compiled within {seconds:g} s"
        except BrokenProcessPool:
            self.close()  # every job that was in it is lost; the next one gets new processes
            return Status.CRASH, "the compiler died"

    def _executor(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._processes, mp_context=context, initializer=_ignore_interrupts)
        return self._pool


def compile_specs(specs: list[KernelSpec], arch: str) -> Failure:
    """Fill the cache; what failed as data. Runs in a process of the pool."""
    from mktune.jit.build import build

    try:
        build(specs, arch)
    except CandidateError as error:
        return error.status, str(error)
    except MktuneError as error:
        return "", str(error)
    except Exception as error:  # one kernel must not end the search, whatever its compiler raises
        return Status.COMPILE_ERROR, f"{type(error).__name__}: {error}"
    return None


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
