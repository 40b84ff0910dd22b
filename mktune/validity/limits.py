"""What the ops of a graph say about configs, at one shape and on one device: does it exist, does it fit, what it does.

Answers are kept: a search asks about the same configs again and again, in ever new combinations and placements.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from mktune.access import KernelFacts
from mktune.device import Device
from mktune.graph.fused import Fusions
from mktune.graph.kernel_edges import kernel_edges
from mktune.graph.opgraph import Call, OpGraph
from mktune.graph.workload import Workload, workload
from mktune.ops.base import Violation
from mktune.plan import Config, EdgeName, KernelPlan, OpPlan, Plan
from mktune.shape import Shape

_MAX_KEPT = 1 << 15

LaunchKey = tuple[str | bool, ...]
"""For each kernel of a call what its op may judge: gdc, trigger, any L2 prefetch. Placement is none of its business."""


@dataclass(frozen=True, eq=False, slots=True)
class Answer:
    """What is wrong with a configured call, or, if nothing is, what its kernels do."""

    violations: tuple[Violation, ...]
    facts: tuple[KernelFacts, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Configured:
    """A call under one config: its kernels' names, and an answer for each way of launching them that was asked for.

    The answers are those of all configs of its kind; only how much may be asked into L2 is its own. A config that is
    wrong by itself has no kernels, and one answer.
    """

    names: tuple[str, ...]
    l2_limit: int
    answers: dict[LaunchKey, Answer]


@dataclass(frozen=True, eq=False, slots=True)
class JudgedCall:
    """One call of the graph with the configs, and kinds of configs, that were asked about."""

    name: str
    call: Call
    shape: Shape
    device: Device
    configs: dict[tuple[str, Config], Configured] = field(default_factory=dict)
    kinds: dict[Hashable, dict[LaunchKey, Answer]] = field(default_factory=dict)

    def judge(
        self, op: OpPlan, kernels: Mapping[str, KernelPlan], parts: Collection[str] = ()
    ) -> tuple[tuple[str, ...], Answer]:
        """The kernels' names under config `op`, and the answer for how `kernels` launches them.

        Those that are `parts` of a fused kernel ask as much into L2 as the config leaves, and no more.
        Raises KeyError where they are not all in `kernels`, TypeError or ValueError where the config cannot be read.
        """
        key = op.impl, op.config  # hashed and compared without a call into Python, unlike `op`
        configured = self.configs.get(key)
        if configured is None:
            if len(self.configs) >= _MAX_KEPT:
                self.configs.clear()
                self.kinds.clear()
            configured = self.configs[key] = self._configure(op)
        answers = configured.answers
        launch: LaunchKey = ()
        for name in configured.names:
            kernel = kernels[name]
            if kernel.l2_prefetch_bytes > configured.l2_limit:
                if name in parts:
                    limited = replace(kernel, l2_prefetch_bytes=configured.l2_limit)
                    return self.judge(op, {**kernels, name: limited}, parts)
                answers = {}  # its own: others of its kind may leave more
            launch += kernel.gdc, kernel.trigger, kernel.l2_prefetch_bytes > 0
        answer = answers.get(launch)
        if answer is None:
            answer = answers[launch] = self._ask(op, tuple([kernels[name] for name in configured.names]))
        return configured.names, answer

    def _configure(self, op: OpPlan) -> Configured:
        if said := self.call.op.config_violations(op, self.shape, self.device):
            return Configured((), 0, {(): self._refuse(said)})
        answers = self.kinds.setdefault(self.call.op.kind(op), {})
        return Configured(self.call.kernel_names(op), self.call.op.l2_limit(op), answers)

    def _ask(self, op: OpPlan, kernels: tuple[KernelPlan, ...]) -> Answer:
        if said := self.call.op.launch_violations(op, kernels):
            return self._refuse(said)
        return Answer((), self.call.facts(op, kernels))

    def _refuse(self, said: list[Violation]) -> Answer:
        return Answer(tuple([Violation(v.rule, self.name, v.message) for v in said]), ())


@dataclass(frozen=True, eq=False, slots=True)
class JudgedGraph:
    """The calls of one graph, the fused kernels that it may have, and the data edges of its kernels."""

    known: Workload
    graph: OpGraph
    calls: tuple[JudgedCall, ...]
    fusions: Fusions
    edges: dict[tuple[str, ...], frozenset[EdgeName]] = field(default_factory=dict)
    fused: dict[Hashable, tuple[object, tuple[Violation, ...]]] = field(default_factory=dict)

    def needed_edges(self, plan: Plan, names: tuple[str, ...], fused: tuple[str, ...] = ()) -> frozenset[EdgeName]:
        """Data edges between the kernels `names`, `fused` among them; the names alone decide them."""
        found = self.edges.get(names)
        if found is None:
            found = self.edges[names] = frozenset(kernel_edges(self.graph, plan.op, fused))
        return found


@lru_cache(maxsize=64)
def judged_graph(name: str, ops: tuple[str, ...], shape: Shape, device: Device, scale_format: str) -> JudgedGraph:
    """The graph of `ops` of a workload, under its own scale format where it does not have that one.

    Raises InputError for what is unknown or not connected.
    """
    known = workload(name)
    if scale_format in known.scale_formats:
        known = known.under(scale_format)
    graph = known.subgraph(ops)
    calls = tuple(JudgedCall(call.name, call, shape, device) for call in graph.calls.values())
    return JudgedGraph(known, graph, calls, known.fused_kernels(ops, device.arch))
