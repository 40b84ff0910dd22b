"""Is what a plan computes right? Each op of each layer against its reference on the inputs that it really had.

The build that is judged has its own results per layer and poison before each (see `memory`). Comparing op by op keeps
the tolerances tight: end to end, FP8 amplifies differences that are right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from mktune.errors import CandidateError
from mktune.executors.captured import EXECUTABLES
from mktune.executors.cuda_graph import Kernels
from mktune.executors.driver_calls import synchronize
from mktune.executors.streams import Streams
from mktune.executors.torch_memory import counters
from mktune.lowering.kernel_graph import KernelGraph
from mktune.measure.digests import digests
from mktune.measure.memory import Copies
from mktune.plan import Plan
from mktune.trial import Status

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]

    Bits = tuple[tuple[str, int], ...]

REPLAYS = 3
_SHOWN = 3


class Run(Protocol):
    """What is judged: all layers, run once by each `replay`."""

    def replay(self, stream: int) -> None: ...

    def close(self) -> None: ...


Make = Callable[..., Run]
"""(lowered graph, kernels, buffers, poison) → what runs them."""


def ways(plan: Plan) -> tuple[Make, ...]:
    """How the executor of `plan` may run it: the first is the one that is timed."""
    timed = EXECUTABLES[plan.executor]
    return (timed, Streams) if plan.executor == "streams" else (timed,)


class KnownResults:
    """What ops were found to compute rightly: the same bits from the same bits need no second comparison.

    Most plans of a search share an op's bits with one before: edges, waits and streams must not change any. Valid for
    one set of arguments, weights and caches.
    """

    def __init__(self) -> None:
        self._known: set[tuple[int, str, Bits]] = set()

    def hold(self, layer: int, call: str, seen: Bits) -> bool:
        """Whether `seen` (of what the call read of other ops and of what it wrote, by port) was found right before."""
        return (layer, call, seen) in self._known

    def keep(self, layer: int, call: str, seen: Bits) -> None:
        """`seen` is right."""
        self._known.add((layer, call, seen))


class Checked:
    """The verification build of one plan. Close it before its `copies` are used for another.

    make says what runs it; the plan's executor where it is left out.
    """

    def __init__(
        self, plan: Plan, lowered: KernelGraph, kernels: Kernels, copies: Copies, make: Make | None = None
    ) -> None:
        self._plan, self._copies = plan, copies
        copies.restore()
        buffers, poison, self._spaces = copies.buffers(plan)
        self._run = (make or ways(plan)[0])(lowered, kernels, buffers, poison)

    def replay(self) -> None:
        """Run all layers once and wait. Faults surface here."""
        import torch

        self._run.replay(torch.cuda.current_stream().cuda_stream)
        synchronize()

    def differences(self, known: KnownResults | None = None) -> list[str]:
        """What is wrong after a replay, one line each, naming layer, op and tensor; empty where all is right."""
        return self.counters_left() + compare_layers(self._copies, known)

    def counters_left(self) -> list[str]:
        """Counters that a replay left above zero: the next one would go wrong."""
        graph, shape = self._copies.memory.graph, self._copies.memory.shape
        names = counters(self._plan, graph, shape)
        return [f"counter {name} is not zero after a replay" for name in names if self._spaces[name].any().item()]

    def results(self) -> list[Tensors]:
        """A copy of everything that the layers wrote."""
        return [{name: tensor.clone() for name, tensor in made.items()} for made in self._copies.made]

    def close(self) -> None:
        self._run.close()


def compare_layers(
    copies: Copies, known: KnownResults | None = None, made: list[dict[str, int]] | None = None
) -> list[str]:
    """Every op of every layer against its reference, unless it is `known`; one line for each tensor that differs.

    A layer is judged up to its first wrong op: what follows worked on broken inputs. made: the digests of what the
    layers wrote, where they were taken already.
    """
    found: list[str] = []
    bits = (made or digests(copies.made)) if known is not None else []
    for layer in range(len(copies.made)):
        for name, call in copies.memory.graph.calls.items():
            seen = tuple((port, bits[layer][tensor]) for port, tensor in copies.seen(name)) if bits else ()
            if known is not None and known.hold(layer, name, seen):
                continue
            wrong = call.op.compare(copies.inputs(layer, name), copies.outputs(layer, name), copies.memory.shape)
            if wrong:
                found += [f"layer {layer}: {name}: {line}" for line in wrong]
                break
            if known is not None:
                known.keep(layer, name, seen)
    return found


def unequal_bits(ours: list[Tensors], theirs: list[Tensors]) -> list[str]:
    """Names of results that are not bit-equal, as "layer 0: h_q"; empty where all are."""
    pairs = enumerate(zip(ours, theirs, strict=True))
    return [f"layer {layer}: {name}" for layer, (mine, other) in pairs for name in _unequal(mine, other)]


def _unequal(ours: Tensors, theirs: Tensors) -> list[str]:
    import torch

    return [name for name in ours if not torch.equal(ours[name].view(torch.uint8), theirs[name].view(torch.uint8))]


def verify(
    plan: Plan,
    lowered: KernelGraph,
    kernels: Kernels,
    copies: Copies,
    replays: int = REPLAYS,
    known: KnownResults | None = None,
) -> None:
    """Raises CandidateError (wrong_result) with the first differences, or with the fault that running it caused.

    After the first replay every op is compared, unless its bits are `known`; later replays must give the same bits,
    else they are compared too. A plan for streams is judged live as well as captured.
    """
    for make in ways(plan):
        _verify(Checked(plan, lowered, kernels, copies, make), copies, replays, known)


def _verify(checked: Checked, copies: Copies, replays: int, known: KnownResults | None) -> None:
    try:
        checked.replay()
        first = digests(copies.made)
        fail_on(checked.counters_left() + compare_layers(copies, known, first))
        for replay in range(1, replays):
            checked.replay()
            if digests(copies.made) != first:
                fail_on(checked.differences(), f"in replay {replay}:")
        fail_on(checked.counters_left(), "at the end:")
    finally:
        checked.close()


def fail_on(differences: list[str], where: str = "") -> None:
    """Raises CandidateError (wrong_result) where there are any."""
    if differences:
        more = f"; {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        raise CandidateError(
            Status.WRONG_RESULT, " ".join(filter(None, (where, "; ".join(differences[:_SHOWN]) + more)))
        )
