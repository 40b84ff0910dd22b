"""N: h = RMSNorm(y) · w, rounded to bf16."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from gemm_rmsnorm.ops.output_projection import HIDDEN
from mktune.access import KernelFacts
from mktune.device import Device
from mktune.graph.tensors import Port
from mktune.ops import compare
from mktune.ops.base import KernelWork, Op, Tensors, Violation, Workspace
from mktune.ops.checks import field_violations, reads, trigger_class, writes
from mktune.ops.numerics import rms_norm, to_bf16
from mktune.ops.tolerances import BF16_RMS, BF16_ULPS
from mktune.plan import ConfigValue, KernelPlan, OpPlan
from mktune.shape import Shape

if TYPE_CHECKING:
    import torch

EPS = 1e-5
THREADS = (192, 384, 768)


class RowNorm(Op):
    """One CTA a row; `threads` of them. Only the 12 KiB of norm_w can be read before the wait."""

    title = "row_norm"
    inputs = ("y", "norm_w")
    outputs = ("h",)
    weights = ("norm_w",)
    ports: ClassVar[dict[str, Port]] = {
        "y": Port("bf16", ("m", HIDDEN)),
        "norm_w": Port("bf16", (HIDDEN,), "near_one"),
        "h": Port("bf16", ("m", HIDDEN)),
    }

    def default(self, arch: str) -> OpPlan:
        return OpPlan.of("plain", {"threads": 384})

    def choices(self, arch: str) -> dict[str, dict[str, tuple[ConfigValue, ...]]]:
        return {"plain": {"threads": THREADS}}

    def gdc_values(self, plan: OpPlan, suffix: str) -> tuple[str, ...]:
        return ("entry", "prologue")

    def kernels(self, plan: OpPlan) -> tuple[str, ...]:
        return ("",)

    def kind(self, plan: OpPlan) -> Hashable:
        return ()

    def facts(self, plan: OpPlan, kernels: tuple[KernelPlan, ...]) -> tuple[KernelFacts, ...]:
        return _facts(kernels[0].gdc, kernels[0].trigger)

    def config_violations(self, plan: OpPlan, shape: Shape, device: Device) -> list[Violation]:
        return field_violations(self, plan, device.arch)

    def workspaces(self, plan: OpPlan, shape: Shape) -> tuple[Workspace, ...]:
        return ()

    def work(self, plan: OpPlan, shape: Shape) -> tuple[KernelWork, ...]:
        warm = self.ports["y"].nbytes(shape) + self.ports["h"].nbytes(shape)
        threads = int(dict(plan.config)["threads"])
        return (KernelWork(shape.m, threads, 256, self.bytes_read(shape), warm, 0, self.flops(shape)),)

    def bytes_read(self, shape: Shape) -> int:
        return self.ports["norm_w"].nbytes(shape)

    def flops(self, shape: Shape) -> int:
        return 4 * shape.m * HIDDEN

    def reference(self, inputs: Tensors, shape: Shape) -> dict[str, torch.Tensor]:
        return {"h": to_bf16(rms_norm(inputs["y"], inputs["norm_w"], EPS))}

    def compare(self, inputs: Tensors, outputs: Tensors, shape: Shape) -> list[str]:
        expected = self.reference(inputs, shape)
        return compare.bf16_rows("h", outputs["h"], expected["h"], BF16_ULPS, BF16_RMS)


@cache
def _facts(gdc: str, trigger: str) -> tuple[KernelFacts, ...]:
    accesses = reads(RowNorm.weights, after_wait=gdc == "entry") + reads(("y",), after_wait=True)
    return (KernelFacts("", "", accesses + writes(RowNorm.outputs), True, trigger_class(trigger)),)
