"""The state of the GPU around a block of measurements, and what its clocks and events can resolve.

Clocks are read, never set. A block in which the SM clock moved says nothing about the plans in it: it is thrown away
and measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TypeVar

from mktune.errors import CandidateError
from mktune.executors.discovery import nvml
from mktune.measure.stats import median
from mktune.trial import Status

T = TypeVar("T")
State = Mapping[str, float]

CLOCK = "sm_mhz"
CLOCK_TOLERANCE = 0.015  # one step of the clock is 15 MHz of 1,980
DRIFT = 0.04  # builds of one plan lie up to 3.6 % apart, and a half may be of one
TRIES = 4


@dataclass(frozen=True)
class Calibration:
    """What was found at the start of a session.

    timer_tick_ns    step of the in-kernel timer
    event_quantum_us smallest difference between two times that events gave
    empty_graph_us   a graph that does nothing, between two events behind a blocking kernel
    """

    timer_tick_ns: float
    event_quantum_us: float
    empty_graph_us: float

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


class Gauges:
    """Clocks, power and temperature of one GPU through NVML. Where that cannot be read, every reading is empty."""

    def __init__(self, uuid: str) -> None:
        self._nvml, self._handle = nvml(), None
        try:
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid) if self._nvml else None
        except Exception:  # a part of a GPU may not be asked for; measuring goes on without
            self._nvml = None

    def read(self) -> dict[str, float]:
        """sm_mhz, mem_mhz, power_w and temperature_c, as far as the driver tells."""
        found: dict[str, float] = {}
        for name, ask in self._questions().items():
            try:
                found[name] = float(ask())
            except Exception:  # one gauge that is not supported does not hide the others
                continue
        return found

    def _questions(self) -> dict[str, Callable[[], float]]:
        nvml, handle = self._nvml, self._handle
        if nvml is None:
            return {}
        return {
            CLOCK: lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "mem_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        }


def steady(
    block: Callable[[], T],
    read: Callable[[], State],
    drifts: Callable[[T], bool] = lambda result: False,
    tries: int = TRIES,
) -> tuple[T, dict[str, float]]:
    """What `block` gave in a run in which the SM clock did not move, and the state before and after that run.

    `drifts` says of a result that something else moved (`drifted`): not every clock can be read. Raises
    CandidateError (noisy) where something moved in each of `tries` runs.
    """
    for _ in range(tries):
        before = read()
        result = block()
        after = read()
        if not clock_moved(before, after) and not drifts(result):
            return result, both(before, after)
    moved = f"SM clock {before[CLOCK]:.0f} to {after[CLOCK]:.0f} MHz" if CLOCK in before else "no clock to read"
    raise CandidateError(Status.NOISY, f"the GPU's speed moved during each of {tries} blocks (last: {moved})")


def drifted(samples: Sequence[float], tolerance: float = DRIFT) -> bool:
    """The later half of the samples is faster or slower than the earlier half, beyond what samples of one plan are."""
    half = len(samples) // 2
    if half < 6:
        return False
    return abs(median(samples[half:]) / median(samples[:half]) - 1.0) > tolerance


def clock_moved(before: State, after: State) -> bool:
    """The SM clock changed by more than one step. Unknown clocks did not move."""
    if CLOCK not in before or CLOCK not in after:
        return False
    return abs(after[CLOCK] - before[CLOCK]) > CLOCK_TOLERANCE * max(before[CLOCK], after[CLOCK])


def both(before: State, after: State) -> dict[str, float]:
    """{"sm_mhz_before": …, "sm_mhz_after": …, …}, sorted by name."""
    named = {f"{name}_before": value for name, value in before.items()}
    named |= {f"{name}_after": value for name, value in after.items()}
    return dict(sorted(named.items()))


def smallest_step(values: list[float]) -> float:
    """The smallest difference between two different values; 0 where all are equal."""
    ordered = sorted(set(values))
    return min((b - a for a, b in pairwise(ordered)), default=0.0)
