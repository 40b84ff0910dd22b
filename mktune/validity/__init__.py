"""Which plans may be built: `check` is the one entry.

    agreement   the plan names its workload, and exactly the kernels and edges of its graph
    limits      configs exist, divide the problem and fit the device
    fusion      kernels that are one launch have code, configs that go together, and no way round to themselves
    waits       no early start of a kernel that cannot hold itself back
    hazards     the closure rule over every read and write, for two copies of the graph

Each step is asked only where those before it found nothing: facts of a wrong config mean nothing. A violation is data
for the search, which counts it. Residency is a cost, never a violation. Several roots are none either: the executor
then puts an empty node before them, so that a join keeps its early start.
"""

from __future__ import annotations

from mktune.access import KernelFacts
from mktune.device import Device
from mktune.errors import InputError
from mktune.graph.fused import fuse, fused_among, launched_as
from mktune.lowering.graph import plan_edges
from mktune.lowering.kernel_graph import KernelGraph
from mktune.ops.base import Violation
from mktune.plan import Plan
from mktune.validity.agreement import wrong_edges, wrong_header, wrong_order
from mktune.validity.fusion import unfusable, unknown_fusions
from mktune.validity.hazards import hazards
from mktune.validity.limits import JudgedCall, judged_graph
from mktune.validity.waits import unheld

__all__ = ["Violation", "check"]


def check(plan: Plan, device: Device, strict: bool = False) -> list[Violation]:
    """Why `plan` must not be built on `device`; empty where it may. Never raises for a bad plan.

    strict: also report, under the rule "transitive", where a plan that is otherwise right relies on what another
    kernel's wait knew: the default reading of what CUDA promises, which no direct edge states.
    """
    try:
        judged = judged_graph(plan.workload, tuple(plan.op), plan.shape, device, plan.scale_format)
    except InputError as error:
        return [Violation("workload", plan.workload, str(error))]
    found = wrong_header(plan, judged.known)
    names: list[str] = []
    facts: list[KernelFacts] = []
    op, kernels = plan.op, plan.kernel
    fused = fused_among(kernels)
    launched = launched_as(fused)
    found += unknown_fusions(fused, judged)
    for call in judged.calls:
        try:
            named, answer = call.judge(op[call.name], kernels, launched)
        except (KeyError, TypeError, ValueError) as error:
            found.append(_unreadable(call, error))
            continue
        names += named
        facts += answer.facts
        found += answer.violations
    if found:
        return found
    kernel = dict(zip(names, facts, strict=True))
    if fused:
        if found := unfusable(plan, fused, judged, facts):
            return found
        fuse(kernel, fused)
    found = wrong_order(plan, kernel.keys()) or wrong_edges(plan, judged.needed_edges(plan, tuple(names), fused))
    if found:
        return found
    lowered = KernelGraph(tuple([kernel[name] for name in plan.order]), plan_edges(plan))
    found = unheld(lowered) + hazards(lowered)
    return hazards(lowered, strict=True) if strict and not found else found


def _unreadable(judged: JudgedCall, error: Exception) -> Violation:
    """A call whose config does not tell its kernels, or asks for one that the plan does not place."""
    if isinstance(error, KeyError):
        return Violation("kernels", judged.name, f"its config asks for {error}, which the plan does not have")
    return Violation("config", judged.name, f"it cannot be read: {error}")
