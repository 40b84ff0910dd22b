"""Answers from a recording: the spans that a device once gave to every plan of a part of a space, without the device.

Each sample of a replay is one that was recorded, drawn with a seed, so that two replays differ as two measurements
would. What it finds is shown and stored as simulated: nothing was measured when it was found.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mktune.backends.base import Backend, Bench, Problem, Stamps
from mktune.backends.models import KNOWN
from mktune.backends.recording import KEY_DIGITS, Header, Row, read
from mktune.backends.sim import SimBench
from mktune.backends.sim_constants import CONSTANTS
from mktune.errors import InputError, MktuneError
from mktune.lowering.graph import runs_as
from mktune.measure.promotion import MIN_PAIRS, arms, decide, right_arms, winner
from mktune.measure.stats import median_interval
from mktune.plan import Plan
from mktune.trace import CriticalPath, PathStep, Trace
from mktune.trial import Measurement, Outcome, Policy, Status, Winner

NAME = "recorded"


class RecordedBench(Bench):
    """The plans of one part of a recording. What it does not hold is a build error."""

    def __init__(self, header: Header, rows: Mapping[str, Mapping[str, Row]], problem: Problem, seed: int) -> None:
        part = "" if problem.ops == header.problem.ops else ",".join(problem.ops)
        if part and part not in header.parts:
            raise InputError(f"the recording has no ops {part} alone; there are {', '.join(header.parts) or 'none'}")
        self.problem, self.fingerprint = problem, header.fingerprint
        self.policy: Policy = replace(header.parts[part] if part else header.policy, backend=NAME)
        self.rows = rows.get(part, {})
        self._header, self._all, self._seed = header, rows, seed
        self._graph = problem.known.subgraph(problem.ops)
        self._model = _model(header, problem)
        self._draw = random.Random(seed)

    def find(self, plan: Plan) -> Row | None:
        """What was recorded of `plan`, or of one that runs the same."""
        return self.rows.get(runs_as(plan, self._graph)[:KEY_DIGITS])

    def prepare(self, plans: Sequence[Plan]) -> None:
        """Nothing to compile."""

    def measure(self, plan: Plan, incumbent_us: float | None) -> Outcome:
        """The median of samples drawn from those recorded, and their interval."""
        try:
            row = self.find(plan)
        except MktuneError as error:
            return Outcome(Status.BUILD_ERROR, str(error))
        if row is None:
            return Outcome(Status.BUILD_ERROR, "the recording does not hold this plan")
        if not row.ok:
            return Outcome(row.status, "as recorded")
        samples = self._samples(row, len(row.samples_us))
        interval = median_interval(samples)
        return Outcome(
            Status.OK,
            measurement=Measurement(interval.median, interval.low, interval.high, tuple(samples), self.policy),
        )

    def verify(self, plan: Plan) -> str:
        """Recorded results were verified; only what was not recorded, or failed, is wrong."""
        outcome = self.measure(plan, None)
        return "" if outcome.status is Status.OK else f"{outcome.status}: {outcome.reason}"

    def paired(self, plans: Mapping[str, Plan]) -> tuple[dict[str, list[float]], dict[str, float]]:
        """Recorded samples, drawn anew for every round. They were not taken beside each other."""
        found = {name: self.find(plan) for name, plan in plans.items()}
        if missing := [name for name, row in found.items() if row is None or not row.ok]:
            raise InputError(f"the recording has no span of {', '.join(missing)}")
        return {name: self._samples(row, MIN_PAIRS) for name, row in found.items() if row is not None}, {}

    def stamps(self, plan: Plan, kernels: Sequence[str]) -> Stamps:
        """As the model of the GPU has them: times of kernels are not recorded."""
        return self._model.stamps(plan, kernels)

    def trace(self, plan: Plan) -> Trace:
        """The model's, with the critical path that was recorded where one was."""
        trace, row = self._model.trace(plan), self.find(plan)
        if row is None or not row.path:
            return trace
        names = [name for name, _ in plan.kernels]
        return replace(trace, path=_path([(names[place], held) for place, held in row.path], trace.path))

    def alone(self, ops: Sequence[str]) -> RecordedBench:
        return RecordedBench(self._header, self._all, self.problem.part(ops), self._seed)

    def promote(self, finalists: Sequence[Plan], builtins: dict[str, Plan]) -> Winner:
        """The decision of a promotion over recorded samples. Only recorded plans can be compared."""
        held = {name: plan for name, plan in builtins.items() if self.find(plan) is not None}
        compared = arms(finalists, held, {})
        outcomes = {arm.name: self.measure(arm.plan, None) for arm in compared}
        right = right_arms(compared, {name: (outcome.status, outcome.reason) for name, outcome in outcomes.items()})
        samples = {arm.name: self.paired({arm.name: arm.plan})[0][arm.name] for arm in right}
        decision = decide(right, samples)
        return winner(decision, decision.ranked[0], samples, policy=self.policy, fingerprint=self.fingerprint)

    def close(self) -> None:
        """Nothing to free."""

    def _samples(self, row: Row, count: int) -> list[float]:
        return self._draw.choices(row.samples_us, k=count)


def _path(steps: Sequence[tuple[str, float]], modelled: CriticalPath) -> CriticalPath:
    """A recorded path; slack is the model's."""
    found: list[PathStep] = []
    source: str | None = None
    for kernel, held_us in steps:
        event, at = ("end", "wait") if source else ("layer", "begin")
        found.append(PathStep(kernel, source, event, at, "", 0.0, held_us))
        source = kernel
    return CriticalPath(tuple(found), sum(held_us for _, held_us in steps), modelled.slack_us)


def _model(header: Header, problem: Problem) -> SimBench:
    names = [name for name, device in KNOWN.items() if device.name == header.device.name]
    return SimBench(problem, header.device, CONSTANTS[names[0] if names else "h200"])


class RecordedBackend(Backend):
    """The recording in a file. Raises InputError where it is none."""

    name = NAME
    simulated = True

    def __init__(self, path: Path, seed: int = 0) -> None:
        self.path = path
        self.header, rows = read(path)
        self.device = self.header.device
        self.rows: dict[str, dict[str, Row]] = {}
        for row in rows:
            self.rows.setdefault(row.part, {})[row.key] = row
        self._seed = seed

    def open(self, problem: Problem) -> RecordedBench:
        """Raises InputError for another problem than the recorded one."""
        own = self.header.problem
        if (problem.known, problem.ops, problem.shape) != (own.known, own.ops, own.shape):
            size = f"M {own.shape.m}, KV {own.shape.kv}, {own.shape.tokens_per_request} tokens a request"
            raise InputError(f"{self.path} holds {own.workload} {','.join(own.ops)} at {size}")
        return RecordedBench(self.header, self.rows, problem, self._seed)
