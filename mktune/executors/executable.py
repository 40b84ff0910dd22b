"""A graph of the driver that can be launched: what every executor ends in, however its nodes were made."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from mktune.closing import Closing
from mktune.executors.driver_calls import call

NodeName = tuple[int, str]
"""Layer and kernel."""

_USE_NODE_PRIORITY = 8


class Executable(Closing):
    """All layers of a plan in one launch. Subclasses add `nodes` to a graph and free what these need in `_release`.

    Raises CandidateError: build_error for what the driver refuses, out_of_memory. `replay` may raise launch_error;
    faults of kernels surface at the next synchronisation.
    """

    def __init__(self) -> None:
        self.nodes: dict[NodeName, Any] = {}
        self._handle: Any = None
        self._executable: Any = None

    def replay(self, stream: int) -> None:
        """Launch the whole graph on `stream` (a CUstream address; 0 is the default stream)."""
        call("cuGraphLaunch", self._executable, stream)

    def upload(self, stream: int) -> None:
        """Do now what the first launch would otherwise do."""
        call("cuGraphUpload", self._executable, stream)

    def edges(self) -> list[tuple[NodeName, NodeName, int, int]]:
        """What the driver holds between kernel nodes: (source, target, edge type, port), for tests and for people."""
        names = {int(node): name for name, node in self.nodes.items()}
        count = call("cuGraphGetEdges", self._handle)[3]
        sources, targets, data, _ = call("cuGraphGetEdges", self._handle, count)
        found = []
        for source, target, edge in zip(sources, targets, data, strict=True):
            if int(source) in names and int(target) in names:
                found.append((names[int(source)], names[int(target)], int(edge.type), int(edge.from_port)))
        return sorted(found)

    def close(self) -> None:
        """Free the graph and what it needs. May be called twice; no replay may be running."""
        for name, handle in (("cuGraphExecDestroy", self._executable), ("cuGraphDestroy", self._handle)):
            if handle is not None:
                call(name, handle)
        self._executable = self._handle = None
        self.nodes.clear()
        self._release()

    @abstractmethod
    def _release(self) -> None:
        """Free what the graph's nodes need. May be called twice."""

    def _instantiate(self) -> None:
        """Make the graph executable, so that node priorities count."""
        self._executable = call("cuGraphInstantiate", self._handle, _USE_NODE_PRIORITY)
