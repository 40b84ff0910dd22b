"""Is what a plan computes right? Each op of each layer against its reference on the inputs that it really had.

The build that is judged has its own results per layer and poison before each (see `memory`). Comparing op by op keeps
the tolerances tight: end to end, FP8 amplifies differences that are right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mktune.errors import CandidateError
from mktune.executors.cuda_graph import CudaGraph, Kernels
from mktune.executors.driver_calls import synchronize
from mktune.executors.torch_memory import counters
from mktune.lowering.kernel_graph import KernelGraph
from mktune.measure.memory import Copies
from mktune.plan import OpPlan, Plan
from mktune.trial import Status

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]

Configs = tuple[tuple[str, OpPlan], ...]

REPLAYS = 3
_SHOWN = 3


class Checked:
    """The verification build of one plan. Close it before its `copies` are used for another."""

    def __init__(self, plan: Plan, lowered: KernelGraph, kernels: Kernels, copies: Copies) -> None:
        self._plan, self._copies = plan, copies
        copies.restore()
        buffers, poison, self._spaces = copies.buffers(plan)
        self._graph = CudaGraph(lowered, kernels, buffers, poison)

    def replay(self) -> None:
        """Run all layers once and wait. Faults surface here."""
        import torch

        self._graph.replay(torch.cuda.current_stream().cuda_stream)
        synchronize()

    def differences(self) -> list[str]:
        """What is wrong after a replay, one line each, naming layer, op and tensor; empty where all is right."""
        return self.counters_left() + compare_layers(self._copies)

    def counters_left(self) -> list[str]:
        """Counters that a replay left above zero: the next one would go wrong."""
        graph, shape = self._copies.memory.graph, self._copies.memory.shape
        names = counters(self._plan, graph, shape)
        return [f"counter {name} is not zero after a replay" for name in names if self._spaces[name].any().item()]

    def results(self) -> list[Tensors]:
        """A copy of everything that the layers wrote."""
        return [{name: tensor.clone() for name, tensor in made.items()} for made in self._copies.made]

    def close(self) -> None:
        self._graph.close()


def compare_layers(copies: Copies) -> list[str]:
    """Every op of every layer against its reference; one line for each tensor that differs.

    A layer is judged up to its first wrong op: what follows worked on broken inputs.
    """
    found = []
    for layer in range(len(copies.made)):
        for name, call in copies.memory.graph.calls.items():
            wrong = call.op.compare(copies.inputs(layer, name), copies.outputs(layer, name), copies.memory.shape)
            found += [f"layer {layer}: {name}: {line}" for line in wrong]
            if wrong:
                break
    return found


def unequal_bits(ours: list[Tensors], theirs: list[Tensors]) -> list[str]:
    """Names of results that are not bit-equal, as "layer 0: h_q"; empty where all are."""
    import torch

    return [
        f"layer {layer}: {name}"
        for layer, (mine, other) in enumerate(zip(ours, theirs, strict=True))
        for name in mine
        if not torch.equal(mine[name].view(torch.uint8), other[name].view(torch.uint8))
    ]


class KnownResults:
    """Results that were compared with the references, by op configs: the same bits again need no comparison.

    What a plan computes depends on its configs; its edges, waits and streams must not change a bit of it. Holds at
    most `limit` bytes, the oldest are dropped. Valid for one set of inputs.
    """

    def __init__(self, limit: int = 8 << 30) -> None:
        self._limit = limit
        self._known: dict[Configs, list[Tensors]] = {}

    def hold(self, plan: Plan, made: list[Tensors]) -> bool:
        """Whether `made` is, bit by bit, what was found right for these configs."""
        known = self._known.get(plan.ops)
        return known is not None and not unequal_bits(made, known)

    def keep(self, plan: Plan, results: list[Tensors]) -> None:
        """`results` are right for the configs of `plan`."""
        self._known[plan.ops] = results
        while len(self._known) > 1 and sum(map(_bytes, self._known.values())) > self._limit:
            del self._known[next(iter(self._known))]


def _bytes(results: list[Tensors]) -> int:
    return sum(tensor.numel() * tensor.element_size() for made in results for tensor in made.values())


def verify(
    plan: Plan,
    lowered: KernelGraph,
    kernels: Kernels,
    copies: Copies,
    replays: int = REPLAYS,
    known: KnownResults | None = None,
) -> None:
    """Raises CandidateError (wrong_result) with the first differences, or with the fault that running it caused.

    After the first replay every op is compared, unless the bits are `known`; later replays must give the same bits,
    else they are compared too.
    """
    checked = Checked(plan, lowered, kernels, copies)
    try:
        checked.replay()
        if known is None or not known.hold(plan, copies.made):
            fail_on(checked.differences())
        first = checked.results()
        for replay in range(1, replays):
            checked.replay()
            if unequal_bits(copies.made, first):
                fail_on(checked.differences(), f"in replay {replay}:")
        fail_on(checked.counters_left(), "at the end:")
        if known is not None:
            known.keep(plan, first)
    finally:
        checked.close()


def fail_on(differences: list[str], where: str = "") -> None:
    """Raises CandidateError (wrong_result) where there are any."""
    if differences:
        more = f"; {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        raise CandidateError(
            Status.WRONG_RESULT, " ".join(filter(None, (where, "; ".join(differences[:_SHOWN]) + more)))
        )
