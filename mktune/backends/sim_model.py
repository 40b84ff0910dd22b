"""The model of `sim`: when each kernel of a lowered plan starts, gets its bytes, and ends.

A fluid model. A kernel occupies SM slots as they become free, sets up, may fill its ring before its wait, streams its
cold bytes at a rate that its bytes in flight, the memory that all running kernels share, L2 and its arithmetic bound,
and ends after what remains (results, partial sums, last arrivers). Edges decide when it may start and when its wait
lets go. There is no noise: the same plan always has the same span.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mktune.backends.sim_constants import Constants
from mktune.lowering.kernel_graph import Edge
from mktune.trace import KernelTimes

_TINY = 1e-9


@dataclass(frozen=True)
class SimKernel:
    """One kernel as the model sees it.

    ring_bytes   cold bytes that all CTAs together can have in flight
    ahead_bytes  cold bytes that may be fetched before the wait (ring, and L2 beyond it); 0: it fetches nothing
    passes       how often the cold bytes cross from L2 to the SMs, on average
    busy_us      arithmetic, at the rate of the whole GPU
    tail_us      what follows the last cold byte: results, partial sums, last arrivers
    """

    name: str
    ctas: int
    ctas_per_sm: int
    cold_bytes: float
    ring_bytes: float
    ahead_bytes: float
    passes: float
    busy_us: float
    tail_us: float
    gdc: str
    trigger: str
    priority: int = 0


@dataclass
class _Run:
    """A kernel in time. `stage`: idle, start, first, ahead, hold, stream, tail, done; `until` ends a timed stage.

    placed    its last CTA has begun
    streamed  its last cold byte has arrived
    left      cold bytes still to come; `ahead`: those of them that may come before the wait
    """

    kernel: SimKernel
    left: float
    stage: str = "idle"
    until: float = math.inf
    resident: int = 0
    ahead: float = 0.0
    start: float = math.inf
    placed: float = math.inf
    streamed: float = math.inf
    end: float = math.inf

    @property
    def begun(self) -> float:
        """CTAs that have begun: those that are resident, and those whose place they took."""
        kernel = self.kernel
        done = 1.0 - self.left / kernel.cold_bytes if kernel.cold_bytes else 0.0
        return min(kernel.ctas, self.resident + done * kernel.ctas)

    @property
    def waves(self) -> int:
        return -(-self.kernel.ctas // self.resident)


def span_us(
    kernels: Sequence[SimKernel], edges: Sequence[Edge], sms: int, constants: Constants
) -> tuple[float, dict[str, tuple[float, float]]]:
    """Span of one layer among many, and each kernel's start and end in it, all in µs.

    Layers are joined by full edges, so a layer takes until its last kernel ends plus one full boundary.
    """
    timeline = _Timeline(kernels, edges, sms, constants)
    timeline.run()
    ends = {name: (run.start, run.end) for name, run in timeline.runs.items()}
    return max(end for _, end in ends.values()) + constants.boundary_full, ends


def layer_times(
    kernels: Sequence[SimKernel], edges: Sequence[Edge], sms: int, constants: Constants
) -> dict[str, tuple[KernelTimes, float]]:
    """Each kernel's times in a layer, and how many SMs its CTAs occupied at once. In µs; nothing is in between."""
    timeline = _Timeline(kernels, edges, sms, constants)
    timeline.run()
    return {name: (timeline.times(run), run.resident / run.kernel.ctas_per_sm) for name, run in timeline.runs.items()}


