"""Launches of all layers captured into one graph, as an engine does it: what `streams` is timed as."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from mktune.closing import Closing
from mktune.errors import MktuneError
from mktune.executors.buffers import Buffers, Poison
from mktune.executors.cuda_graph import CudaGraph, NodeName, edges_between, instantiate
from mktune.executors.driver_calls import call, driver
from mktune.executors.functions import Kernels
from mktune.executors.streams import Streams
from mktune.lowering.kernel_graph import KernelGraph

_NON_BLOCKING = 1


class CapturedStreams(Closing):
    """`Streams`, captured once and replayed as a graph. Raises CandidateError as it does."""

    def __init__(self, graph: KernelGraph, kernels: Kernels, buffers: Buffers, poison: Poison | None = None) -> None:
        self.streams = Streams(graph, kernels, buffers, poison)
        self.nodes: dict[NodeName, Any] = {}
        self._handle = self._executable = None
        try:
            self._handle = self._capture()
            self._executable = instantiate(self._handle)
        except BaseException:
            self.close()
            raise

    def replay(self, stream: int) -> None:
        """Launch the captured graph on `stream` (a CUstream address)."""
        call("cuGraphLaunch", self._executable, stream)

    def upload(self, stream: int) -> None:
        """Do now what the first launch would otherwise do."""
        call("cuGraphUpload", self._executable, stream)

    def edges(self) -> list[tuple[NodeName, NodeName, int, int]]:
        """What the driver holds between kernel nodes: (source, target, edge type, port)."""
        return edges_between(self.nodes, self._handle)

    def close(self) -> None:
        """Free the graph and what it was captured from. May be called twice; no replay may be running."""
        for name, handle in (("cuGraphExecDestroy", self._executable), ("cuGraphDestroy", self._handle)):
            if handle is not None:
                call(name, handle)
        self._executable = self._handle = None
        self.nodes.clear()
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


class Executable(Protocol):
    """A plan that can be run again and again on the stream of that CUstream address."""

    def replay(self, stream: int) -> None: ...

    def upload(self, stream: int) -> None: ...

    def close(self) -> None: ...


EXECUTABLES: dict[str, Callable[..., Executable]] = {"cuda_graph": CudaGraph, "streams": CapturedStreams}
"""Executor of a plan → what runs all layers in one launch."""
