"""Does the machine code do what the closure rule was told? Declared waits and triggers against those in the SASS."""

from __future__ import annotations

from mktune.access import KernelFacts
from mktune.errors import CandidateError, SetupError
from mktune.executors.cuda_graph import Kernels
from mktune.launch import SassFacts
from mktune.lowering.kernel_graph import KernelGraph
from mktune.trial import Status

# A declared trigger holds if the code's own is no earlier.
_LATENESS = {"before_wait": 0, "after_wait": 1, "exit": 2}


def check_facts(graph: KernelGraph, kernels: Kernels) -> None:
    """Raises CandidateError (build_error) where a kernel waits less or triggers earlier than its op declares, or may
    load produced data before its wait although some edge lets it start early. Raises SetupError where nobody can say:
    a plan that was not checked is not timed."""
    launches = dict(graph.launches)
    early = {edge.target for edge in graph.edges if edge.kind != "full"}
    for kernel in graph.kernels:
        sass = kernels[launches[kernel.name].kernel].facts
        if sass is None:
            raise SetupError("kernels cannot be checked without nvdisasm: pip install 'mktune[compile]'")
        if wrong := disagreement(kernel, sass, kernel.name in early):
            raise CandidateError(Status.BUILD_ERROR, f"{kernel.name}: {wrong}")


def disagreement(declared: KernelFacts, sass: SassFacts, starts_early: bool) -> str:
    """What the code does that its facts deny, in words; empty where they agree."""
    if declared.waits and sass.waits != "always":
        return f"declared to wait on every path, but its code waits {sass.waits}"
    if _LATENESS[sass.trigger] < _LATENESS[declared.trigger]:
        return f"declared to trigger at {declared.trigger}, but its code triggers at {sass.trigger}"
    if starts_early and sass.unproven_loads:
        return f"{sass.unproven_loads} loads before the wait are not proven to read constants"
    return ""