class _Timeline:
    def __init__(self, kernels: Sequence[SimKernel], edges: Sequence[Edge], sms: int, constants: Constants) -> None:
        self.runs = {kernel.name: _Run(kernel, kernel.cold_bytes) for kernel in kernels}
        self.into: dict[str, list[Edge]] = {name: [e for e in edges if e.target == name] for name in self.runs}
        self.first_served = sorted(self.runs.values(), key=lambda run: -run.kernel.priority)
        self.c = constants
        self.sms = sms
        self.free = float(sms)
        self.now = 0.0

    def run(self) -> None:
        self._settle()
        while any(run.stage != "done" for run in self.first_served):
            self._advance()
            self._settle()

    def times(self, run: _Run) -> KernelTimes:
        """What the model knows of a kernel that is done. Its CTAs set up before their wait, unless that comes first."""
        set_up = 0.0 if run.kernel.gdc == "entry" else self.c.set_up
        ready = max(run.start + self.c.cta_start + set_up, self._lets_go(run))
        placed = (run.start, run.placed)
        triggered = None if run.kernel.trigger == "exit" else min(self._triggered(run), run.end)
        rooms = [next((o.kernel.name for o in self.first_served if abs(o.end - at) < _TINY), "") for at in placed]
        return KernelTimes(run.start, run.placed, min(ready, run.end), triggered, run.end, run.placed, *rooms)

    def _settle(self) -> None:
        """Everything that happens at this moment."""
        changed = True
        while changed:
            changed = False
            for run in self.first_served:
                changed |= self._step(run)

    # What an edge allows, and when; infinite while it is not known yet.

    def _may_start(self, run: _Run) -> float:
        return max((self._lets_start(edge) for edge in self.into[run.kernel.name]), default=0.0)

    def _lets_start(self, edge: Edge) -> float:
        source = self.runs[edge.source]
        if edge.kind == "full":
            return source.end + self.c.boundary_full
        if edge.kind == "launch_order":
            return source.placed + self.c.launch_hop
        if source.kernel.trigger == "exit":
            return source.end + self.c.boundary_exit
        return self._triggered(source) + self.c.launch_hop

    def _triggered(self, run: _Run) -> float:
        """When the last CTA has triggered."""
        if run.kernel.trigger == "after_wait":
            return max(run.placed, run.start + self.c.cta_start, self._lets_go(run))
        return max(run.placed, run.streamed) if run.kernel.trigger == "before_epilogue" else run.placed

    def _lets_go(self, run: _Run) -> float:
        """When the kernel's wait returns: full edges were over before it began."""
        sources = (self.runs[edge.source] for edge in self.into[run.kernel.name] if edge.kind != "full")
        return max((source.end + self.c.boundary_early for source in sources), default=0.0)

    # One kernel's way through its stages. `_step` says whether something changed.

    def _step(self, run: _Run) -> bool:
        placed = self._place(run)
        timed_out = run.until <= self.now + _TINY
        let_go = self._lets_go(run) <= self.now + _TINY
        late = run.kernel.gdc == "entry"
        prefetches = run.kernel.gdc == "prefetch"
        match run.stage:
            case "idle" if run.resident:
                run.start = self.now
                return self._enter(run, "start", self.c.cta_start + (0.0 if late else self.c.set_up))
            case "start" if timed_out:
                return self._enter(run, "first", self.c.first_bytes) if prefetches else self._enter(run, "hold")
            case "first" if timed_out and not let_go:
                run.ahead = min(run.left, run.kernel.ahead_bytes * run.resident / run.kernel.ctas)
                return self._enter(run, "ahead")
            case "ahead" if not let_go and run.ahead < 1:
                return self._enter(run, "hold")
            case "hold" if let_go and not prefetches:
                return self._enter(run, "first", self.c.first_bytes + (self.c.set_up if late else 0.0))
            case "first" | "ahead" | "hold" if let_go and (timed_out or run.stage != "first"):
                return self._enter(run, "stream")
            case "stream" if run.left < 1:
                run.streamed = self.now
                return self._enter(run, "tail", self._tail(run))
            case "tail" if timed_out:
                run.end = self.now
                self.free += run.resident / run.kernel.ctas_per_sm
                return self._enter(run, "done")
        return placed

    def _tail(self, run: _Run) -> float:
        """Drain and what follows; every wave but the last also starts CTAs anew, hidden by others on the same SM."""
        again = self.c.cta_start + self.c.set_up + self.c.first_bytes + self.c.drain
        return self.c.drain + run.kernel.tail_us + (run.waves - 1) * again / run.kernel.ctas_per_sm

    def _enter(self, run: _Run, stage: str, lasts: float = math.inf) -> bool:
        run.stage, run.until = stage, self.now + lasts
        return True

    def _place(self, run: _Run) -> bool:
        """Give the kernel what slots are free, and see whether its last CTA has begun."""
        if run.placed < math.inf or self._may_start(run) > self.now + _TINY:
            return False
        room = math.floor(self.free * run.kernel.ctas_per_sm + _TINY)
        more = min(run.kernel.ctas - run.resident, room) if run.stage != "tail" else 0
        run.resident += more
        self.free -= more / run.kernel.ctas_per_sm
        if run.resident and (run.stage == "tail" or run.begun > run.kernel.ctas - 0.01):
            run.placed = self.now
        return more > 0 or run.placed == self.now

    # Bytes move until the next event.

    def _advance(self) -> None:
        rates = self._rates()
        events = [run.until for run in self.first_served]
        for run in self.first_served:
            if run.placed == math.inf:
                events.append(self._may_start(run))
            if run.stage in ("ahead", "hold"):
                events.append(self._lets_go(run))
            if rate := rates.get(run.kernel.name):
                events.append(self.now + (run.ahead if run.stage == "ahead" else run.left) / rate)
                if run.placed == math.inf:
                    unbegun = run.left - run.kernel.cold_bytes * run.resident / run.kernel.ctas
                    events.append(self.now + max(0.0, unbegun) / rate)
        ahead = min((event for event in events if event > self.now + _TINY), default=math.inf)
        assert ahead < math.inf, "a kernel waits for nothing that will come"
        for run in self.first_served:
            moved = rates.get(run.kernel.name, 0.0) * (ahead - self.now)
            run.left = max(0.0, run.left - moved)
            run.ahead = max(0.0, run.ahead - moved)
        self.now = ahead

    def _rates(self) -> dict[str, float]:
        """Memory is shared evenly; what a kernel cannot take goes to the others."""
        bounds = {run.kernel.name: self._bound(run) for run in self.runs.values() if run.stage in ("ahead", "stream")}
        rates: dict[str, float] = {}
        rest = self.c.memory_rate
        for name, bound in sorted(bounds.items(), key=lambda pair: pair[1]):
            rates[name] = min(bound, rest / (len(bounds) - len(rates)))
            rest -= rates[name]
        return rates

    def _bound(self, run: _Run) -> float:
        """The most that one kernel can take: bytes in flight over latency, L2, its SMs, its arithmetic."""
        kernel = run.kernel
        at_once = kernel.ctas / run.waves
        bound = min(self.c.l2_rate, self.c.cta_rate * min(at_once, self.sms)) / kernel.passes
        if kernel.ring_bytes < kernel.cold_bytes:
            bound = min(bound, kernel.ring_bytes * at_once / kernel.ctas / self.c.memory_latency)
        return min(bound, kernel.cold_bytes / kernel.busy_us) if kernel.busy_us else bound
