"""DeepGEMM's templates as one more implementation of an op: impl "deep_gemm".

    class QkvA(WithDeepGemm, GemmOp):
        provided = BlockFp8()

`Provided` says of that implementation what an op says of its own: fields, kernels, accesses, limits, sizes. Its kernels
wait once, in every thread, behind a prologue that reads no memory; they trigger at their end, or right behind the wait.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar

from mktune import deep_gemm
from mktune.access import KernelFacts
from mktune.device import Device
from mktune.ops.base import PACKAGE, KernelWork, Op, Violation, Workspace
from mktune.ops.scale_formats import FP32
from mktune.plan import ConfigValue, KernelPlan, OpPlan
from mktune.shape import Shape

__all__ = ["SMALL", "TEMPLATE", "Placement", "Provided", "WithDeepGemm"]

Placement = tuple[tuple[str, ...], tuple[str, ...]]
"""Where a kernel can wait, and where it can trigger."""

TEMPLATE: Placement = (("prologue",), ("exit", "after_wait"))
"""Of every template."""
SMALL: Placement = (("entry", "prologue"), ("exit", "start", "after_wait"))
"""Of a small kernel of ours without weights."""


class Provided(ABC):
    """An implementation of `op` by DeepGEMM. Stateless; methods mean what those of `Op` do.

    sources     files under kernels/ that include its templates, and kernels of ours that only this implementation runs
    placements  kernel suffix → where it waits and triggers; those that are not here are the op's own kernels
    """

    sources: ClassVar[tuple[str, ...]]
    placements: ClassVar[Mapping[str, Placement]]

    @abstractmethod
    def choices(self, op: Any, arch: str) -> dict[str, tuple[ConfigValue, ...]]:
        """Config field → its values on `arch`; empty where no template computes the contract there."""

    def scale_formats(self, op: Op, arch: str) -> tuple[str, ...]:
        """The formats of scales that its templates compute with on `arch`."""
        return (FP32,) if op.ue8m0_ports else (op.scale_format,)

    @abstractmethod
    def kernels(self, op: Any) -> tuple[str, ...]:
        """Suffixes of its kernels, whatever the config."""

    @abstractmethod
    def facts(self, op: Any, kernels: tuple[KernelPlan, ...]) -> tuple[KernelFacts, ...]:
        """Every access, wait and trigger of its kernels."""

    @abstractmethod
    def config_violations(self, op: Any, plan: OpPlan, shape: Shape, device: Device) -> list[Violation]:
        """Configs that no template has, or that do not fit the device."""

    @abstractmethod
    def workspaces(self, op: Any, plan: OpPlan, shape: Shape) -> tuple[Workspace, ...]:
        """Scratch memory that its kernels need."""

    @abstractmethod
    def work(self, op: Any, plan: OpPlan, shape: Shape) -> tuple[KernelWork, ...]:
        """The size of each kernel."""

    @abstractmethod
    def heuristic(self, op: Any, shape: Shape, device: Device) -> OpPlan:
        """The config that DeepGEMM's own host code would take."""


class WithDeepGemm(Op):
    """Stands before the class that has an op's own implementations, and answers for impl deep_gemm."""

    provided: ClassVar[Provided]

    def choices(self, arch: str) -> dict[str, dict[str, tuple[ConfigValue, ...]]]:
        own = super().choices(arch)  # type: ignore[safe-super]  # of the class behind
        fields = self.provided.choices(self, arch)
        return {**own, deep_gemm.IMPL: fields} if fields else own

    def scale_formats(self, impl: str, arch: str) -> tuple[str, ...]:
        return self.provided.scale_formats(self, arch) if impl == deep_gemm.IMPL else super().scale_formats(impl, arch)

    def missing(self, impl: str) -> str:
        return deep_gemm.missing() if impl == deep_gemm.IMPL else super().missing(impl)

    def gdc_values(self, plan: OpPlan, suffix: str) -> tuple[str, ...]:
        known = self._placement(plan, suffix)
        return known[0] if known else super().gdc_values(plan, suffix)

    def trigger_values(self, plan: OpPlan, suffix: str) -> tuple[str, ...]:
        known = self._placement(plan, suffix)
        return known[1] if known else super().trigger_values(plan, suffix)

    def kernels(self, plan: OpPlan) -> tuple[str, ...]:
        if plan.impl == deep_gemm.IMPL:
            return self.provided.kernels(self)
        return super().kernels(plan)  # type: ignore[safe-super]

    def facts(self, plan: OpPlan, kernels: tuple[KernelPlan, ...]) -> tuple[KernelFacts, ...]:
        if plan.impl == deep_gemm.IMPL:
            return self.provided.facts(self, kernels)
        return super().facts(plan, kernels)  # type: ignore[safe-super]

    def kind(self, plan: OpPlan) -> Hashable:
        return deep_gemm.IMPL if plan.impl == deep_gemm.IMPL else super().kind(plan)

    def l2_limit(self, plan: OpPlan) -> int:
        return 0 if plan.impl == deep_gemm.IMPL else super().l2_limit(plan)

    def config_violations(self, plan: OpPlan, shape: Shape, device: Device) -> list[Violation]:
        if plan.impl != deep_gemm.IMPL:
            return super().config_violations(plan, shape, device)  # type: ignore[safe-super]
        if found := self.provided.config_violations(self, plan, shape, device):
            return found
        missing = deep_gemm.missing()
        return [Violation(PACKAGE, "", missing)] if missing else []

    def workspaces(self, plan: OpPlan, shape: Shape) -> tuple[Workspace, ...]:
        if plan.impl == deep_gemm.IMPL:
            return self.provided.workspaces(self, plan, shape)
        return super().workspaces(plan, shape)  # type: ignore[safe-super]

    def work(self, plan: OpPlan, shape: Shape) -> tuple[KernelWork, ...]:
        if plan.impl == deep_gemm.IMPL:
            return self.provided.work(self, plan, shape)
        return super().work(plan, shape)  # type: ignore[safe-super]

    def heuristic(self, shape: Shape, device: Device) -> OpPlan:
        """The config that DeepGEMM itself would launch at this shape, and that its API offers no way to change."""
        return self.provided.heuristic(self, shape, device)

    def _placement(self, plan: OpPlan, suffix: str) -> Placement | None:
        """None: the kernel is one of the op's own."""
        return self.provided.placements.get(suffix) if plan.impl == deep_gemm.IMPL else None
