"""A0: r' = x + residual; h = RMSNorm(r') · w in bf16; h quantised to e4m3 per row and group of 128."""

from __future__ import annotations

from functools import cache
from typing import ClassVar

from mktune.access import KernelFacts
from mktune.device import Device
from mktune.graph.tensors import Port
from mktune.ops.base import KernelWork, Op, Violation, Workspace
from mktune.ops.checks import config_violations, placement_violations, reads, trigger_class, writes
from mktune.ops.dimensions import GROUP, HIDDEN
from mktune.plan import ConfigValue, KernelPlan, OpPlan
from mktune.shape import Shape


class AddRmsnormQuant(Op):
    """One CTA a row; `threads` of them. residual_out is a buffer of its own, not the residual in place."""

    title = "add_rmsnorm_quant"
    inputs = ("x", "residual", "norm_w")
    outputs = ("residual_out", "h", "h_q", "h_s")
    weights = ("norm_w",)
    ports: ClassVar[dict[str, Port]] = {
        "x": Port("bf16", ("m", HIDDEN)),
        "residual": Port("bf16", ("m", HIDDEN)),
        "norm_w": Port("bf16", (HIDDEN,)),
        "residual_out": Port("bf16", ("m", HIDDEN)),
        "h": Port("bf16", ("m", HIDDEN)),
        "h_q": Port("e4m3", ("m", HIDDEN)),
        "h_s": Port("f32", (HIDDEN // GROUP, "m4")),
    }

    def default(self, arch: str) -> OpPlan:
        return OpPlan.of("mktune", {"threads": 384})

    def choices(self, arch: str) -> dict[str, dict[str, tuple[ConfigValue, ...]]]:
        return {"mktune": {"threads": (192, 384, 768)}}

    def gdc_values(self, plan: OpPlan, suffix: str) -> tuple[str, ...]:
        return ("entry", "prologue")

    def kernels(self, plan: OpPlan) -> tuple[str, ...]:
        return ("",)

    def facts(self, plan: OpPlan, kernels: tuple[KernelPlan, ...]) -> tuple[KernelFacts, ...]:
        return _facts(kernels[0].gdc, kernels[0].trigger)

    def violations(
        self, plan: OpPlan, kernels: tuple[KernelPlan, ...], shape: Shape, device: Device
    ) -> list[Violation]:
        return config_violations(self, plan, device.arch) or placement_violations(self, plan, kernels)

    def workspaces(self, plan: OpPlan, shape: Shape) -> tuple[Workspace, ...]:
        return ()

    def work(self, plan: OpPlan, shape: Shape) -> tuple[KernelWork, ...]:
        warm = sum(self.ports[port].nbytes(shape) for port in self.ports if port != "norm_w")
        threads = int(dict(plan.config)["threads"])
        return (KernelWork(shape.m, threads, 256, self.bytes_read(shape), warm, 0, self.flops(shape)),)

    def bytes_read(self, shape: Shape) -> int:
        return self.ports["norm_w"].nbytes(shape)

    def flops(self, shape: Shape) -> int:
        return 0


@cache
def _facts(gdc: str, trigger: str) -> tuple[KernelFacts, ...]:
    constants = reads(AddRmsnormQuant.weights, after_wait=gdc == "entry")
    accesses = constants + reads(("x", "residual"), after_wait=True) + writes(AddRmsnormQuant.outputs)
    return (KernelFacts("", "", accesses, True, trigger_class(trigger)),)
