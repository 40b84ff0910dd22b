"""Which kernel sources a plan is compiled from, as one hash: what a stored span depends on."""

from __future__ import annotations

from collections.abc import Sequence

from mktune.graph.workload import workload as find
from mktune.jit.source import source_fingerprint
from mktune.launch import KernelSpec


def kernels_fingerprint(workload: str, ops: Sequence[str] | None = None) -> str:
    """The value for `Fingerprint.kernels` of plans of `ops` (None: all): over their sources and what those include.

    Another op's kernel may change, or be added, and stored plans of these ops stay valid. Raises InputError for an
    unknown workload or op, SetupError where an op has no kernel source.
    """
    calls = find(workload).subgraph(ops).calls.values()
    stems = sorted({type(call.op).__module__.rpartition(".")[2] for call in calls})
    return source_fingerprint([KernelSpec(f"standalone/{stem}.cu", "") for stem in stems])
