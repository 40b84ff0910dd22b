"""What a plan must survive before it may be stored: races are provoked, not waited for.

The plan's own kernels run a few hundred times over poison, with node priorities shuffled. Then each producer that lets
a consumer start early is built with a delay between its trigger and its results: a consumer that does not really wait
reads poison. Every replay is held against the all-full-edges plan of the same kernels, bit by bit, and against the
references where bits differ. These runs find races; they do not replace the closure rule.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mktune.executors.cuda_graph import Kernels
from mktune.launch import KernelSpec
from mktune.lowering.kernel_graph import KernelGraph, all_full, with_priorities
from mktune.measure.correctness import Checked, fail_on, unequal_bits
from mktune.measure.memory import Copies
from mktune.measure.repeatability import Repeatability, repeatability
from mktune.ops.launch import with_defines
from mktune.plan import Plan

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]

DELAY = "MKTUNE_DELAY_NS"
DELAY_NS = 20_000
_PRIORITIES = (0, 1, 2, 3, 4, 5)

Build = Callable[[Sequence[KernelSpec]], Kernels]
"""Kernels for specs; raises CandidateError where one does not compile."""


@dataclass(frozen=True)
class Effort:
    """Replays of the plan itself, of each delayed producer, and how often priorities are shuffled among them."""

    plain: int = 300
    delayed: int = 60
    shuffles: int = 4


STANDARD = Effort()


@dataclass(frozen=True)
class Variant:
    """One graph to provoke a race with."""

    name: str
    graph: KernelGraph
    replays: int


@dataclass(frozen=True)
class Validated:
    """How a plan was validated, in one line, and what that showed of its bits."""

    how: str
    repeats: Repeatability


def producers(graph: KernelGraph) -> tuple[str, ...]:
    """Kernels that some consumer may start beside, in issue order."""
    early = {edge.source for edge in graph.edges if edge.kind != "full"}
    return tuple(kernel.name for kernel in graph.kernels if kernel.name in early)


def delayed(graph: KernelGraph, kernel: str, delay_ns: int = DELAY_NS) -> KernelGraph:
    """The same graph with `kernel` built to sleep between its trigger and its first result."""
    launches = dict(graph.launches)
    launches[kernel] = with_defines(launches[kernel], {DELAY: str(delay_ns)})
    return replace(graph, launches=tuple(launches.items()))


def variants(graph: KernelGraph, effort: Effort, seed: int = 0) -> Iterator[Variant]:
    """The plan and every delayed producer, each under shuffled priorities. The first has the plan's own priorities."""
    draw = random.Random(seed)
    cases = [("the plan", graph, effort.plain)]
    cases += [(f"{name} delayed", delayed(graph, name), effort.delayed) for name in producers(graph)]
    for name, case, replays in cases:
        share = max(1, replays // effort.shuffles)
        for shuffle in range(effort.shuffles):
            chosen = {kernel.name: draw.choice(_PRIORITIES) for kernel in case.kernels}
            mixed = case if shuffle == 0 else with_priorities(case, chosen)
            yield Variant(f"{name}, priorities {'shuffled' if shuffle else 'as planned'}", mixed, share)


def validate(
    plan: Plan, lowered: KernelGraph, copies: Copies, build: Build, effort: Effort = STANDARD, seed: int = 0
) -> Validated:
    """How the plan was validated. Raises CandidateError (wrong_result) with what failed and where."""
    kernels = build([launch.kernel for _, launch in lowered.launches])
    expected = _serial_results(plan, lowered, kernels, copies)
    replays = unstable = 0
    for variant in variants(lowered, effort, seed):
        built = build([launch.kernel for _, launch in variant.graph.launches])
        unstable += _provoke(plan, variant, built, copies, expected)
        replays += variant.replays
    names = producers(lowered)
    delays = f"{', '.join(names)} delayed by {DELAY_NS // 1000} us in turn" if names else "no early start to provoke"
    equal = "bit-equal to full edges" if not unstable else f"{unstable} replays differ in bits within tolerance"
    how = f"{replays} poisoned replays, shuffled priorities, {delays}, {equal}"
    return Validated(how, repeatability(plan, lowered, kernels, copies, replays, unstable))


def _serial_results(plan: Plan, lowered: KernelGraph, kernels: Kernels, copies: Copies) -> list[Tensors]:
    """What the same kernels give with full edges only, checked against the references."""
    checked = Checked(plan, all_full(lowered), kernels, copies)
    try:
        checked.replay()
        fail_on(checked.differences(), "with full edges:")
        return checked.results()
    finally:
        checked.close()


def _provoke(plan: Plan, variant: Variant, kernels: Kernels, copies: Copies, expected: list[Tensors]) -> int:
    """Replay one variant; how many replays were right but not bit-equal."""
    checked = Checked(plan, variant.graph, kernels, copies)
    unequal = 0
    try:
        for replay in range(variant.replays):
            checked.replay()
            if unequal_bits(copies.made, expected):
                unequal += 1
                fail_on(checked.differences(), f"{variant.name}, replay {replay}:")
        fail_on(checked.counters_left(), f"{variant.name}:")
    finally:
        checked.close()
    return unequal
