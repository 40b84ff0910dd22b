"""Sizes of DeepGEMM's GEMM kernels on Hopper: what a config means in threads, CTAs, shared memory and tile layout.

They are what the templates of sgl-deep-gemm 0.1.5.post1 lay out (impls/sm90_*_gemm*.cuh). Tokens are the tall operand:
a tile is block_m tokens by block_n weight rows, through a ring of `stages` slots of 128 bytes of K. `ctas` CTAs go from
tile to tile. Two CTAs of a cluster may load one operand once for both (`multicast`).
"""

from __future__ import annotations

from dataclasses import dataclass

from mktune.device import Device
from mktune.graph.tensors import round_up
from mktune.ops.base import Violation
from mktune.ops.checks import smem_violations
from mktune.ops.gemm_tiles import STEP_BYTES, Problem
from mktune.plan import ConfigValue, OpPlan
from mktune.shape import Shape

MMA_M = 64
"""Rows of a wgmma: with fewer tokens in a tile it multiplies what lies behind them in shared memory too."""

LOADER_THREADS = 128
MULTICAST = ("none", "activations", "weights")
STAGES = tuple(range(2, 17))
CTAS = (32, 64, 96, 128, 132)

_SWIZZLES = (128, 64, 32)  # bytes


@dataclass(frozen=True)
class Tiles:
    """The fields of a plan as numbers; where it does not say, as many CTAs as there may be."""

    block_m: int
    block_n: int
    stages: int
    ctas: int = CTAS[-1]
    multicast: str = "none"

    @classmethod
    def of(cls, plan: OpPlan) -> Tiles:
        """Those of a plan whose fields were checked; the finalizer's own are left out."""
        config = {name: value for name, value in plan.config if name in cls.__dataclass_fields__}
        return cls(**config)  # type: ignore[arg-type]

    @property
    def math_threads(self) -> int:
        return 128 if self.block_m <= MMA_M else 256

    @property
    def threads(self) -> int:
        return LOADER_THREADS + self.math_threads

    @property
    def cluster(self) -> int:
        return 1 if self.multicast == "none" else 2

    def blocks(self, problem: Problem, rows: int) -> int:
        """Tiles of all batches."""
        return -(-rows // self.block_m) * -(-problem.n // self.block_n) * problem.batch

    def grid(self, problem: Problem, rows: int) -> int:
        """CTAs that are launched: those beyond one for each tile would end at once."""
        return min(self.ctas, round_up(self.blocks(problem, rows), self.cluster))

    def result_swizzle(self, element_bytes: int) -> int:
        """Swizzle of the tile of results in shared memory, bytes; fp32 results have none."""
        if element_bytes == 4:
            return 0
        return next(size for size in _SWIZZLES if self.block_n * element_bytes % size == 0)

    def smem_bytes(self, problem: Problem, result_bytes: int, scaled: bool) -> int:
        """Dynamic shared memory of a CTA: results, ring, scales of activations and weights, barriers.

        result_bytes  of one element; `scaled`: a block-FP8 GEMM, whose weight scales of all K stay in shared memory
        """
        results = round_up(self.block_m * self.block_n * result_bytes, 1024)
        slot = (self.block_m + self.block_n) * STEP_BYTES + 2 * 8
        if not scaled:
            return results + self.stages * slot
        slot += round_up(4 * self.block_m, 128)
        groups = 1 if STEP_BYTES % self.block_n == 0 else 2  # of weight rows that a tile may meet
        return results + self.stages * slot + round_up(4 * groups * -(-problem.k // 128), 8)

    def violations(self, device: Device, smem: int) -> list[Violation]:
        """What is wrong with this tile. More stages than a tile has steps are of use: the next tile's loads follow."""
        found = smem_violations(smem, device)
        if self.block_m + self.stages * self.block_n < MMA_M:
            found.append(Violation("stages", "", f"an MMA of {MMA_M} rows reaches beyond the ring: use more stages"))
        if self.block_m > 128 and self.block_n > 128:
            found.append(Violation("tile", "", f"{self.block_m} × {self.block_n}: one of the two must be 128 or less"))
        if self.ctas > device.sms:
            found.append(Violation("ctas", "", f"{self.ctas} CTAs, {device.name} has {device.sms} SMs"))
        if self.ctas % self.cluster:
            found.append(Violation("ctas", "", f"{self.ctas} CTAs cannot be paired for multicast"))
        return found


def fields_of(
    block_m: tuple[ConfigValue, ...], block_n: tuple[ConfigValue, ...], multicast: bool
) -> dict[str, tuple[ConfigValue, ...]]:
    """Config fields with their values; `multicast`: templates that know it."""
    fields: dict[str, tuple[ConfigValue, ...]] = {
        "block_m": block_m,
        "block_n": block_n,
        "stages": STAGES,
        "ctas": CTAS,
    }
    return {**fields, "multicast": MULTICAST} if multicast else fields


def config_of(tiles: Tiles, multicast: bool) -> dict[str, ConfigValue]:
    """The fields of a plan that say the same; of the numbers of CTAs that a plan can have, the next lower one."""
    ctas = max((count for count in CTAS if count <= tiles.ctas), default=CTAS[0])
    fields: dict[str, ConfigValue] = {
        "block_m": tiles.block_m,
        "block_n": tiles.block_n,
        "stages": tiles.stages,
        "ctas": ctas,
    }
    return {**fields, "multicast": tiles.multicast} if multicast else fields


def in_flight(tiles: Tiles, problem: Problem, shape: Shape) -> int:
    """Weight bytes that the rings of all CTAs hold."""
    return tiles.stages * STEP_BYTES * tiles.block_n * tiles.grid(problem, shape.m)
