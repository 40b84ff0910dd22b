"""Random valid plans of the whole prefix, all with default configs: streams, order, edges, triggers, priorities."""

from dataclasses import replace
from random import Random

from mktune.graph.builtin import make_plan
from mktune.graph.workload import workload
from mktune.lowering.graph import lower, lowered_id
from mktune.plan import Plan
from mktune.shape import Shape
from mktune.validity import check
from tests.oracle.plans import random_order

WORKLOAD = workload("glm52_attention_prefix")
KINDS = ("programmatic", "programmatic", "full", "launch_order")


def random_structures(device, shape: Shape, count: int, seed: int = 0) -> list[Plan]:
    """`count` different plans that the closure rule accepts; several streams and early starts in each."""
    draw, found = Random(seed), {}
    base = make_plan(WORKLOAD, None, shape, device.arch, "branches+pdl")
    while len(found) < count:
        plan = _shuffled(draw, base)
        if check(plan, device) == []:
            graph = lower(plan, WORKLOAD.graph, shape)
            if sum(edge.kind != "full" for edge in graph.edges) > 3:
                found[lowered_id(plan, graph)] = plan
    return list(found.values())


def _shuffled(draw: Random, base: Plan) -> Plan:
    streams = draw.choice((2, 3, 4))
    kernels = tuple(
        (
            name,
            replace(
                kernel,
                stream=draw.randrange(streams),
                priority=draw.choice((0, 0, 0, 1, 3)),
                trigger=draw.choice(("exit", kernel.trigger)),
                chain=draw.choice(("full", "programmatic")),
            ),
        )
        for name, kernel in base.kernels
    )
    order = random_order(draw, list(base.order), list(base.edge))
    edges = tuple((edge, draw.choice(KINDS)) for edge, _ in base.edges)
    return replace(base, kernels=kernels, order=order, edges=edges).canonical()
