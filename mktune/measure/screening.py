"""When to stop taking samples of a plan's span, and which spans cannot be true. Plain logic: no GPU, no torch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mktune.errors import CandidateError
from mktune.measure.stats import Interval, median_interval
from mktune.trial import Status

Sampler = Callable[[int], Sequence[float]]
"""Number of launches → that many spans in µs per layer, in the order of a build's launches from its first on."""

_MANY_LAYERS = 64
_LEAST_BATCH = 6


@dataclass(frozen=True)
class ScreeningBudget:
    """How much one screening may cost.

    warmup       launches of a batch that are thrown away before the first that counts
    batch        launches between two looks at the interval
    least        launches of a plan that is not dropped, at least
    launches     at most so many; those that are thrown away are not counted, here and above
    seconds      of wall time, after which no further batch is begun
    resolution   relative width of the interval that is narrow enough where there is no incumbent
    prune        a plan whose whole interval lies this fraction above the incumbent is dropped at once
    noisy        relative width of the interval at the end that makes a trial worthless
    """

    warmup: int = 3
    batch: int = 24
    least: int = 48
    launches: int = 240
    seconds: float = 1.0
    resolution: float = 0.003
    prune: float = 0.03
    noisy: float = 0.06


def of_layers(budget: ScreeningBudget, layers: int) -> ScreeningBudget:
    """The same for graphs of so many layers: a launch of hundreds says more than one of eight, and is built longer."""
    if layers <= _MANY_LAYERS:
        return budget
    batch = max(_LEAST_BATCH, round(budget.batch * _MANY_LAYERS / layers))
    return replace(budget, batch=batch, least=2 * batch, launches=2 * batch)


BRIEF = ScreeningBudget(batch=48, least=96, launches=192, seconds=0.5, resolution=0.01)
"""For a plan among thousands of a landscape: about 50 ms."""


@dataclass(frozen=True)
class Screening:
    """What a screening found: ok, pruned or noisy, with every sample."""

    status: Status
    interval: Interval
    samples: tuple[float, ...]

    @property
    def reason(self) -> str:
        width = f"{self.interval.low:.2f} to {self.interval.high:.2f} us"
        return {
            Status.PRUNED: f"clearly slower than the incumbent after {len(self.samples)} launches ({width})",
            Status.NOISY: f"the median is not known better than {width} after {len(self.samples)} launches",
        }.get(self.status, "")


def screen(
    sample: Sampler, incumbent_us: float | None, budget: ScreeningBudget, clock: Callable[[], float] = time.monotonic
) -> Screening:
    """Sample until the median's interval is narrower than the gap to the incumbent, or the budget is used.

    Raises CandidateError where a span is not a positive finite number.
    """
    deadline = clock() + budget.seconds
    samples: list[float] = []
    while True:
        samples += sample(budget.warmup + budget.batch)[budget.warmup :]
        check_finite(samples)
        interval = median_interval(samples)
        if incumbent_us is not None and interval.low > incumbent_us * (1.0 + budget.prune):
            return Screening(Status.PRUNED, interval, tuple(samples))
        if len(samples) >= budget.least and _is_narrow(interval, incumbent_us, budget):
            return Screening(Status.OK, interval, tuple(samples))
        if len(samples) + budget.batch > budget.launches or clock() >= deadline:
            status = Status.NOISY if interval.relative_width > budget.noisy else Status.OK
            return Screening(status, interval, tuple(samples))


def _is_narrow(interval: Interval, incumbent_us: float | None, budget: ScreeningBudget) -> bool:
    width = interval.high - interval.low
    if incumbent_us is None:
        return interval.relative_width <= budget.resolution
    return width < abs(interval.median - incumbent_us)


def check_finite(samples: Sequence[float]) -> None:
    """Raises CandidateError (launch_error) for a time that no launch can have taken."""
    for value in samples:
        if not math.isfinite(value) or value <= 0:
            raise CandidateError(Status.LAUNCH_ERROR, f"a span of {value} us is not a time that a launch can take")


def check_span(span_us: float, cold_bytes: int, bandwidth: float) -> None:
    """Raises CandidateError (wrong_result) where `cold_bytes` in `span_us` would exceed `bandwidth` (bytes/s)."""
    rate = cold_bytes / (span_us * 1e-6)
    if rate > bandwidth:
        raise CandidateError(
            Status.WRONG_RESULT,
            f"{cold_bytes} bytes in {span_us:.2f} us are {rate / 1e12:.2f} TB/s, above the card's peak of "
            f"{bandwidth / 1e12:.2f} TB/s: the kernels did not do their work",
        )
