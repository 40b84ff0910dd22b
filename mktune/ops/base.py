"""What an op is: ports, configs, kernels as the checks see them, and its reference.

An op knows ports ("h_q"), not tensors of a graph: a graph binds ports to tensors when the op is called, and lowering
renames. Workspaces and counters belong to the call: port "partials" of call "B0" becomes the buffer "B0.partials".
Kernels are named by a suffix ("", "p", "f") that lowering puts behind the call's name: "A0", "B0p", "B0f".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mktune.access import KernelFacts
from mktune.device import Device
from mktune.plan import KernelPlan, OpPlan
from mktune.shape import Shape

if TYPE_CHECKING:
    import torch

Tensors = Mapping[str, "torch.Tensor"]


@dataclass(frozen=True)
class Violation:
    """Why a plan must not be built: a rule's short name, where, and what to change, in one line."""

    rule: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.where}: {self.message}"


@dataclass(frozen=True)
class Workspace:
    """Scratch memory of one op call. `counter`: zero before the first launch and again after every launch."""

    port: str
    bytes: int
    counter: bool = False


class Op(ABC):
    """One op of a workload. Subclasses are stateless; torch is imported only inside `reference` and `compare`.

    title    what the op is called in a graph: "qkv_a"
    inputs   ports read, in call order; `outputs` ports written
    weights  the inputs that are bound weights: constant while the graph runs
    """

    title: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]]
    outputs: ClassVar[tuple[str, ...]]
    weights: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def default(self, arch: str) -> OpPlan:
        """The config to start from on `arch` ("sm_90a", …): valid for every shape."""

    @abstractmethod
    def kernels(self, plan: OpPlan) -> tuple[str, ...]:
        """Suffixes of the kernels that compute this op under `plan`, in issue order."""

    @abstractmethod
    def facts(self, plan: OpPlan, kernels: tuple[KernelPlan, ...]) -> tuple[KernelFacts, ...]:
        """Every access, wait and trigger of those kernels (names are suffixes, buffers are ports)."""

    @abstractmethod
    def violations(
        self, plan: OpPlan, kernels: tuple[KernelPlan, ...], shape: Shape, device: Device
    ) -> list[Violation]:
        """Configs that do not exist, do not divide the problem or do not fit the device; `where` is left empty."""

    @abstractmethod
    def workspaces(self, plan: OpPlan, shape: Shape) -> tuple[Workspace, ...]:
        """Scratch memory and counters that the kernels need."""

    @abstractmethod
    def bytes_read(self, shape: Shape) -> int:
        """Bytes that must be read from memory per pass, weights and caches included."""

    @abstractmethod
    def flops(self, shape: Shape) -> int:
        """Floating-point operations per pass (a multiply and an add are two)."""

    @abstractmethod
    def reference(self, inputs: Tensors, shape: Shape) -> dict[str, torch.Tensor]:
        """The outputs by port, evaluated in fp64 over the quantised operands with the contract's rounding points.

        Caches are outputs too: a full copy of the input cache with the named rows replaced.
        """

    @abstractmethod
    def compare(self, inputs: Tensors, outputs: Tensors, shape: Shape) -> list[str]:
        """What differs beyond the contract's tolerances, one line each; empty where the outputs are right."""

    def details(self) -> dict[str, Any]:
        """Facts for people: sizes and constants that tables may show."""
        return {}
