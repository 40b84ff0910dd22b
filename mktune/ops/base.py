"""What an op is: ports, configs, kernels as the checks see them, and its reference.

An op knows ports ("h_q"), not tensors of a graph: a graph binds ports to tensors when the op is called, and lowering
renames. Workspaces and counters belong to the call: port "partials" of call "B0" becomes the buffer "B0.partials".
Kernels are named by a suffix ("", "p", "f") that lowering puts behind the call's name: "A0", "B0p", "B0f".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mktune.access import KernelFacts
from mktune.device import Device
from mktune.graph.tensors import Port
from mktune.ops.scale_formats import FP32, UE8M0
from mktune.plan import GDC, TRIGGERS, ConfigValue, KernelPlan, OpPlan
from mktune.shape import Shape

if TYPE_CHECKING:
    import torch

Tensors = Mapping[str, "torch.Tensor"]


PACKAGE = "package"
"""The rule of a violation that installing a package ends."""


@dataclass(frozen=True)
class Violation:
    """Why a plan must not be built: a rule's short name, where, and what to change, in one line."""

    rule: str
    where: str
    message: str

    @property
    def of_machine(self) -> bool:
        """It is not the plan's fault: this machine lacks a package that the plan needs."""
        return self.rule == PACKAGE

    def __str__(self) -> str:
        return f"{self.rule}: {self.where}: {self.message}"


@dataclass(frozen=True)
class Workspace:
    """Scratch memory of one op call. `counter`: zero before the first launch and again after every launch."""

    port: str
    bytes: int
    counter: bool = False


@dataclass(frozen=True)
class KernelWork:
    """The size of one kernel's launch, for models and tables.

    ctas, threads      grid size and threads of a CTA
    smem_bytes         dynamic shared memory of a CTA
    cold_bytes         weights and cache pages read, each counted once: these come from memory
    warm_bytes         activations, partial sums and results read and written: these mostly stay in L2
    prefetch_bytes     of the cold bytes, those that `gdc = prefetch` can have in flight before the wait
    flops              floating-point operations
    """

    ctas: int
    threads: int
    smem_bytes: int
    cold_bytes: int
    warm_bytes: int
    prefetch_bytes: int
    flops: int


