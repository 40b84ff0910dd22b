"""DeepGEMM's bf16 GEMM for C0 and D2 (template sm90_bf16_gemm_impl).

C0: fp32 results, right as they are; without splits of K only a tile or two for a block of rows. D2: one GEMM for each
head, whose results go to where they belong in the rows of mla_q; RoPE of each head's last 64 is a kernel of ours.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import cache
from typing import ClassVar

from mktune.access import KernelFacts
from mktune.deep_gemm import IMPL
from mktune.device import Device
from mktune.ops.base import KernelWork, Violation, Workspace
from mktune.ops.checks import field_violations, reads, trigger_class, writes
from mktune.ops.deep_gemm import SMALL, TEMPLATE, Placement, Provided
from mktune.ops.deep_gemm.heuristic import Desired, pick
from mktune.ops.deep_gemm.tiles import Tiles, config_of, fields_of, in_flight
from mktune.ops.dimensions import HEADS, ROPE
from mktune.ops.gemm import GemmOp
from mktune.plan import TRIGGERS, ConfigValue, KernelPlan, OpPlan
from mktune.shape import Shape

SOURCE = "providers/deep_gemm/sm90_bf16_gemm.cu"
ROPE_SOURCE = "standalone/q_absorb_rope.cu"
ROPE_THREADS = 128
ROPE_TOKENS = ROPE_THREADS // (ROPE // 4)
"""Tokens of a CTA of our RoPE kernel: a thread turns four values."""


class Bf16(Provided):
    """What both have in common. A subclass says the tiles, the kernels and their accesses."""

    tiles: ClassVar[dict[str, tuple[ConfigValue, ...]]]
    result_bytes: ClassVar[int]
    n_major: ClassVar[bool]

    def choices(self, op: GemmOp, arch: str) -> dict[str, tuple[ConfigValue, ...]]:
        return self.tiles if arch == "sm_90a" else {}

    def config_violations(self, op: GemmOp, plan: OpPlan, shape: Shape, device: Device) -> list[Violation]:
        if found := field_violations(op, plan, device.arch):
            return found
        tiles = Tiles.of(plan)
        found = tiles.violations(device, self.smem_bytes(op, tiles))
        return [one for one in found if one.rule != "ctas" or "ctas" in self.tiles]

    def workspaces(self, op: GemmOp, plan: OpPlan, shape: Shape) -> tuple[Workspace, ...]:
        return ()

    def smem_bytes(self, op: GemmOp, tiles: Tiles) -> int:
        """Dynamic shared memory of a CTA of the GEMM."""
        return tiles.smem_bytes(op.problem, self.result_bytes, scaled=False)

    def heuristic(self, op: GemmOp, shape: Shape, device: Device) -> OpPlan:
        wanted = Desired(op.problem, shape.m, device.sms, self.result_bytes, scaled=False, n_major=self.n_major)
        fields = config_of(pick(wanted), multicast=False)
        return OpPlan.of(IMPL, {name: value for name, value in fields.items() if name in self.tiles})

    def _gemm_work(self, op: GemmOp, plan: OpPlan, shape: Shape, cold: int, warm: int) -> KernelWork:
        tiles, problem = Tiles.of(plan), op.problem
        ring = min(cold, in_flight(tiles, problem, shape))
        ctas, smem = tiles.grid(problem, shape.m), self.smem_bytes(op, tiles)
        return KernelWork(ctas, tiles.threads, smem, cold, warm, ring, op.flops(shape))

    @abstractmethod
    def facts(self, op: GemmOp, kernels: tuple[KernelPlan, ...]) -> tuple[KernelFacts, ...]:
        """Of its GEMM kernel, and of ours where there is one."""


class Gate(Bf16):
    """C0."""

    sources = (SOURCE,)
    placements: ClassVar[Mapping[str, Placement]] = {"": TEMPLATE}
    result_bytes, n_major = 4, False
    tiles: ClassVar[dict[str, tuple[ConfigValue, ...]]] = {
        name: values for name, values in fields_of((16, 32, 64, 128), (16, 32), False).items() if name != "ctas"
    }

    def kernels(self, op: GemmOp) -> tuple[str, ...]:
        return ("",)

    def facts(self, op: GemmOp, kernels: tuple[KernelPlan, ...]) -> tuple[KernelFacts, ...]:
        return (_gemm_facts(type(op), kernels[0].trigger),)

    def work(self, op: GemmOp, plan: OpPlan, shape: Shape) -> tuple[KernelWork, ...]:
        warm = sum(op.ports[port].nbytes(shape) for port in (*op.activations, *op.outputs))
        return (self._gemm_work(op, plan, shape, op.bytes_read(shape), warm),)


class Absorb(Bf16):
    """D2. The GEMM is kernel "", RoPE kernel "r": they write different columns of the same rows."""

    sources = (SOURCE, ROPE_SOURCE)
    placements: ClassVar[Mapping[str, Placement]] = {"": TEMPLATE, "r": (SMALL[0], TRIGGERS)}
    result_bytes, n_major = 2, True
    tiles: ClassVar[dict[str, tuple[ConfigValue, ...]]] = fields_of((16, 32, 64, 128, 256), (64, 128, 256), False)

    def kernels(self, op: GemmOp) -> tuple[str, ...]:
        return ("", "r")

    def facts(self, op: GemmOp, kernels: tuple[KernelPlan, ...]) -> tuple[KernelFacts, ...]:
        gemm, rope = kernels
        return _gemm_facts(type(op), gemm.trigger), _rope_facts(type(op), rope.gdc, rope.trigger)

    def work(self, op: GemmOp, plan: OpPlan, shape: Shape) -> tuple[KernelWork, ...]:
        weights = sum(op.ports[port].nbytes(shape) for port in op.operands)
        given = sum(op.ports[port].nbytes(shape) for port in op.activations)
        made = sum(op.ports[port].nbytes(shape) for port in op.outputs)
        turned = 2 * shape.m * HEADS * ROPE  # bytes
        rope = KernelWork(
            ctas=HEADS * -(-shape.m // ROPE_TOKENS),
            threads=ROPE_THREADS,
            smem_bytes=0,
            cold_bytes=op.bytes_read(shape) - weights,
            warm_bytes=2 * turned,
            prefetch_bytes=0,
            flops=0,
        )
        return self._gemm_work(op, plan, shape, weights, given + made - 2 * turned), rope


@cache
def _gemm_facts(op: type[GemmOp], trigger: str) -> KernelFacts:
    """It waits before it reads anything."""
    accesses = reads((*op.operands, *op.activations), after_wait=True) + writes(op.outputs)
    return KernelFacts("", "", accesses, True, trigger_class(trigger))


@cache
def _rope_facts(op: type[GemmOp], gdc: str, trigger: str) -> KernelFacts:
    early = reads((*op.constants, *op.arguments), after_wait=gdc == "entry")
    accesses = early + reads(op.activations, after_wait=True) + writes(op.outputs)
    return KernelFacts("r", "", accesses, True, trigger_class(trigger))
