"""DeepGEMM's block-FP8 GEMM for B0, B1, D0 and D1: its kernel writes y in bf16, our finalizer kernel the op's outputs.

On Hopper the template is sm90_fp8_gemm_1d2d_impl: activation scales 1 × 128, weight scales 128 × 128, both fp32. That
for Blackwell, sm100_fp8_fp4_gemm_1d1d_impl, takes scales that are powers of two only: it is an implementation of the
contract under scale_format ue8m0, and a config of it has no block_n.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import ClassVar

from mktune.access import KernelFacts
from mktune.deep_gemm import IMPL
from mktune.device import Device
from mktune.ops.base import KernelWork, Op, Violation, Workspace
from mktune.ops.checks import field_violations, reads, smem_violations, trigger_class, writes
from mktune.ops.deep_gemm import TEMPLATE, Placement, Provided
from mktune.ops.deep_gemm.heuristic import Desired, pick
from mktune.ops.deep_gemm.tall_tiles import TallTiles, tall_default, tall_fields
from mktune.ops.deep_gemm.tiles import Tiles, config_of, fields_of
from mktune.ops.gemm import FINALIZER_BYTES, GemmOp, finalizer_facts
from mktune.ops.gemm_tiles import STEP_BYTES, GemmConfig
from mktune.ops.scale_formats import FP32, UE8M0
from mktune.plan import ConfigValue, KernelPlan, OpPlan
from mktune.shape import Shape

BLOCK_M = (16, 32, 64, 128, 256)
BLOCK_N = (16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192)
"""Beyond 128, where a tile meets two groups of weight scales at places that the template can unroll."""

RESULT_BYTES = 2

SOURCE = "providers/deep_gemm/sm90_fp8_gemm.cu"
TALL_SOURCE = "providers/deep_gemm/sm100_fp8_gemm.cu"

_HOPPER, _BLACKWELL = "sm_90a", ("sm_100a", "sm_103a")


class BlockFp8(Provided):
    """See the module."""

    sources = (SOURCE, TALL_SOURCE)
    placements: ClassVar[Mapping[str, Placement]] = {"": TEMPLATE, "p": TEMPLATE}

    def choices(self, op: GemmOp, arch: str) -> dict[str, tuple[ConfigValue, ...]]:
        if arch == _HOPPER:
            fields = fields_of(BLOCK_M, BLOCK_N, multicast=True)
        elif arch in _BLACKWELL and op.scale_format == UE8M0:
            fields = tall_fields()
        else:
            return {}
        if not op.has_finalizer:
            return fields
        return {**fields, "finalizer": ("kernel",), "finalizer_threads": (128, 256, 512)}

    def scale_formats(self, op: Op, arch: str) -> tuple[str, ...]:
        return (FP32,) if arch == _HOPPER else (UE8M0,)

    def kernels(self, op: GemmOp) -> tuple[str, ...]:
        return ("p", "f") if op.has_finalizer else ("",)

    def facts(self, op: GemmOp, kernels: tuple[KernelPlan, ...]) -> tuple[KernelFacts, ...]:
        first, *rest = kernels
        finish = (finalizer_facts(type(op), False, kernel.gdc, kernel.trigger) for kernel in rest)
        return _gemm_facts(type(op), first.trigger), *finish

    def config_violations(self, op: GemmOp, plan: OpPlan, shape: Shape, device: Device) -> list[Violation]:
        if found := field_violations(op, plan, device.arch):
            return found
        tiles = tiles_of(plan)
        smem = smem_bytes(op, tiles)
        return tiles.violations(device, smem) if isinstance(tiles, Tiles) else smem_violations(smem, device)

    def workspaces(self, op: GemmOp, plan: OpPlan, shape: Shape) -> tuple[Workspace, ...]:
        if not op.has_finalizer:
            return ()
        return (Workspace("y", RESULT_BYTES * shape.m * op.problem.n),)

    def work(self, op: GemmOp, plan: OpPlan, shape: Shape) -> tuple[KernelWork, ...]:
        tiles, problem = tiles_of(plan), op.problem
        given = sum(op.ports[port].nbytes(shape) for port in op.activations)
        y = RESULT_BYTES * shape.m * problem.n
        cold, ctas = op.bytes_read(shape), tiles.grid(problem, shape.m)
        ring = min(cold, tiles.stages * STEP_BYTES * tiles.block_n * ctas)
        gemm = KernelWork(ctas, tiles.threads, smem_bytes(op, tiles), cold, given + y, ring, op.flops(shape))
        if not op.has_finalizer:
            return (gemm,)
        threads = int(dict(plan.config)["finalizer_threads"])
        made = sum(op.ports[port].nbytes(shape) for port in op.outputs if port not in op.inputs)
        finish = KernelWork(finalizer_ctas(op, plan, shape), threads, FINALIZER_BYTES, 0, y + made, 0, 0)
        return gemm, finish

    def heuristic(self, op: GemmOp, shape: Shape, device: Device) -> OpPlan:
        if device.arch == _HOPPER:
            fields = config_of(pick(Desired(op.problem, shape.m, device.sms)), multicast=True)
        else:
            # NOTE: not DeepGEMM's own choice on Blackwell.
            fields = tall_default(op.problem, shape.m)
        if op.has_finalizer:
            fields |= {"finalizer": "kernel", "finalizer_threads": op.defaults["finalizer_threads"]}
        return OpPlan.of(IMPL, fields)


def tiles_of(plan: OpPlan) -> Tiles | TallTiles:
    """The tile of a plan whose fields were checked, as the template for its architecture takes it."""
    return Tiles.of(plan) if "block_n" in dict(plan.config) else TallTiles.of(plan)


def smem_bytes(op: GemmOp, tiles: Tiles | TallTiles) -> int:
    """Dynamic shared memory of a CTA of the GEMM."""
    if isinstance(tiles, TallTiles):
        return tiles.smem_bytes(RESULT_BYTES, scaled=True)
    return tiles.smem_bytes(op.problem, RESULT_BYTES, scaled=True)


def finalizer_config(plan: OpPlan) -> GemmConfig:
    """What our finalizer kernel is told: one split, and its threads. Of the tile it knows nothing."""
    tiles, fields = tiles_of(plan), dict(plan.config)
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
