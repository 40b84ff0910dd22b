"""A whole back end without a GPU: the bench of the GPU and its worker process, with a host that only pretends."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fake_bench import H200

from mktune.backends.base import Backend, Problem
from mktune.measure.cuda_bench import CudaBench
from mktune.measure.deadline import Deadlines
from mktune.measure.screening import ScreeningBudget


class CompiledAlready:
    """Every kernel is in the cache."""

    def submit(self, specs: Sequence[Any]) -> None: ...

    def ready(self, specs: Sequence[Any]) -> bool:
        return True

    def wait(self, specs: Sequence[Any]) -> None: ...

    def close(self) -> None: ...


class FakeDevice(Backend):
    """A GPU of this process alone. Candidates have `deadline` seconds; five times that until one has ended."""

    name = "cuda"
    simulated = False

    def __init__(self, deadline: float = 2.0) -> None:
        self.device = replace(H200, uuid=f"fake-{os.getpid()}")
        self._deadline = deadline
        self.benches: list[CudaBench] = []

    def open(self, problem: Problem) -> CudaBench:
        bench = CudaBench(self.device, 0, problem, host="fake_host:FakeHost")
        bench.budget = ScreeningBudget(seconds=0.0)
        bench.deadlines = Deadlines(5 * self._deadline, factor=1.0, least=self._deadline)
        bench._compiler = CompiledAlready()  # type: ignore[assignment]
        self.benches.append(bench)
        return bench
