"""What the ops of a graph say about configs, at one shape and on one device: does it exist, does it fit, what it does.

Answers are kept: a search asks about the same configs again and again, in ever new combinations and placements.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from mktune.access import KernelFacts
from mktune.device import Device
from mktune.graph.fused import Fusions, fuse_edges
from mktune.graph.kernel_edges import kernel_edges
from mktune.graph.opgraph import Call, OpGraph
from mktune.graph.workload import Workload, workload
from mktune.ops.base import Violation
from mktune.ops.sharing import placed_part
from mktune.plan import Config, EdgeName, KernelPlan, OpPlan, Plan
from mktune.shape import Shape

_MAX_KEPT = 1 << 15

LaunchKey = tuple[str | bool, ...]
"""For each kernel of a call what its op may judge: gdc, trigger, any L2 prefetch. Placement is none of its business."""

FusedAnswer = tuple[tuple[KernelFacts, ...], tuple[Violation, ...]]
"""What is wrong with kernels that are one launch, and the facts that it was asked of."""


@dataclass(frozen=True, eq=False, slots=True)
class Answer:
    """What is wrong with a configured call, or, if nothing is, what its kernels do."""

    violations: tuple[Violation, ...]
    facts: tuple[KernelFacts, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Kind:
    """Configs of a call that are judged alike: their kernels' names, and an answer for each way of launching them that
    was asked for. A config that is wrong by itself has no kernels, and one answer of its own.
    """

    names: tuple[str, ...]
    answers: dict[LaunchKey, Answer]


@dataclass(frozen=True, eq=False, slots=True)
class JudgedCall:
    """One call of the graph with the configs, and kinds of configs, that were asked about."""

    name: str
    call: Call
    shape: Shape
    device: Device
    configs: dict[tuple[str, Config], Kind] = field(default_factory=dict)
    kinds: dict[Hashable, Kind] = field(default_factory=dict)

    def judge(
        self, op: OpPlan, kernels: Mapping[str, KernelPlan], launched: Mapping[str, str]
    ) -> tuple[tuple[str, ...], Answer]:
        """The kernels' names under config `op`, and the answer for how `kernels` launches them.

        `launched` names, for parts of fused kernels, the kernel that they are placed as: a part asks as much into L2 as
        the config leaves, and no more. Raises KeyError where a kernel is not placed, TypeError or ValueError where the
        config cannot be read.
        """
        # A pair is hashed and compared without a call into Python, unlike `op`.
        kind = self.configs.get((op.impl, op.config)) or self._configure(op)
        answers = kind.answers
        launch: LaunchKey = ()
        for name in kind.names:
            kernel = kernels[launched.get(name, name)]
            asked = kernel.l2_prefetch_bytes
            if asked > 0 and asked > (limit := self.call.op.l2_limit(op)):
                if name in launched:
                    asked = limit
                else:
                    answers = {}  # its own: others of its kind may leave more
            launch += kernel.gdc, kernel.trigger, asked > 0
        answer = answers.get(launch)
        if answer is None:
            answer = answers[launch] = self._ask(op, kind.names, kernels, launched)
        return kind.names, answer

    def _configure(self, op: OpPlan) -> Kind:
        if len(self.configs) >= _MAX_KEPT:
            self.configs.clear()
            self.kinds.clear()
        if said := self.call.op.config_violations(op, self.shape, self.device):
            kind = Kind((), {(): self._refuse(said)})
        elif (known := self.kinds.get(which := self.call.op.kind(op))) is not None:
            kind = known
        else:
            kind = self.kinds[which] = Kind(self.call.kernel_names(op), {})
        self.configs[op.impl, op.config] = kind
        return kind

    def _ask(
        self, op: OpPlan, names: tuple[str, ...], kernels: Mapping[str, KernelPlan], launched: Mapping[str, str]
    ) -> Answer:
        placed = tuple(
            [
                placed_part(self.call.op, op, kernels[launched[name]]) if name in launched else kernels[name]
                for name in names
            ]
        )
        if said := self.call.op.launch_violations(op, placed):
            return self._refuse(said)
        return Answer((), self.call.facts(op, placed))

    def _refuse(self, said: list[Violation]) -> Answer:
        return Answer(tuple([Violation(v.rule, self.name, v.message) for v in said]), ())


@dataclass(frozen=True, eq=False, slots=True)
class JudgedGraph:
    """The calls of one graph, the fused kernels that it may have, and the data edges of its kernels."""

    known: Workload
    graph: OpGraph
    calls: tuple[JudgedCall, ...]
    fusions: Fusions
    edges: dict[tuple[tuple[str, ...], tuple[str, ...]], frozenset[EdgeName]] = field(default_factory=dict)
    fused: dict[Hashable, FusedAnswer] = field(default_factory=dict)

    def needed_edges(self, plan: Plan, names: tuple[str, ...], fused: tuple[str, ...] = ()) -> frozenset[EdgeName]:
        """Data edges between kernels `names`, of which some are launched as `fused`; the names alone decide them."""
        found = self.edges.get((names, fused))
        if found is None:
            edges = fuse_edges(self.needed_edges(plan, names), fused) if fused else kernel_edges(self.graph, plan.op)
            found = self.edges[names, fused] = frozenset(edges)
        return found

    def keep_fused(self, key: Hashable, facts: tuple[KernelFacts, ...], found: tuple[Violation, ...]) -> FusedAnswer:
        """Keeps what was found out about kernels that are one launch, beside the facts whose ids are in its key."""
        if len(self.fused) >= _MAX_KEPT:
            self.fused.clear()
        answer = self.fused[key] = (facts, found)
        return answer


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
