"""The GPU of this machine. Everything that touches it runs in a worker process; this one never imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mktune.backends.base import Backend, Bench, Problem
from mktune.device import Device
from mktune.errors import InputError

if TYPE_CHECKING:
    from mktune.measure.compile_ahead import CompileAhead
    from mktune.measure.cuda_bench import CudaBench

TRIAL_SECONDS = 30.0
"""How long one trial may take before its process is killed and the trial ends as a hang."""


class CudaBackend(Backend):
    """GPU number `index`. Raises SetupError where this machine has none; asking it creates no CUDA context."""

    name = "cuda"
    simulated = False

    def __init__(self, index: int = 0, trial_seconds: float = TRIAL_SECONDS) -> None:
        from mktune.executors.discovery import find_device

        self.index = index
        self.device = find_device(index)
        self._trial_seconds = trial_seconds
        self._keeping = False
        self._kept: CudaBench | None = None

    def open(self, problem: Problem) -> CudaBench:
        return self._open(problem, None)

    def _open(self, problem: Problem, compiler: CompileAhead | None) -> CudaBench:
        """compiler  another bench's, which outlives this one and what is kept here; None: one of its own"""
        from mktune.measure.cuda_bench import CudaBench

        problem.known.require_implementations(problem.ops, self.device.arch)
        how = (self.device, self.index, problem, self._trial_seconds)
        if not self._keeping:
            return CudaBench(*how, compiler=compiler)
        if self._kept is None:
            self._kept = CudaBench(*how, compiler=compiler)
        held = self._kept.problem
        if (held.known, held.seed) == (problem.known, problem.seed):
            return CudaBench(*how, self._kept)
        return CudaBench(*how, compiler=compiler)

    @contextmanager
    def kept(self) -> Iterator[None]:
        self._keeping = True
        try:
            yield
        finally:
            self._keeping = False
            kept, self._kept = self._kept, None
            if kept is not None:
                kept.close()

    def open_beside(self, bench: Bench) -> CudaBench:
        from mktune.measure.cuda_bench import CudaBench

        assert isinstance(bench, CudaBench)
        return self._open(bench.problem, bench.compiler)

    def beside(self, number: int | None) -> list[Backend]:
        """Other visible GPUs with as many SMs of the same architecture and name; those of another kind do not count."""
        from mktune.executors.discovery import device_count

        found = [CudaBackend(index, self._trial_seconds) for index in range(device_count()) if index != self.index]
        alike = [backend for backend in found if _kind(backend.device) == _kind(self.device)]
        if number is not None and number > len(alike):
            raise InputError(
                f"{number + 1} GPUs are asked for, and {len(alike) + 1} {self.device.name} are visible here"
            )
        return list(alike if number is None else alike[:number])


def _kind(device: Device) -> tuple[str, str, int]:
    return device.name, device.arch, device.sms
