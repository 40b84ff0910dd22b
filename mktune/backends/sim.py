"""Answers without a GPU: spans from a plain model, stored and shown as simulated, never served as measured.

The model (`sim_model`) knows bytes, slots and boundaries. It does not know registers, bank conflicts, clocks or code
quality, so it ranks structures (streams, edges, split-K, stages) rather than kernels. Chains of streaming kernels come
out within 7 % of what an H200 takes, within 1 µs where rings are filled before the wait; nothing else was compared. It
has no noise, and none is made up: one sample, whose interval is a point.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from mktune import __version__
from mktune.backends.base import Backend, Bench, Problem, Stamps
from mktune.backends.models import known_gpu
from mktune.backends.sim_constants import CONSTANTS, VERSION, Constants
from mktune.backends.sim_kernels import sim_kernels
from mktune.backends.sim_model import layer_times, span_us
from mktune.device import Device
from mktune.errors import InputError, MktuneError
from mktune.graph.workload import graph_of
from mktune.lowering.graph import lower
from mktune.measure.attribution import attribute
from mktune.measure.critical_path import critical_path
from mktune.measure.promotion import MIN_PAIRS, arms, decide, right_arms, structures, winner
from mktune.plan import Plan
from mktune.trace import Trace, TracedKernel
from mktune.trial import Fingerprint, Measurement, Outcome, Policy, Status, Winner

POLICY = Policy(backend="sim")


def model(plan: Plan, device: Device, constants: Constants) -> tuple[float, dict[str, tuple[float, float]]]:
    """Span of `plan` in µs, and start and end of each kernel. The plan must be one that `validity.check` passes."""
    graph = graph_of(plan)
    lowered = lower(plan, graph, plan.shape)
    return span_us(sim_kernels(plan, graph, lowered, constants), lowered.edges, device.sms, constants)


class SimBench(Bench):
    """One problem on a modelled GPU."""

    policy = POLICY

    def __init__(self, problem: Problem, device: Device, constants: Constants) -> None:
        self.problem = problem
        self.device = device
        self.fingerprint = Fingerprint(
            gpu=device.name,
            sms=device.sms,
            compute_capability=device.compute_capability,
            driver="",
            cuda="",
            compiler="",
            kernels=f"model {VERSION}",
            mktune=__version__,
        )
        self._constants = constants

    def prepare(self, plans: Sequence[Plan]) -> None:
        """Nothing to compile."""

    def measure(self, plan: Plan, incumbent_us: float | None) -> Outcome:
        """The modelled span. A plan that cannot be lowered is a build error."""
        began = time.perf_counter()
        try:
            span, _ = model(plan, self.device, self._constants)
        except MktuneError as error:
            return Outcome(Status.BUILD_ERROR, str(error))
        measurement = Measurement(span, span, span, (span,), POLICY)
        return Outcome(Status.OK, measurement=measurement, seconds=(("model", time.perf_counter() - began),))

    def verify(self, plan: Plan) -> str:
        """A model has no results: only a plan that cannot be lowered is wrong."""
        outcome = self.measure(plan, None)
        return "" if outcome.status is Status.OK else f"{outcome.status}: {outcome.reason}"

    def paired(self, plans: Mapping[str, Plan]) -> tuple[dict[str, list[float]], dict[str, float]]:
        """A modelled span stands in every round."""
        spans = {name: model(plan, self.device, self._constants)[0] for name, plan in plans.items()}
        return {name: [span] * MIN_PAIRS for name, span in spans.items()}, {}

    def stamps(self, plan: Plan, kernels: Sequence[str]) -> Stamps:
        """As modelled: looking costs nothing."""
        span, times = model(plan, self.device, self._constants)
        if missing := [name for name in kernels if name not in times]:
            raise InputError(f"no kernel {', '.join(missing)}; there are {', '.join(times)}")
        origin = min(times[name][0] for name in kernels)
        return Stamps({name: (times[name][0] - origin, times[name][1] - origin) for name in kernels}, span)

    def trace(self, plan: Plan) -> Trace:
        """As modelled: one layer, and noting its times costs nothing."""
        graph = graph_of(plan)
        lowered = lower(plan, graph, plan.shape)
        made = sim_kernels(plan, graph, lowered, self._constants)
        found = layer_times(made, lowered.edges, self.device.sms, self._constants)
        edges = tuple(((edge.source, edge.target), edge.kind) for edge in lowered.edges)
        span, _ = model(plan, self.device, self._constants)
        return Trace(
            plan_id=plan.plan_id,
            simulated=True,
            gpu=self.device.name,
            sms=self.device.sms,
            kernels=tuple(
                TracedKernel(kernel.name, plan.kernel[kernel.name].stream, kernel.ctas, sms, times)
                for kernel, (times, sms) in zip(made, found.values(), strict=True)
            ),
            edges=edges,
            path=critical_path({name: times for name, (times, _) in found.items()}, edges),
            plain_us=(span,),
            stamped_us=(span,),
            replays=1,
        )

    def alone(self, ops: Sequence[str]) -> SimBench:
        return SimBench(self.problem.part(ops), self.device, self._constants)

    def promote(self, finalists: Sequence[Plan], builtins: dict[str, Plan]) -> Winner:
        """The same decision as on a GPU; a modelled span stands in every round, so that there is no noise."""
        problem = self.problem
        others = structures(finalists[:1], problem.known, problem.ops, self.device.arch)
        compared = arms(finalists, builtins, others)
        outcomes = {arm.name: self.measure(arm.plan, None) for arm in compared}
        right = right_arms(compared, {name: (outcome.status, outcome.reason) for name, outcome in outcomes.items()})
        samples, _ = self.paired({arm.name: arm.plan for arm in right})
        decision = decide(right, samples)
        chosen = decision.ranked[0]
        losses, _ = attribute(chosen.plan, self.device, self.verify, lambda plans: self.paired(plans)[0])
        return winner(decision, chosen, samples, policy=POLICY, fingerprint=self.fingerprint, attribution=losses)

    def close(self) -> None:
        """Nothing to free."""


class SimBackend(Backend):
    """Spans of a modelled GPU."""

    name = "sim"
    simulated = True

    def __init__(self, gpu: str = "h200") -> None:
        """Raises InputError for a GPU that is not modelled."""
        self.device = known_gpu(gpu)
        self._constants = CONSTANTS[gpu.lower()]

    def open(self, problem: Problem) -> SimBench:
        """Raises InputError where no implementation computes the problem's scale format: there is nothing to model."""
        problem.known.require_implementations(problem.ops, self.device.arch)
        return SimBench(problem, self.device, self._constants)
