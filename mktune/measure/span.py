"""The clock: microseconds per layer of one graph launch.

A blocking kernel keeps the GPU busy while the host enqueues, so that neither event waits for the host; whether it did
is checked and the samples are taken again where it did not. Span = time between the events / layers; nothing is
subtracted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from mktune.errors import CandidateError
from mktune.trial import Status

if TYPE_CHECKING:
    import torch

SETTLE_SECONDS = 0.3
_MAX_CYCLES = 1 << 30  # about half a second


class Replayable(Protocol):
    """A graph that can be launched again and again, on the stream of that CUstream address."""

    def replay(self, stream: int) -> None: ...


class GraphTimer:
    """Times launches on a stream of its own. Needs torch and the current device's context."""

    def __init__(self, layers: int, block_cycles: int = 200_000) -> None:
        import torch

        self.layers = layers
        self.stream = torch.cuda.Stream()
        self._torch = torch
        self._least = self._cycles = block_cycles
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self.settled = False

    def settle(self, graph: Replayable) -> None:
        """Once per process: load the GPU until it runs as it will go on.

        The first 25 ms of load in a process ran 8 % faster than everything after on an H200, at one reported clock.
        """
        end = time.monotonic() + (0.0 if self.settled else SETTLE_SECONDS)
        while time.monotonic() < end:
            self.sample([graph] * 12)
        self.settled = True

    def sample(self, graphs: Sequence[Replayable]) -> list[float]:
        """One launch of each of `graphs`, back to back in this order: µs per layer of each."""
        while not self._launch(graphs):
            if self._cycles > _MAX_CYCLES:
                raise CandidateError(Status.NOISY, "this host cannot enqueue launches as fast as the GPU runs them")
            self._cycles *= 2
        self._cycles = max(self._least, self._cycles * 7 // 8)  # the host may have been busy for a moment only
        return [begin.elapsed_time(end) * 1e3 / self.layers for begin, end in self._events[: len(graphs)]]

    def _launch(self, graphs: Sequence[Replayable]) -> bool:
        """Enqueue behind a blocking kernel and wait. False where the GPU did not stay blocked until all was there."""
        while len(self._events) < len(graphs) + 1:
            self._events.append((self._event(), self._event()))
        unblocked, _ = self._events[len(graphs)]
        with self._torch.cuda.stream(self.stream):
            self._torch.cuda._sleep(self._cycles)
            unblocked.record()
            for graph, (begin, end) in zip(graphs, self._events, strict=False):
                begin.record()
                graph.replay(self.stream.cuda_stream)
                end.record()
            held = not unblocked.query()
        self.stream.synchronize()
        return held

    def _event(self) -> torch.cuda.Event:
        return self._torch.cuda.Event(enable_timing=True)
