"""What a search needs of a machine: a device, and a bench that says what each plan is worth.

A back end is one file. `cuda` measures in a process that may be killed; `sim` answers from a model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from mktune.closing import Closing
from mktune.device import Device
from mktune.plan import Plan
from mktune.shape import Shape
from mktune.trial import Fingerprint, Outcome, Policy, Winner


@dataclass(frozen=True)
class Problem:
    """What is being tuned: some ops of a workload at a shape. `seed` makes the inputs."""

    workload: str
    ops: tuple[str, ...]
    shape: Shape
    seed: int = 0


class Bench(Closing):
    """One problem on one device. Used as a context manager; methods never raise for a bad candidate."""

    policy: Policy
    fingerprint: Fingerprint

    @abstractmethod
    def prepare(self, plans: Sequence[Plan]) -> None:
        """Start compiling these plans in the background, so that `measure` finds them warm. Returns at once."""

    def ready(self, plan: Plan) -> bool:
        """Whether `measure` would find this plan compiled. Starts compiling it where nobody has."""
        return True

    @abstractmethod
    def measure(self, plan: Plan, incumbent_us: float | None) -> Outcome:
        """Build, verify and time one plan (screening). Clearly slower than the incumbent: pruned early."""

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
