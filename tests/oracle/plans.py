"""Plans of the first workload: random ones that nothing but the closure rule may refuse, and changes to given ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from mktune.device import Device
from mktune.graph.fused import kernel_ops, launched_as, parts_of
from mktune.graph.kernel_edges import kernel_edges, topological_order
from mktune.graph.opgraph import Call
from mktune.graph.workload import workload
from mktune.lowering.graph import lower
from mktune.lowering.kernel_graph import KernelGraph
from mktune.ops.sharing import apart
from mktune.plan import EDGE_KINDS, KernelPlan, OpPlan, Plan
from mktune.shape import Shape

WORKLOAD = workload("glm52_attention_prefix")
SHAPE = Shape(2, 8, 8192)
H200 = Device("NVIDIA H200", "sm_90a", 132, 232448, 60 << 20, 4.8e12)

SUBGRAPHS: tuple[tuple[str, ...], ...] = (
    ("A0", "B0"),
    ("A0", "B1"),
    ("A0", "B0", "C0"),
    ("A0", "B0", "D0"),
    ("B1", "E1"),
    ("C0", "D1", "E1"),
    ("A0", "B0", "C0", "D1"),
    ("D0", "D2"),
    WORKLOAD.ops,
)


def lowered(plan: Plan) -> KernelGraph:
    return lower(plan, WORKLOAD.subgraph(plan.op_names), SHAPE)


def place(plan: Plan, **kernels: dict[str, object]) -> Plan:
    """The plan with fields of some kernels changed, streams left as they are given."""
    changed = {name: replace(plan.kernel[name], **fields) for name, fields in kernels.items()}
    return replace(plan, kernels=tuple({**plan.kernel, **changed}.items()))


def with_edges(plan: Plan, **kinds: str) -> Plan:
    """The plan with the kinds of some edges changed: B0f_D0="full"."""
    changed = {(source, target): kind for name, kind in kinds.items() for source, target in [name.split("_")]}
    return replace(plan, edges=tuple({**plan.edge, **changed}.items()))


def random_plan(random: Random, ops: Sequence[str], together: Sequence[str] = ()) -> Plan:
    """A plan that nothing but the closure rule may refuse. Its configs allow the fused kernels `together`."""
    graph = WORKLOAD.subgraph(ops)
    placed = {name: _random_call(random, call) for name, call in graph.calls.items()}
    for parts in (FUSIONS[name] for name in together):
        while apart([{"impl": op.impl, **dict(op.config)} for op, _ in (placed[part] for part in parts)]):
            placed.update((part, _random_call(random, graph.calls[part])) for part in parts)
    configs = {name: op for name, (op, _) in placed.items()}
    kernels = {name: kernel for _, kernels in placed.values() for name, kernel in kernels.items()}
    edges = kernel_edges(graph, configs)
    return Plan(
        workload=WORKLOAD.name,
        contract=WORKLOAD.contract,
        scale_format=WORKLOAD.scale_format,
        shape=SHAPE,
        m_range=(SHAPE.m, SHAPE.m),
        kv_range=(SHAPE.kv, SHAPE.kv),
        ops=tuple(configs.items()),
        kernels=tuple(kernels.items()),
        order=random_order(random, list(kernels), edges),
        edges=tuple((edge, random.choice(EDGE_KINDS)) for edge in edges),
    ).canonical()


FUSIONS = WORKLOAD.fused_kernels(None, H200.arch)
FUSIBLE: tuple[tuple[str, ...], ...] = (
    ("A0", "C0", "B1"),
    ("A0", "C0", "B1", "E1", "D1"),
    ("B0", "D0", "D1"),
    ("B0", "D0", "D1", "D2"),
    WORKLOAD.ops,
)
"""Parts of the workload with two ops that can be one launch."""


def fused(plan: Plan, *names: str) -> Plan:
    """The plan with kernels `names` in the place of their parts, placed as the first of these. Whether its configs go
    together is not looked at."""
    graph = WORKLOAD.subgraph(plan.op_names)
    edges = kernel_edges(graph, plan.op, names)
    kinds = {(_as(names, source), _as(names, target)): kind for (source, target), kind in plan.edges}
    kernels = {name: plan.kernel[parts_of(name)[0]] for name in kernel_ops(graph, plan.op, names)}
    place = {_as(names, name): at for at, name in reversed(list(enumerate(plan.order)))}
    return replace(
        plan,
        kernels=tuple(kernels.items()),
        order=topological_order(tuple(kernels), edges, place.__getitem__),
        edges=tuple((edge, kinds[edge]) for edge in edges),
    ).canonical()


def _as(names: Sequence[str], kernel: str) -> str:
    return launched_as(names).get(kernel, kernel)


def random_fused_plan(random: Random, ops: Sequence[str]) -> Plan:
    """A plan of which some kernels are one launch, and that nothing but the closure rule may refuse."""
    there_are = [name for name, of in FUSIONS.items() if set(of) <= set(ops)]
    names = random.sample(there_are, random.randint(1, len(there_are)))
    return fused(random_plan(random, ops, names), *names)


def random_order(random: Random, names: list[str], edges: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """A topological order."""
    order: list[str] = []
    while len(order) < len(names):
        held = {target for source, target in edges if source not in order}
        order.append(random.choice([name for name in names if name not in order and name not in held]))
    return tuple(order)


def _random_call(random: Random, call: Call) -> tuple[OpPlan, dict[str, KernelPlan]]:
    while True:
        impl, fields = random.choice(list(call.op.choices(H200.arch).items()))
        left_out = call.op.implied.keys() if random.random() < 0.5 else ()
        op = OpPlan.of(impl, {name: random.choice(fields[name]) for name in fields if name not in left_out})
        kernels = tuple(
            KernelPlan(
                stream=random.randrange(4),
                priority=random.choice((0, 0, 1)),
                gdc=random.choice(call.op.gdc_values(op, suffix)),
                trigger=random.choice(call.op.trigger_values(op, suffix)),
                chain=random.choice(("full", "programmatic")),
            )
            for suffix in call.op.kernels(op)
        )
        if not call.op.violations(op, kernels, SHAPE, H200):
            return op, dict(zip(call.kernel_names(op), kernels, strict=True))
