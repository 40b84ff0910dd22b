"""What a search needs of a machine: a device, and a bench that says what each plan is worth.

A back end is one file. `cuda` measures in a process that may be killed; `sim` answers from a model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from mktune.closing import Closing
from mktune.device import Device
from mktune.errors import InputError
from mktune.graph.workload import Workload, workload
from mktune.plan import Plan
from mktune.shape import Shape
from mktune.trace import Trace
from mktune.trial import Fingerprint, Outcome, Policy, Winner


@dataclass(frozen=True)
class Problem:
    """What is being tuned: some ops of a workload at a shape, under a scale format (None: the workload's own).

    `seed` makes the inputs.
    """

    workload: str
    ops: tuple[str, ...]
    shape: Shape
    seed: int = 0
    scale_format: str | None = None

    @classmethod
    def of(cls, known: Workload, ops: Sequence[str], shape: Shape, seed: int = 0) -> Problem:
        """The problem of `ops` of a workload, under its scale format."""
        own = known.scale_format == workload(known.name).scale_format
        return cls(known.name, tuple(ops), shape, seed, None if own else known.scale_format)

    @property
    def known(self) -> Workload:
        """The workload, under the scale format. Raises InputError where there is none."""
        return workload(self.workload, self.scale_format)

    def part(self, ops: Sequence[str]) -> Problem:
        """The problem of some of these ops, in call order. Raises InputError for a set that is no connected part."""
        outside = [op for op in ops if op not in self.ops]
        if outside:
            raise InputError(f"no part of {', '.join(self.ops)}: {', '.join(outside)}")
        return replace(self, ops=tuple(self.known.subgraph(ops).calls))


@dataclass(frozen=True)
class Stamps:
    """When kernels run: name → begin and end in µs from the first begin, and the span in µs while that was noted."""

    kernels: Mapping[str, tuple[float, float]]
    span_us: float


class Bench(Closing):
    """One problem on one device. Used as a context manager; methods never raise for a bad candidate.

    deterministic  promotion stores only a plan whose bits repeat from run to run, and beside other requests; a model,
                   which has no bits, takes no notice
    builds_differ  a plan that is built again may be faster or slower: what seems the best is measured twice
    """

    problem: Problem
    policy: Policy
    fingerprint: Fingerprint
    deterministic: bool = False
    builds_differ: bool = False

    @property
    def build(self) -> str:
        """What plans of a study here may be compiled from: `Fingerprint.kernels` with all that its ops may share."""
        return self.fingerprint.kernels

    @abstractmethod
    def prepare(self, plans: Sequence[Plan]) -> None:
        """Start compiling these plans in the background, so that `measure` finds them warm. Returns at once."""

    def ready(self, plan: Plan) -> bool:
        """Whether `measure` would wait for no compiler. Starts compiling the plan where nobody has."""
        return True

    def compiled(self, plan: Plan) -> bool:
        """Whether all kernels of the plan are there: none failed, none is missing. Starts nothing, and may be asked on
        another thread while `measure` runs."""
        return True

    @abstractmethod
    def measure(self, plan: Plan, incumbent_us: float | None) -> Outcome:
        """Build, verify and time one plan (screening). Clearly slower than the incumbent: pruned early."""

    def brief(self) -> None:
        """From now on `measure` takes no more samples than it must: for landscapes, in which no plan is to win."""

    @abstractmethod
    def verify(self, plan: Plan) -> str:
        """What is wrong with `plan` or its results, in one line; empty where nothing is."""

    @abstractmethod
    def paired(self, plans: Mapping[str, Plan]) -> tuple[Mapping[str, Sequence[float]], Mapping[str, float]]:
        """Spans in µs by name, measured in the same rounds, and the device's state: sample i of one plan was taken
        beside sample i of every other. Plans must have been verified. Raises CandidateError."""

    def rounds(
        self, plans: Mapping[str, Plan], rounds: int
    ) -> tuple[Mapping[str, Sequence[float]], Mapping[str, float]]:
        """As `paired`, two samples of each plan a round, without starting afresh where `paired` would."""
        return self.paired(plans)

    @abstractmethod
    def stamps(self, plan: Plan, kernels: Sequence[str]) -> Stamps:
        """When `kernels` of a verified plan begin and end. Raises InputError for one that it has not."""

    def trace(self, plan: Plan) -> Trace:
        """When every kernel of a verified plan begins, is ready, triggers and ends in a layer, and the critical path.

            path = bench.trace(plan).path
            path.kernels, path.slack["C0"]

        What stands in it never scores. Raises InputError where this bench cannot say, CandidateError.
        """
        raise InputError(f"{type(self).__name__} notes no times of kernels")

    @abstractmethod
    def alone(self, ops: Sequence[str]) -> Bench:
        """A bench of a connected part of the problem, with inputs of its own for what other ops would have made.

            with bench.alone(("D0",)) as part:
                part.measure(plan_of_d0, None)

        It shares what is costly with this one (process, compilers) and must be closed before this one is. Only one
        problem is in the device's memory at a time: whichever bench is asked brings its own, within about a second.
        Policy and fingerprint are those of the part. Raises InputError for ops that are no connected part.
        """

    @abstractmethod
    def promote(self, finalists: Sequence[Plan], builtins: dict[str, Plan]) -> Winner:
        """Re-measure finalists and built-ins interleaved, validate, and say which plan to store.

        Raises NothingFoundError where not even a built-in plan can be run.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop processes and free the device. May be called twice."""


class Backend(ABC):
    """A way to get spans. `simulated` marks numbers that no GPU gave."""

    name: str
    simulated: bool
    device: Device

    @abstractmethod
    def open(self, problem: Problem) -> Bench:
        """A bench for `problem`. Raises SetupError where this machine cannot run it."""

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Within this block benches share what is costly to start (process, compilers), one after the other.

        Where there are back ends beside this one, theirs are blocks inside it: what they keep uses its compilers.
        """
        yield

    def beside(self, number: int | None) -> list[Backend]:
        """`number` more of the same kind on this machine, or all that there are (None).

        Of what is no GPU there are as many as are asked for, and one is all. Raises InputError where there are fewer.
        """
        return [self] * (number or 0)

    def open_beside(self, bench: Bench) -> Bench:
        """A bench for the problem of `bench`, which is one of another GPU here: what both can use is made once."""
        return self.open(bench.problem)
