"""A whole back end without a GPU: the bench of the GPU and its worker process, with a host that only pretends."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fake_bench import H200
from waiting import LIMIT_S

from mktune.backends.base import Backend, Problem
from mktune.measure.cuda_bench import CudaBench
from mktune.measure.deadline import Deadlines
from mktune.measure.screening import ScreeningBudget


class CompiledAlready:
    """Every kernel is in the cache."""

    def submit(self, specs: Sequence[Any]) -> None: ...

    def ready(self, specs: Sequence[Any]) -> bool:
        return True

    def has(self, specs: Sequence[Any]) -> bool:
        return True

    def wait(self, specs: Sequence[Any]) -> None: ...

    def close(self) -> None: ...


class FakeDevice(Backend):
    """A GPU of this process alone. Candidates have `deadline` seconds; five times that until one has ended.

    hangs  tells by a plan's text which ones never answer, where it is known: they alone are given `deadline` seconds,
           and all others as long as a busy machine may take
    """

    name = "cuda"
    simulated = False

    def __init__(self, deadline: float = 2.0, hangs: Callable[[str], bool] | None = None) -> None:
        self.device = replace(H200, uuid=f"fake-{os.getpid()}")
        self._deadline, self._hangs = deadline, hangs
        self.benches: list[CudaBench] = []

    def open(self, problem: Problem) -> CudaBench:
        bench = CudaBench(self.device, 0, problem, host="fake_host:FakeHost")
        bench.budget = ScreeningBudget(seconds=0.0)
        bench.deadlines = Deadlines(5 * self._deadline, factor=1.0, least=self._deadline)
        bench._compiler = CompiledAlready()  # type: ignore[assignment]
        if self._hangs is not None:
            _in_time(bench, self._hangs)
        self.benches.append(bench)
        return bench


def _in_time(bench: CudaBench, hangs: Callable[[str], bool]) -> None:
    """Whoever is not said to hang has LIMIT_S in place of the bench's deadline."""
    ask = bench._worker.ask

    def patiently(request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        plans = [request["plan"]] if "plan" in request else list(request.get("plans", {}).values())
        return ask(request, seconds if any(map(hangs, plans)) else LIMIT_S)

    bench._worker.ask = patiently  # type: ignore[method-assign]
