"""A small decode loop in torch whose four layers run their attention prefix by plans: `mktune.runtime` in an engine.

    plans = StepPlans(PlanBook.open(), find_device(0))
    loop = DecodeLoop(layers, plans)              # weights and caches of each layer, by tensor name
    steps = {m: loop.captured(inputs[m], Shape(m, 1, kv)) for m in batch_sizes}
    steps[16].inputs["x"].copy_(embedded)         # its tensors stay where they are
    steps[16].run()
    steps[16].hidden, steps[16].results[3]["logits"]

At start-up the loop looks a plan up for each batch size, loads it over its own tensors, and captures the whole step
into one `torch.cuda.graph`, in which mktune's kernels and torch's stand side by side. What follows the prefix in a
model (TopK, sparse attention, experts) is one copy here. Needs a GPU but for `StepPlans`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mktune.device import Device
from mktune.executors.torch_memory import allocate
from mktune.graph.builtin import make_plan
from mktune.graph.workload import workload
from mktune.plan import Plan
from mktune.runtime import PlanBook, load
from mktune.shape import Shape

if TYPE_CHECKING:
    import torch

    from mktune.runtime import LoadedPlan

    Tensors = Mapping[str, torch.Tensor]

WORKLOAD = workload("glm52_attention_prefix")
RESULTS = ("mla_q", "logits")
_log = logging.getLogger(__name__)


class StepPlans:
    """The plan of each step: the book's, else the built-in serial one, which is right for every shape.

    The first miss is a warning with its reason, later ones are not: an engine that was never tuned says so once.
    """

    def __init__(self, book: PlanBook, gpu: Device) -> None:
        self._book, self._gpu = book, gpu
        self.missed: list[Shape] = []

    def find(self, shape: Shape) -> Plan:
        """The plan to run at `shape`. Touches no GPU."""
        found = self._book.lookup(WORKLOAD.name, shape, gpu=self._gpu, ops=WORKLOAD.ops)
        if found:
            return found.plan
        if not self.missed:
            _log.warning("running the serial plan for lack of a tuned one: %s", found.message)
        self.missed.append(shape)
        return make_plan(WORKLOAD, None, shape, self._gpu.arch, "serial")


@dataclass
class Step:
    """One batch size.

    inputs   static tensors: x and residual, from which a step starts, positions, slots, block table, lengths
    hidden   what the last layer leaves for the next step; `residuals` are used in turn, layer by layer
    results  mla_q and logits of each layer
    run      runs the step on torch's current stream
    """

    shape: Shape
    inputs: Tensors
    hidden: torch.Tensor
    residuals: tuple[torch.Tensor, torch.Tensor]
    results: list[dict[str, torch.Tensor]]
    plans: list[LoadedPlan] = field(default_factory=list)
    run: Callable[[], None] = lambda: None

    def bound(self, layer: int) -> dict[str, torch.Tensor]:
        """What the prefix of `layer` reads and writes of this step. Its residual is what the layer before has left."""
        turn = layer % 2
        ours = {"x": self.hidden, "residual": self.residuals[turn], "residual_out": self.residuals[1 - turn]}
        return {**self.inputs, **self.results[layer], **ours}

    def close(self) -> None:
        """Free what mktune built; the step must not run any more."""
        for plan in self.plans:
            plan.close()


class DecodeLoop:
    """See the module. `layers`: weights and caches by tensor name; caches have room for the largest step."""

    def __init__(self, layers: list[Tensors], plans: StepPlans) -> None:
        self._layers, self._plans = layers, plans

    def captured(self, inputs: Tensors, shape: Shape) -> Step:
        """The step as one graph. One loaded plan serves all layers: each capture keeps the tensors bound to it then."""
        import torch

        step = self._step(inputs, shape)
        loaded = load(self._plans.find(shape), self._tensors(step, 0), shape=shape)
        step.plans.append(loaded)

        def layer(number: int) -> None:
            loaded.rebind(self._tensors(step, number))
            loaded.launch()

        layer(0)  # once outside, so that nothing is loaded lazily while capturing
        _follow(step, 0)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._run(step, layer)
        step.run = graph.replay
        return step

    def replayed(self, inputs: Tensors, shape: Shape, each: Callable[[int], None] = lambda layer: None) -> Step:
        """The step without a capture: a loaded plan for each layer, and its own graph replayed between torch's kernels.

        `each` is called behind every layer, for those who look at what it left.
        """
        step = self._step(inputs, shape)
        plan = self._plans.find(shape)
        step.plans += [load(plan, self._tensors(step, layer), shape=shape) for layer in range(len(self._layers))]

        def layer(number: int) -> None:
            step.plans[number].replay()
            each(number)

        step.run = lambda: self._run(step, layer)
        return step

    def _run(self, step: Step, layer: Callable[[int], None]) -> None:
        step.hidden.copy_(step.inputs["x"])
        step.residuals[0].copy_(step.inputs["residual"])
        for number in range(len(self._layers)):
            layer(number)
            _follow(step, number)

    def _step(self, inputs: Tensors, shape: Shape) -> Step:
        import torch

        specs, place = WORKLOAD.graph.tensors, str(inputs["x"].device)
        results = [{name: allocate(specs[name], shape, place) for name in RESULTS} for _ in self._layers]
        residuals = (torch.empty_like(inputs["residual"]), torch.empty_like(inputs["residual"]))
        return Step(shape, inputs, torch.empty_like(inputs["x"]), residuals, results)

    def _tensors(self, step: Step, layer: int) -> dict[str, torch.Tensor]:
        return {**self._layers[layer], **step.bound(layer)}


def _follow(step: Step, layer: int) -> None:
    """Stands for the rest of the layer: makes the next one's x from what the prefix found."""
    step.hidden.copy_(step.results[layer]["mla_q"].flatten(1)[:, : step.hidden.shape[1]])
