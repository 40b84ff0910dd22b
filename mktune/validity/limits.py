"""What the ops of a graph say about configs, at one shape and on one device: does it exist, does it fit, what it does.

Answers are kept: a search asks about the same configs again and again, in ever new combinations and placements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from mktune.access import KernelFacts
from mktune.device import Device
from mktune.graph.kernel_edges import kernel_edges
from mktune.graph.opgraph import Call, OpGraph
from mktune.graph.workload import Workload, workload
from mktune.ops.base import Violation
from mktune.plan import Config, EdgeName, KernelPlan, OpPlan, Plan
from mktune.shape import Shape

_MAX_KEPT = 1 << 15

LaunchKey = tuple[tuple[str, str, int], ...]
"""Per kernel of a call what its op may judge: gdc, trigger, l2_prefetch_bytes. Placement is none of its business."""


@dataclass(frozen=True, eq=False, slots=True)
class Answer:
    """What is wrong with a configured call, or, if nothing is, what its kernels do."""

    violations: tuple[Violation, ...]
    facts: tuple[KernelFacts, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Configured:
    """A call under one config: its kernels' names, and an answer for each way of launching them that was asked for."""

    names: tuple[str, ...]
    answers: dict[LaunchKey, Answer] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, slots=True)
class JudgedCall:
    """One call of the graph with the configs that were asked about."""

    name: str
    call: Call
    shape: Shape
    device: Device
    configs: dict[tuple[str, Config], Configured] = field(default_factory=dict)

    def judge(self, op: OpPlan, kernels: Mapping[str, KernelPlan]) -> tuple[tuple[str, ...], Answer]:
        """The kernels' names under config `op`, and the answer for how `kernels` launches them.

        Raises KeyError, TypeError or ValueError where the config does not even tell its kernels, or they are not all
        in `kernels`.
        """
        key = op.impl, op.config  # hashed and compared without a call into Python, unlike `op`
        configured = self.configs.get(key)
        if configured is None:
            if len(self.configs) >= _MAX_KEPT:
                self.configs.clear()
            configured = self.configs[key] = Configured(self.call.kernel_names(op))
        placed = [kernels[name] for name in configured.names]
        launch = tuple([(kernel.gdc, kernel.trigger, kernel.l2_prefetch_bytes) for kernel in placed])
        answer = configured.answers.get(launch)
        if answer is None:
            answer = configured.answers[launch] = self._ask(op, tuple(placed))
        return configured.names, answer

    def _ask(self, op: OpPlan, kernels: tuple[KernelPlan, ...]) -> Answer:
        said = self.call.op.violations(op, kernels, self.shape, self.device)
        if said:
            return Answer(tuple([Violation(v.rule, self.name, v.message) for v in said]), ())
        return Answer((), self.call.facts(op, kernels))


@dataclass(frozen=True, eq=False, slots=True)
class JudgedGraph:
    """The calls of one graph, and the data edges of its kernels."""

    known: Workload
    graph: OpGraph
    calls: tuple[JudgedCall, ...]
    edges: dict[tuple[str, ...], frozenset[EdgeName]] = field(default_factory=dict)

    def needed_edges(self, plan: Plan, names: tuple[str, ...]) -> frozenset[EdgeName]:
        """Data edges between the kernels `names` that the plan's configs make; the names alone decide them."""
        found = self.edges.get(names)
        if found is None:
            found = self.edges[names] = frozenset(kernel_edges(self.graph, plan.op))
        return found


@lru_cache(maxsize=64)
def judged_graph(name: str, ops: tuple[str, ...], shape: Shape, device: Device) -> JudgedGraph:
    """The graph of `ops` of a workload. Raises InputError for what is unknown or not connected."""
    known = workload(name)
    graph = known.subgraph(ops)
    return JudgedGraph(known, graph, tuple(JudgedCall(call.name, call, shape, device) for call in graph.calls.values()))
