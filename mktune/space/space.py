"""A search space: every plan of some ops at a shape on a device, as choices that a sampler can make.

    space = SearchSpace.load(workload("glm52_attention_prefix"), ("A0", "B0"), shape, device)
    choices, plan = space.walk(lambda question: random.choice(list(question.options)))

`Choices` are what a sampler knows of a plan: name of a dimension → label of the option, for those that were asked.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from mktune.device import Device
from mktune.errors import PlanError, SpaceError
from mktune.graph.fused import kernel_ops, parts_of
from mktune.graph.kernel_edges import kernel_edges
from mktune.graph.workload import Workload
from mktune.plan import EdgeName, KernelPlan, OpPlan, Plan
from mktune.shape import Shape
from mktune.space.dimensions import Dimension, OpFields, Order, Priority, Question, Streams, question_stem
from mktune.space.draft import Draft, op_plan
from mktune.space.edge_dimensions import Chain, EdgeKinds, LaunchFields
from mktune.space.file import SpaceFile, load
from mktune.space.fusion_dimension import NONE, Fusion
from mktune.space.groups import Condition, Group, Rule, Values
from mktune.space.source import Scalar

Choices = dict[str, str]
Pick = Callable[[Question], str]

_FEW = 2_000


@dataclass(frozen=True)
class Size:
    """How many combinations of choices a space has. Not exact: estimated from random walks (large spaces only)."""

    count: int
    exact: bool


class SearchSpace:
    """See the module. Nothing in it changes once it is made, but for caches."""

    def __init__(
        self,
        workload: Workload,
        ops: Sequence[str] | None,
        shape: Shape,
        device: Device,
        file: SpaceFile,
        configs_only: bool = False,
    ) -> None:
        workload.require_implementations(ops, device.arch)
        self.file, self._configs_only = file, configs_only
        self.workload = workload
        self.graph = workload.subgraph(ops)
        self.shape = shape
        self.device = device
        self._early: dict[tuple[str, OpPlan, Values], frozenset[str] | None] = {}
        self._facts: dict[str, Scalar] = {
            "arch": device.arch,
            "m": shape.m,
            "kv": shape.kv,
            "requests": shape.requests,
            "tokens_per_request": shape.tokens_per_request,
        }
        self._implied = {name: call.op.implied for name, call in self.graph.calls.items()}
        self._plain: dict[tuple[str, OpPlan], KernelPlan] = {}
        self._kernel_edges: dict[tuple[str, ...], tuple[EdgeName, ...]] = {}
        known = workload.fused_kernels(ops, device.arch)
        self._fusion = Fusion({name: of for name, of in known.items() if of in file.fusions})
        self._op_dimensions = tuple(self._of_ops(file))
        self._graph_dimensions = tuple(self._of_graph(file))
        self.default()

    @classmethod
    def load(
        cls, workload: Workload, ops: Sequence[str] | None, shape: Shape, device: Device, path: Path | None = None
    ) -> SearchSpace:
        """The space in `path` (default: the one that ships) for these ops (None: all).

        Raises SpaceError, InputError where an op has no implementation for the workload's scale format on the device.
        """
        return cls(workload, ops, shape, device, load(workload, path))

    def configs_of(self, op: str) -> SearchSpace:
        """The part of the space that is one op's config, launched plainly. Its choices are named as they are here."""
        return SearchSpace(self.workload, (op,), self.shape, self.device, self.file, configs_only=True)

    def is_config(self, question: str) -> bool:
        """Whether the question of that name asks for a part of an op's config."""
        return question_stem(question) in self._config_names

    @cached_property
    def _config_names(self) -> frozenset[str]:
        return frozenset(dimension.name for dimension in self._op_dimensions)

    @property
    def fusions(self) -> tuple[str, ...]:
        """What may be answered to the question "fusion" but that nothing is fused; empty where it is not asked."""
        question = self._fusion.question(Draft(self._facts))
        return tuple(label for label in question.options if label != NONE) if question else ()

    def walk(self, pick: Pick) -> tuple[Choices, Plan]:
        """Ask `pick` for every choice that there is, in order; the choices made and their plan (canonical)."""
        choices, draft = self._walk(lambda dimension, question, draft: pick(question))
        return choices, self._plan(draft)

    def to_plan(self, choices: Mapping[str, str]) -> Plan:
        """The plan of these choices. Raises SpaceError where one is missing or does not exist."""
        return self.walk(lambda question: _looked_up(question, choices))[1]

    def to_choices(self, plan: Plan) -> Choices | None:
        """The choices that make `plan`, or None where it lies outside the space (or is of other ops or shape).

        Fields that decide nothing in the plan, such as the trigger of a kernel that nobody follows, are not compared.
        """
        if set(plan.op_names) != set(self.graph.calls) or plan.shape != self.shape:
            return None
        try:
            choices, draft = self._walk(lambda dimension, question, draft: _read(dimension, question, draft, plan))
        except (_Outside, KeyError, PlanError):  # it lacks a kernel or a field that its configs would have today
            return None
        if self._configs_only and not _same_launches(plan.canonical(), self._plan(draft)):
            return None
        return choices if dict(plan.ops) == draft.op_plans() else None

    def default(self) -> Plan:
        """The first option of every choice. Raises SpaceError where some choice has no option at all."""
        return self.walk(lambda question: next(iter(question.options)))[1]

    def __iter__(self) -> Iterator[tuple[Choices, Plan]]:
        """Every combination of choices, in order: for small spaces."""
        for _, choices, plan in self.each():
            yield choices, plan

    def each(self) -> Iterator[tuple[tuple[int, ...], Choices, Plan]]:
        """As iterating over the space, with the place of the option taken at each question before."""
        path: list[tuple[int, int]] = []
        while True:
            depth = 0

            def pick(question: Question) -> str:
                nonlocal depth
                if depth == len(path):
                    path.append((0, len(question.options)))
                depth += 1
                return list(question.options)[path[depth - 1][0]]

            choices, plan = self.walk(pick)
            yield tuple(place for place, _ in path), choices, plan
            while path and path[-1][0] + 1 == path[-1][1]:
                path.pop()
            if not path:
                return
            path[-1] = (path[-1][0] + 1, path[-1][1])

    def size(self, walks: int = 64) -> Size:
        """How many combinations of choices there are; counted where few, else estimated without bias."""
        draw = random.Random(0)
        total = 0
        for _ in range(walks):
            product = 1

            def pick(question: Question) -> str:
                nonlocal product
                product *= len(question.options)
                return draw.choice(list(question.options))

            self.walk(pick)
            total += product
        if total // walks <= _FEW:
            return Size(sum(1 for _ in self), True)
        return Size(total // walks, False)

    def _walk(self, pick: Callable[[Dimension, Question, Draft], str]) -> tuple[Choices, Draft]:
        draft, choices = Draft(self._facts, self._implied), dict[str, str]()
        self._ask((self._fusion, *self._op_dimensions), pick, draft, choices)
        self._derive(draft)
        if self._configs_only:
            self._ask(self._graph_dimensions, _plainest, draft, {})
        else:
            self._ask(self._graph_dimensions, pick, draft, choices)
        return choices, draft

    def _ask(
        self,
        dimensions: Sequence[Dimension],
        pick: Callable[[Dimension, Question, Draft], str],
        draft: Draft,
        choices: Choices,
    ) -> None:
        for dimension in dimensions:
            question = self._offered(dimension, draft)
            if question is None:
                continue
            if not question.options:
                raise SpaceError(f"{question.name} has no option at M = {self.shape.m} on {self.device.arch}")
            label = next(iter(question.options))
            if len(question.options) > 1:
                label = choices[question.name] = pick(dimension, question, draft)
            dimension.apply(draft, question.options[label])

    def _offered(self, dimension: Dimension, draft: Draft) -> Question | None:
        """What is asked of this dimension here, if anything."""
        return dimension.question(draft)

    def _derive(self, draft: Draft) -> None:
        """Kernels and data edges: they follow from the configs, finalizers above all."""
        draft.settled = plans = draft.op_plans()
        fused = tuple(draft.fusions)
        draft.kernels = kernel_ops(self.graph, plans, fused)
        names = tuple(draft.kernels)
        if names not in self._kernel_edges:
            if unknown := [name for name in names if name not in self.file.kernels]:
                of = ", ".join(f"{name} of {'+'.join(draft.kernels[name])}" for name in unknown)
                why = "an op's first values of all fields, or its default config, make every kernel that it has"
                raise SpaceError(f"the space knows no kernel {of}: {why}")
            self._kernel_edges[names] = kernel_edges(self.graph, plans, fused)
        draft.edges = self._kernel_edges[names]

    def _of_ops(self, file: SpaceFile) -> Iterator[OpFields]:
        for op in self.graph.calls:
            groups = [self._existing(op, group) for group in file.ops[op]]
            for place, group in enumerate(groups):
                yield OpFields(op, group, partial(self._accepts, groups[place + 1 :]))

    def _of_graph(self, file: SpaceFile) -> Iterator[Dimension]:
        kernels = [kernel for kernel, ops in file.kernels.items() if len(ops) == 1 and ops[0] in self.graph.calls]
        kernels += self._fusion.fusions
        kept = [(name, tuple(kernel for kernel in branch if kernel in kernels)) for name, branch in file.branches]
        branches = tuple((name, branch) for name, branch in kept if branch)
        yield Order(file.rankings)
        yield Streams(branches, file.at_most_streams)
        yield Priority(branches, file.raised)
        for kernel in kernels:
            yield EdgeKinds(kernel, file.edges[kernel])
        for kernel in kernels:
            yield Chain(kernel, file.chains[kernel])
        for kernel in kernels:
            yield LaunchFields(kernel, file.waits[kernel], Draft.starts_early, self._fit)
            yield LaunchFields(kernel, file.triggers[kernel], Draft.lets_start_early, self._fit)

    def _existing(self, op: str, group: Group) -> Group:
        """The group without what the op does not have on this architecture, or cannot compile on this machine."""
        choices, implied = self._implementations(op), self._implied[op]
        rules, lacks = list(group.rules), []
        fields = dict(group.fields)
        if "impl" in fields:
            rules.append(Rule((), (Condition("impl", tuple(choices)),)))
        for impl, existing in choices.items():
            own = fields.keys() - {"impl"}
            if absent := own - existing.keys():
                lacks.append((impl, frozenset(absent)))
            left_out = implied if implied.keys() <= existing.keys() else {}  # an implementation that has them all
            for name in own & existing.keys():
                known = (*existing[name], *([left_out[name]] if name in left_out else []))
                if not set(fields[name]) <= set(known):
                    rules.append(Rule((Condition("impl", (impl,)),), (Condition(name, known),)))
        return Group(group.name, group.fields, tuple(rules), tuple(lacks))

    def _implementations(self, name: str) -> dict[str, dict[str, tuple[Scalar, ...]]]:
        """Those of an op that compute the scale format and can be compiled here, with their fields."""
        op = self.graph.calls[name].op
        return {impl: fields for impl, fields in op.implementations(self.device.arch).items() if not op.missing(impl)}

    @cached_property
    def left_out(self) -> tuple[str, ...]:
        """Implementations that the file has and this machine cannot compile: which, of which ops, and why."""
        ops: dict[tuple[str, str], list[str]] = {}
        for name, call in self.graph.calls.items():
            offered = {value for group in self.file.ops[name] for value in dict(group.fields).get("impl", ())}
            for impl in call.op.implementations(self.device.arch):
                if impl in offered and (why := call.op.missing(impl)):
                    ops.setdefault((impl, why), []).append(name)
        return tuple(f"without impl {impl} of {', '.join(names)}: {why}" for (impl, why), names in ops.items())

    def _accepts(self, later: Sequence[Group], name: str, fields: Mapping[str, Scalar]) -> bool:
        """The op finds nothing wrong with this config at the shape, on the device, once `later` are chosen well."""
        if later:
            options = later[0].options({**self._facts, **fields}).values()
            return any(self._accepts(later[1:], name, {**fields, **dict(option)}) for option in options)
        plan = op_plan(fields, self._implied[name])
        return not self.graph.calls[name].op.config_violations(plan, self.shape, self.device)

    def _fit(self, draft: Draft, kernel: str, values: Values) -> bool:
        """The ops, as configured, know these launch values for this kernel, and what it then reads early is there."""
        early: set[str] = set()
        for name, part, plan, asked in self._parts(draft, kernel, values):
            key = part, plan, asked
            if key not in self._early:
                self._early[key] = self._read_early(name, *key)
            found = self._early[key]
            if found is None:
                return False
            early |= found
        if not early:
            return True
        writers = {source for source in draft.sources(kernel) if early.intersection(draft.kernels[source])}
        return writers <= draft.complete_at_start(kernel)

    def _parts(self, draft: Draft, kernel: str, values: Values) -> Iterator[tuple[str, str, OpPlan, Values]]:
        """Op, kernel, config and launch values of each part: of a fused kernel's L2 prefetch each takes what it may.

        Where none may take all, every part is asked for it, and refuses.
        """
        plans = {name: draft.op_plan(name) for name in draft.kernels[kernel]}
        asked = int(dict(values).get("l2_prefetch_bytes", 0))
        shares = asked > 0 and len(plans) > 1
        limits = {name: self.graph.calls[name].op.l2_limit(plan) for name, plan in plans.items()} if shares else {}
        shares = shares and asked <= max(limits.values())
        for (name, plan), part in zip(plans.items(), parts_of(kernel), strict=True):
            taken = min(asked, limits[name]) if shares else asked
            yield name, part, plan, values if taken == asked else _with(values, l2_prefetch_bytes=taken)

    def _read_early(self, name: str, kernel: str, plan: OpPlan, values: Values) -> frozenset[str] | None:
        """Calls of whose results `kernel`, launched so, reads some before its wait; None: it cannot be launched so."""
        call = self.graph.calls[name]
        names = call.kernel_names(plan)
        plain = call.default_kernels(plan)
        launch = tuple(
            _kernel_plan(dict(values), other) if name == kernel else other
            for name, other in zip(names, plain, strict=True)
        )
        if call.op.launch_violations(plan, launch):
            return None
        accesses = call.facts(plan, launch)[names.index(kernel)].accesses
        early = {access.buffer for access in accesses if not access.after_wait}
        return frozenset(source for tensor, source in call.sources if tensor in early)

    def _plainest(self, draft: Draft, kernel: str) -> KernelPlan:
        """How the kernel is launched where nothing was asked."""
        name, part = draft.kernels[kernel][0], parts_of(kernel)[0]
        op = draft.op_plan(name)
        key = part, op
        if key not in self._plain:
            self._plain[key] = self.graph.calls[name].op.plainest(op, part.removeprefix(name))
        return self._plain[key]

    def _plan(self, draft: Draft) -> Plan:
        lowest = min(draft.priorities.values(), default=0)
        kernels = {
            kernel: replace(
                _kernel_plan(draft.launch.get(kernel, {}), self._plainest(draft, kernel)),
                stream=draft.streams[kernel],
                priority=draft.priorities.get(kernel, lowest) - lowest,
                chain=draft.chains.get(kernel, "full"),
            )
            for kernel in draft.kernels
        }
        return Plan(
            workload=self.workload.name,
            contract=self.workload.contract,
            scale_format=self.workload.scale_format,
            shape=self.shape,
            m_range=self.shape.served_m,
            kv_range=self.graph.served_kv(self.shape),
            ops=tuple(draft.op_plans().items()),
            kernels=tuple(kernels.items()),
            order=draft.order,
            edges=tuple(draft.kinds.items()),
        ).canonical()


def _with(values: Values, **changed: Scalar) -> Values:
    return tuple(sorted({**dict(values), **changed}.items()))


def _kernel_plan(fields: Mapping[str, Scalar], plainest: KernelPlan) -> KernelPlan:
    return KernelPlan(
        gdc=str(fields.get("gdc", plainest.gdc)),
        trigger=str(fields.get("trigger", plainest.trigger)),
        l2_prefetch_bytes=int(fields.get("l2_prefetch_bytes", 0)),
    )


def _plainest(dimension: Dimension, question: Question, draft: Draft) -> str:
    """The first option: a space lists what is plain first."""
    return next(iter(question.options))


def _same_launches(one: Plan, other: Plan) -> bool:
    return (one.kernels, one.edges, one.order) == (other.kernels, other.edges, other.order)


class _Outside(Exception):
    """A plan took an option that the space does not offer."""


def _looked_up(question: Question, choices: Mapping[str, str]) -> str:
    label = choices.get(question.name)
    if label is None or label not in question.options:
        what = "no choice" if label is None else f"no option {label!r}"
        raise SpaceError(f"{what} for {question.name}; options: {', '.join(question.options)}")
    return label


def _read(dimension: Dimension, question: Question, draft: Draft, plan: Plan) -> str:
    taken: Any = dimension.read(plan, draft)
    for label, option in question.options.items():
        if option == taken:
            return label
    raise _Outside
