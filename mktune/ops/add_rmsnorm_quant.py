"""A0: r' = x + residual; h = RMSNorm(r') · w in bf16; h quantised to e4m3 per row and group of 128."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from mktune.access import KernelFacts
from mktune.device import Device
from mktune.graph.tensors import Port
from mktune.ops import compare, compare_packed
from mktune.ops.base import KernelWork, Op, Tensors, Violation, Workspace
from mktune.ops.checks import field_violations, reads, trigger_class, writes
from mktune.ops.dimensions import ACTIVATION_AMAX, GROUP, HIDDEN, RMS_EPS
from mktune.ops.numerics import quantise, rms_norm, store_scales, to_bf16
from mktune.ops.scale_formats import row_words
from mktune.ops.tolerances import BF16_RMS, BF16_ULPS, DIRECT
from mktune.plan import ConfigValue, KernelPlan, OpPlan
from mktune.shape import Shape

if TYPE_CHECKING:
    import torch


class AddRmsnormQuant(Op):
    """One CTA a row; `threads` of them. residual_out is a buffer of its own, not the residual in place."""

    title = "add_rmsnorm_quant"
    inputs = ("x", "residual", "norm_w")
    outputs = ("residual_out", "h", "h_q", "h_s")
    weights = ("norm_w",)
    ports: ClassVar[dict[str, Port]] = {
        "x": Port("bf16", ("m", HIDDEN)),
        "residual": Port("bf16", ("m", HIDDEN)),
        "norm_w": Port("bf16", (HIDDEN,), "near_one"),
        "residual_out": Port("bf16", ("m", HIDDEN)),
        "h": Port("bf16", ("m", HIDDEN)),
        "h_q": Port("e4m3", ("m", HIDDEN), "codes"),
        "h_s": Port("f32", (HIDDEN // GROUP, "m4"), "row_scales"),
    }
    ue8m0_impls = ("mktune",)
    ue8m0_ports: ClassVar[dict[str, Port]] = {"h_s": row_words(HIDDEN)}

    def default(self, arch: str) -> OpPlan:
        return OpPlan.of("mktune", {"threads": 384})

    def choices(self, arch: str) -> dict[str, dict[str, tuple[ConfigValue, ...]]]:
        return {"mktune": {"threads": (192, 384, 768)}}

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
        warm = sum(self.ports[port].nbytes(shape) for port in self.ports if port != "norm_w")
        threads = int(dict(plan.config)["threads"])
        return (KernelWork(shape.m, threads, 256, self.bytes_read(shape), warm, 0, self.flops(shape)),)

    def bytes_read(self, shape: Shape) -> int:
        return self.ports["norm_w"].nbytes(shape)

    def flops(self, shape: Shape) -> int:
        return 6 * shape.m * HIDDEN

    def reference(self, inputs: Tensors, shape: Shape) -> dict[str, torch.Tensor]:
        """The norm goes on from the fp32 sum, not from its bf16 rounding."""
        total = inputs["x"].float() + inputs["residual"].float()
        h = to_bf16(rms_norm(total, inputs["norm_w"], RMS_EPS))
        codes, scales = quantise(h, ACTIVATION_AMAX, self.scale_format)
        stored = store_scales(scales, self.scale_format)
        return {"residual_out": to_bf16(total), "h": h, "h_q": codes, "h_s": stored}

    def compare(self, inputs: Tensors, outputs: Tensors, shape: Shape) -> list[str]:
        expected = self.reference(inputs, shape)
        found = []
        for port in ("residual_out", "h"):
            found += compare.bf16_rows(port, outputs[port], expected[port], BF16_ULPS, BF16_RMS)
        return found + compare_packed.quantised("h_q", "h_s", outputs, expected, DIRECT)


@cache
def _facts(gdc: str, trigger: str) -> tuple[KernelFacts, ...]:
    constants = reads(AddRmsnormQuant.weights, after_wait=gdc == "entry")
    accesses = constants + reads(("x", "residual"), after_wait=True) + writes(AddRmsnormQuant.outputs)
    return (KernelFacts("", "", accesses, True, trigger_class(trigger)),)
