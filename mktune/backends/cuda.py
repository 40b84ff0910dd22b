"""The GPU of this machine. Everything that touches it runs in a worker process; this one never imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mktune.backends.base import Backend, Problem

if TYPE_CHECKING:
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

    def open(self, problem: Problem) -> CudaBench:
        from mktune.measure.cuda_bench import CudaBench

        return CudaBench(self.device, self.index, problem, self._trial_seconds)
