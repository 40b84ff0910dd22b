"""DeepGEMM's block-FP8 GEMM for B0, B1, D0 and D1: its kernel writes y in bf16, our finalizer kernel the op's outputs.

The template is sm90_fp8_gemm_1d2d_impl: activation scales 1 × 128, weight scales 128 × 128, both fp32. That for
Blackwell takes scales that are powers of two only, so it is no implementation of a contract with fp32 scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import ClassVar

from mktune.access import KernelFacts
from mktune.deep_gemm import IMPL
from mktune.device import Device
from mktune.ops.base import KernelWork, Violation, Workspace
from mktune.ops.checks import field_violations, reads, trigger_class, writes
from mktune.ops.deep_gemm import TEMPLATE, Placement, Provided
from mktune.ops.deep_gemm.heuristic import Desired, pick
from mktune.ops.deep_gemm.tiles import Tiles, config_of, fields_of, in_flight
from mktune.ops.gemm import FINALIZER_BYTES, GemmOp, finalizer_facts
from mktune.ops.gemm_tiles import GemmConfig
from mktune.plan import ConfigValue, KernelPlan, OpPlan
from mktune.shape import Shape

BLOCK_M = (16, 32, 64, 128, 256)
BLOCK_N = (16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192)
"""Beyond 128, where a tile meets two groups of weight scales at places that the template can unroll."""

RESULT_BYTES = 2

SOURCE = "providers/deep_gemm/sm90_fp8_gemm.cu"


class BlockFp8(Provided):
    """See the module."""

    sources = (SOURCE,)
    placements: ClassVar[Mapping[str, Placement]] = {"": TEMPLATE, "p": TEMPLATE}

    def choices(self, op: GemmOp, arch: str) -> dict[str, tuple[ConfigValue, ...]]:
        if arch != "sm_90a":
            return {}
        fields = fields_of(BLOCK_M, BLOCK_N, multicast=True)
        if not op.has_finalizer:
            return fields
        return {**fields, "finalizer": ("kernel",), "finalizer_threads": (128, 256, 512)}

    def kernels(self, op: GemmOp) -> tuple[str, ...]:
        return ("p", "f") if op.has_finalizer else ("",)

    def facts(self, op: GemmOp, kernels: tuple[KernelPlan, ...]) -> tuple[KernelFacts, ...]:
        first, *rest = kernels
        finish = (finalizer_facts(type(op), False, kernel.gdc, kernel.trigger) for kernel in rest)
        return _gemm_facts(type(op), first.trigger), *finish

    def config_violations(self, op: GemmOp, plan: OpPlan, shape: Shape, device: Device) -> list[Violation]:
        if found := field_violations(op, plan, device.arch):
            return found
        tiles = Tiles.of(plan)
        return tiles.violations(device, smem_bytes(op, tiles))

    def workspaces(self, op: GemmOp, plan: OpPlan, shape: Shape) -> tuple[Workspace, ...]:
        if not op.has_finalizer:
            return ()
        return (Workspace("y", RESULT_BYTES * shape.m * op.problem.n),)

    def work(self, op: GemmOp, plan: OpPlan, shape: Shape) -> tuple[KernelWork, ...]:
        tiles, problem = Tiles.of(plan), op.problem
        given = sum(op.ports[port].nbytes(shape) for port in op.activations)
        y = RESULT_BYTES * shape.m * problem.n
        cold, ctas = op.bytes_read(shape), tiles.grid(problem, shape.m)
        ring = min(cold, in_flight(tiles, problem, shape))
        gemm = KernelWork(ctas, tiles.threads, smem_bytes(op, tiles), cold, given + y, ring, op.flops(shape))
        if not op.has_finalizer:
            return (gemm,)
        threads = int(dict(plan.config)["finalizer_threads"])
        made = sum(op.ports[port].nbytes(shape) for port in op.outputs if port not in op.inputs)
        finish = KernelWork(finalizer_ctas(op, plan, shape), threads, FINALIZER_BYTES, 0, y + made, 0, 0)
        return gemm, finish

    def heuristic(self, op: GemmOp, shape: Shape, device: Device) -> OpPlan:
        fields = config_of(pick(Desired(op.problem, shape.m, device.sms)), multicast=True)
        if op.has_finalizer:
            fields |= {"finalizer": "kernel", "finalizer_threads": op.defaults["finalizer_threads"]}
        return OpPlan.of(IMPL, fields)


def smem_bytes(op: GemmOp, tiles: Tiles) -> int:
    """Dynamic shared memory of a CTA of the GEMM."""
    return tiles.smem_bytes(op.problem, RESULT_BYTES, scaled=True)


def finalizer_config(plan: OpPlan) -> GemmConfig:
    """What our finalizer kernel is told: one split, and its threads. Of the tile it knows nothing."""
    tiles, fields = Tiles.of(plan), dict(plan.config)
    threads = int(fields.get("finalizer_threads", 256))
    return GemmConfig(tiles.block_m, tiles.block_n, 1, tiles.stages, 4, str(fields.get("finalizer", "")), threads)


def finalizer_ctas(op: GemmOp, plan: OpPlan, shape: Shape) -> int:
    """CTAs of our finalizer kernel."""
    return op.finalizer_ctas(finalizer_config(plan), shape)


@cache
def _gemm_facts(op: type[GemmOp], trigger: str) -> KernelFacts:
    """It waits before it reads anything."""
    named, results = ("p", ("y",)) if op.problem.finalizer_span else ("", op.outputs)
    accesses = reads((*op.operands, *op.activations), after_wait=True) + writes(results)
    return KernelFacts(named, "", accesses, True, trigger_class(trigger))
