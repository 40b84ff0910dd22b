"""Launches of all layers captured into one graph, as an engine does it: what `streams` is timed as."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from mktune.errors import MktuneError
from mktune.executors.buffers import Buffers, Poison
from mktune.executors.cuda_graph import CudaGraph
from mktune.executors.driver_calls import call, driver
from mktune.executors.executable import Executable
from mktune.executors.functions import Kernels
from mktune.executors.streams import Streams
from mktune.lowering.kernel_graph import KernelGraph

__all__ = ["EXECUTABLES", "CapturedStreams", "Executable"]

_NON_BLOCKING = 1


class CapturedStreams(Executable):
    """`Streams`, captured once and replayed as a graph. Raises CandidateError as it does."""

    def __init__(self, graph: KernelGraph, kernels: Kernels, buffers: Buffers, poison: Poison | None = None) -> None:
        super().__init__()
        self.streams = Streams(graph, kernels, buffers, poison)
        try:
            self._handle = self._capture()
            self._instantiate()
        except BaseException:
            self.close()
            raise

    def _release(self) -> None:
        self.streams.close()

    def _capture(self) -> Any:
        stream = call("cuStreamCreate", _NON_BLOCKING)
        try:
            call("cuStreamBeginCapture", stream, driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            try:
                self.nodes = self.streams.capture(stream)
            except BaseException:
                with suppress(MktuneError):  # the capture is broken; what broke it is raised
                    call("cuGraphDestroy", call("cuStreamEndCapture", stream))
                raise
            return call("cuStreamEndCapture", stream)
        finally:
            call("cuStreamDestroy", stream)


EXECUTABLES: dict[str, Callable[..., Executable]] = {"cuda_graph": CudaGraph, "streams": CapturedStreams}
"""Executor of a plan → what runs all layers in one launch."""
