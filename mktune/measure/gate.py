"""Does the machine code do what the closure rule was told? What ops declare and plans ask for, against the SASS.

The chain has no gap: code reads early only from the buffers of parameters that are declared constant; those buffers are
among the early reads of the kernel's facts; and the closure rule has found those reads safe on the plan's edges.
"""

from __future__ import annotations

from mktune.access import KernelFacts
from mktune.errors import CandidateError, SetupError
from mktune.executors.cuda_graph import Kernels
from mktune.launch import Launch, SassFacts, ScalarArg, early_buffers
from mktune.lowering.kernel_graph import KernelGraph
from mktune.plan import KernelPlan, Plan
from mktune.trial import Status

# A declared trigger holds if the code's own is no earlier.
_LATENESS = {"before_wait": 0, "after_wait": 1, "exit": 2}


def check_facts(graph: KernelGraph, kernels: Kernels, plan: Plan | None = None) -> None:
    """Raises CandidateError (build_error) where a kernel waits less or triggers earlier than its op declares, or may
    load produced data before its wait although some edge lets it start early; with `plan` also where it does not wait,
    trigger or prefetch where the plan says. Raises SetupError where nobody can say: a plan that was not checked is
    neither timed nor stored."""
    launches = dict(graph.launches)
    early = {edge.target for edge in graph.edges if edge.kind != "full"}
    placed = plan.kernel if plan else {}
    for kernel in graph.kernels:
        launch = launches[kernel.name]
        sass = kernels[launch.kernel].facts
        if sass is None:
            raise SetupError("kernels cannot be checked without nvdisasm: pip install 'mktune[compile]'")
        wrong = disagreement(kernel, sass, kernel.name in early)
        wrong = wrong or undeclared(kernel, launch, sass, kernel.name in early)
        if not wrong and kernel.name in placed:
            wrong = misplaced(placed[kernel.name], kernel, launch, sass)
        if wrong:
            raise CandidateError(Status.BUILD_ERROR, f"{kernel.name}: {wrong}")


def check_registers(graph: KernelGraph, kernels: Kernels) -> None:
    """Raises CandidateError (build_error) where a kernel keeps anything in local memory: its tile has too few
    registers. What it computes is right, but it is no plan to serve."""
    for name, launch in graph.launches:
        code = kernels[launch.kernel]
        if code.spill_bytes or code.stack_bytes:
            found = f"spills {code.spill_bytes} bytes of registers, its stack has {code.stack_bytes} bytes"
            raise CandidateError(Status.BUILD_ERROR, f"{name}: {found}")


def disagreement(declared: KernelFacts, sass: SassFacts, starts_early: bool) -> str:
    """What the code does that its facts deny, in words; empty where they agree."""
    if declared.waits and sass.waits != "always":
        return f"declared to wait on every path, but its code waits {sass.waits}"
    if _LATENESS[sass.trigger] < _LATENESS[declared.trigger]:
        return f"declared to trigger at {declared.trigger}, but its code triggers at {sass.trigger}"
    if starts_early and sass.unproven_loads:
        first = f": {sass.unproven[0]}" if sass.unproven else ""
        return f"{sass.unproven_loads} loads before the wait are not proven to read constants{first}"
    return ""


def undeclared(declared: KernelFacts, launch: Launch, sass: SassFacts, starts_early: bool) -> str:
    """Which buffers the code reads before the wait that its facts do not name there, where it may start early."""
    if not starts_early:
        return ""
    if numbers := [index for index in sass.early_parameters if isinstance(launch.args[index], ScalarArg)]:
        return f"takes an address before its wait from parameter {numbers[0]}, which is a number"
    extra = early_buffers(launch, sass) - _declared_early(declared)
    return f"reads {_listed(extra)} before its wait, which its facts do not declare" if extra else ""


def misplaced(placed: KernelPlan, declared: KernelFacts, launch: Launch, sass: SassFacts) -> str:
    """Where the plan has the kernel wait, trigger and prefetch, and its code does not; empty where it does."""
    if sass.trigger_place != placed.trigger:
        return f"the plan has it trigger at {placed.trigger}, its code triggers at {sass.trigger_place}"
    if sass.waits == "never":
        return ""
    if placed.gdc == "entry" and sass.loads_before_wait:
        return f"the plan has it wait at entry, but {sass.loads_before_wait} loads stand before the wait"
    if missing := _declared_early(declared) - early_buffers(launch, sass):
        return f"with gdc = {placed.gdc} it should read {_listed(missing)} before its wait, but its code never does"
    return ""


def _declared_early(declared: KernelFacts) -> frozenset[str]:
    return frozenset(access.buffer for access in declared.accesses if not (access.writes or access.after_wait))


def _listed(buffers: frozenset[str]) -> str:
    return ", ".join(sorted(buffers))