class Op(ABC):
    """One op of a workload. Subclasses are stateless; torch is imported only inside `reference` and `compare`.

    title         what the op is called in a graph: "qkv_a"
    inputs        ports read, in call order; `outputs` ports written
    weights       the inputs that are bound weights: constant while the graph runs
    ports         dtype and dimensions of every port; a port that is input and output is updated in place
    ue8m0_ports   what ports with scales are under the scale format ue8m0 (see `mktune.ops.scale_formats`)
    ue8m0_impls   implementations that compute with either; their `launches` are told which (mktune/ops/launch)
    scale_format  how scales are represented, as the workload says
    """

    title: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]]
    outputs: ClassVar[tuple[str, ...]]
    weights: ClassVar[tuple[str, ...]] = ()
    ports: ClassVar[Mapping[str, Port]]
    ue8m0_ports: ClassVar[Mapping[str, Port]] = {}
    ue8m0_impls: ClassVar[tuple[str, ...]] = ()
    scale_format: str = FP32

    def __init__(self, scale_format: str = FP32) -> None:
        self.scale_format = scale_format
        if scale_format == UE8M0 and self.ue8m0_ports:
            vars(self)["ports"] = {**self.ports, **self.ue8m0_ports}  # of this op, in the place of its class's

    def scale_formats(self, impl: str, arch: str) -> tuple[str, ...]:
        """The formats of scales that implementation `impl` computes with on `arch`. An op that reads and writes no
        scales is the same in every format."""
        if not self.ue8m0_ports:
            return (self.scale_format,)
        return (FP32, UE8M0) if impl in self.ue8m0_impls else (FP32,)

    def implementations(self, arch: str) -> dict[str, dict[str, tuple[ConfigValue, ...]]]:
        """Those of `choices` that compute this op's scale format on `arch`."""
        offered = self.choices(arch).items()
        return {impl: fields for impl, fields in offered if self.scale_format in self.scale_formats(impl, arch)}

    @property
    def implied(self) -> Mapping[str, ConfigValue]:
        """Fields that a config leaves out where they have this value, which `choices` does not list."""
        return {}

    @abstractmethod
    def default(self, arch: str) -> OpPlan:
        """The config to start from on `arch` ("sm_90a", …): valid for every shape."""

    @abstractmethod
    def choices(self, arch: str) -> dict[str, dict[str, tuple[ConfigValue, ...]]]:
        """Implementation → config field → its values on `arch`. Which combinations exist, `violations` says."""

    def starts(self, arch: str, shape: Shape) -> tuple[OpPlan, ...]:
        """Configs beside the default that a search of this op should know of early at `shape`; some may be invalid."""
        return ()

    def missing(self, impl: str) -> str:
        """Why implementation `impl` cannot be compiled on this machine, in one line; empty where it can."""
        return ""

    def gdc_values(self, plan: OpPlan, suffix: str) -> tuple[str, ...]:
        """Where kernel `suffix` can wait. The first is taken where nothing has to be waited for."""
        return GDC

    def trigger_values(self, plan: OpPlan, suffix: str) -> tuple[str, ...]:
        """Where kernel `suffix` can trigger. The first is taken where nothing depends on it."""
        return TRIGGERS

    def plainest(self, plan: OpPlan, suffix: str) -> KernelPlan:
        """How kernel `suffix` is launched where no edge asks for more."""
        return KernelPlan(gdc=self.gdc_values(plan, suffix)[0], trigger=self.trigger_values(plan, suffix)[0])

    @abstractmethod
    def kernels(self, plan: OpPlan) -> tuple[str, ...]:
        """Suffixes of the kernels that compute this op under `plan`, in issue order."""

    @abstractmethod
    def facts(self, plan: OpPlan, kernels: tuple[KernelPlan, ...]) -> tuple[KernelFacts, ...]:
        """Every access, wait and trigger of those kernels (names are suffixes, buffers are ports)."""

    def kind(self, plan: OpPlan) -> Hashable:
        """What of a config decides its kernels, their facts and where they can wait and trigger.

        Configs of one kind are judged alike, but for `config_violations` and `l2_limit`.
        """
        return plan

    def l2_limit(self, plan: OpPlan) -> int:
        """Weight bytes of one CTA that its first kernel may ask into L2 before the wait."""
        return 0

    @abstractmethod
    def config_violations(self, plan: OpPlan, shape: Shape, device: Device) -> list[Violation]:
        """Configs that do not exist, do not divide the problem or do not fit the device; `where` is left empty."""

    def launch_violations(self, plan: OpPlan, kernels: tuple[KernelPlan, ...]) -> list[Violation]:
        """Waits, triggers and L2 prefetch that a kernel of a config that exists does not know."""
        suffixes = self.kernels(plan)
        if len(suffixes) != len(kernels):
            message = f"{self.title} has {len(suffixes)} kernels here, the plan places {len(kernels)}"
            return [Violation("kernels", "", message)]
        placed = zip(suffixes, kernels, strict=True)
        return [violation for suffix, kernel in placed for violation in self._launch(plan, suffix, kernel)]

    def _launch(self, plan: OpPlan, suffix: str, kernel: KernelPlan) -> Iterator[Violation]:
        name = f"kernel {suffix!r}" if suffix else "its kernel"
        gdc, trigger = self.gdc_values(plan, suffix), self.trigger_values(plan, suffix)
        if kernel.gdc not in gdc:
            yield Violation("gdc", "", f"{name} cannot wait at {kernel.gdc}; it knows {', '.join(gdc)}")
        if kernel.trigger not in trigger:
            yield Violation("trigger", "", f"{name} cannot trigger at {kernel.trigger}; it knows {', '.join(trigger)}")
        asked = kernel.l2_prefetch_bytes
        if asked and kernel.gdc != "prefetch":
            yield Violation("l2_prefetch", "", f"{name} prefetches into L2 only with gdc = prefetch")
        elif asked and asked > (limit := self.l2_limit(plan)):
            yield Violation("l2_prefetch", "", f"{asked} bytes asked, the ring leaves {limit} of a CTA's weights")

    def violations(
        self, plan: OpPlan, kernels: tuple[KernelPlan, ...], shape: Shape, device: Device
    ) -> list[Violation]:
        """What is wrong with a config, or, if nothing is, with how its kernels are launched."""
        return self.config_violations(plan, shape, device) or self.launch_violations(plan, kernels)

    @abstractmethod
    def workspaces(self, plan: OpPlan, shape: Shape) -> tuple[Workspace, ...]:
        """Scratch memory and counters that the kernels need."""

    def written(self, port: str, inputs: Tensors) -> list[tuple[int, int]]:
        """(first byte, bytes) of what this op writes of the cache at `port`, given its runtime arguments.

        Verification poisons it before each run, so that a row that was not written shows. Left out, the cache is
        compared only.
        """
        return []

    @abstractmethod
    def work(self, plan: OpPlan, shape: Shape) -> tuple[KernelWork, ...]:
        """The size of each kernel, in the order of `kernels(plan)`."""

    @abstractmethod
    def bytes_read(self, shape: Shape) -> int:
        """Bytes that must come from memory per pass: weights and cache pages. Activations are warm and not counted."""

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
