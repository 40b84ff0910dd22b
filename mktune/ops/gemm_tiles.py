"""Sizes of a GEMM and of its tiles: what a config means in threads, steps of K, shared memory and registers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from mktune.graph.tensors import round_up
from mktune.plan import Config, OpPlan
from mktune.shape import Shape

STEP_BYTES = 128
"""Bytes of K in one slot of the ring: one 128-byte swizzle atom, one scale group of e4m3."""

LOADER_WARPS = 2

BARRIERS = 3
"""mbarriers of a slot: weights full, activations full, empty."""

SCALE_BARRIERS = 2
"""mbarriers of a tile's row scales: full, empty."""


@dataclass(frozen=True)
class Problem:
    """Sizes of one GEMM: y[b, m, n] = Σ_k a[b, m, k] · w[b, n, k].

    finalizer_span  columns that a row's finish needs together (0: the op has no finalizer)
    """

    n: int
    k: int
    element_bytes: int
    batch: int = 1
    finalizer_span: int = 0

    @cached_property
    def step_k(self) -> int:
        """Elements of K in one slot."""
        return STEP_BYTES // self.element_bytes

    @cached_property
    def steps(self) -> int:
        """Slots that all of K goes through."""
        return self.k // self.step_k

    @cached_property
    def split_unit(self) -> int:
        """Elements of K that one split has at least: a scale group, or a slot where K has no whole groups."""
        return 128 if self.k % 128 == 0 else self.step_k

    @cached_property
    def groups(self) -> int:
        """What split_k must divide."""
        return self.k // self.split_unit


class GemmConfig(NamedTuple):
    """The fields of a GEMM's plan as numbers."""

    block_m: int
    block_n: int
    split_k: int
    stages: int
    warps: int
    finalizer: str = ""
    finalizer_threads: int = 256
    schedule: str = "one_tile"
    ctas: int = 0

    @classmethod
    def of(cls, plan: OpPlan) -> GemmConfig:
        """The config of a plan whose fields were checked (`field_violations`)."""
        return _read(plan.config)

    @property
    def threads(self) -> int:
        """Threads of a CTA: the consumers and the two loaders."""
        return 32 * (self.warps + LOADER_WARPS)

    @property
    def splits_steps(self) -> bool:
        """Two warpgroups on 64 columns share the tile by steps of K; else each has its own columns."""
        return self.warps == 8 and self.block_n == 64

    @property
    def accumulators(self) -> int:
        """fp32 sums that a thread keeps through the main loop."""
        warpgroups = 1 if self.splits_steps else self.warps // 4
        return self.block_m * self.block_n // (128 * warpgroups)

    @property
    def ring_bytes(self) -> int:
        """The ring's tiles alone."""
        return self.stages * STEP_BYTES * (self.block_n + self.block_m)

    def smem_bytes(self, steps: int = 0) -> int:
        """Dynamic shared memory of a CTA that goes through `steps` slots, bytes.

        The ring of tiles, the row scales of all steps, barriers, where a second warpgroup hands over its sums, and a
        last arriver's flag (which CTAs of one tile without a finalizer keep in the ring).
        """
        ring = self.ring_bytes + self.stages * 8 * BARRIERS + steps * 4 * self.block_m + 8 * SCALE_BARRIERS
        exchange = 4 * self.block_m * self.block_n if self.splits_steps else 0
        has_flag = self.finalizer == "last_arriver" or (self.schedule != "one_tile" and not self.finalizer)
        return round_up(ring, 128) + exchange + (16 if has_flag else 0)

    def tiles(self, problem: Problem, shape: Shape) -> tuple[int, int]:
        """Row blocks and column blocks, all batches together."""
        return -(-shape.m // self.block_m), self.column_blocks(problem)

    def column_blocks(self, problem: Problem) -> int:
        """All batches together."""
        return -(-problem.n // self.block_n) * problem.batch


@lru_cache(maxsize=1 << 12)
def _read(config: Config) -> GemmConfig:
    """A search asks for the same ones again and again."""
    return GemmConfig(**dict(config))  # type: ignore[arg-type]
