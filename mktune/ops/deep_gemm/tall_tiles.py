"""Sizes of DeepGEMM's GEMM kernels on Blackwell: what a config means in threads, CTAs and shared memory.

They are what the templates of sgl-deep-gemm 0.1.5.post1 lay out (impls/sm100_*_gemm*.cuh). Weights are the tall operand
of the MMA (128 rows), tokens the other, so that few tokens are no waste. `ctas` CTAs go from tile to tile.
"""

from __future__ import annotations

from dataclasses import dataclass

from mktune.graph.tensors import round_up
from mktune.ops.gemm_tiles import STEP_BYTES, Problem
from mktune.plan import ConfigValue, OpPlan

MMA_ROWS = 128
"""Weight rows of a tile."""
STORE_ROWS = 16
"""Tokens whose results leave together, from one of two buffers."""
HALF_THREADS = 128
"""Of each half of a CTA: loading, multiplying and transposing scales; and storing results."""

BLOCK_M = (16, 32, 64, 128)
STAGES = tuple(range(2, 13))
CTAS = (37, 74, 111, 148)

_STORE_BUFFERS, _RESULT_STAGES = 2, 2
_BARRIER = 8


@dataclass(frozen=True)
class TallTiles:
    """A tile of block_m tokens (a multiple of 16 up to 128) by 128 weight rows; `ctas` CTAs go from tile to tile."""

    block_m: int
    stages: int
    ctas: int

    threads = 2 * HALF_THREADS

    @classmethod
    def of(cls, plan: OpPlan) -> TallTiles:
        """Those of a plan whose fields were checked; the finalizer's own are left out."""
        config = dict(plan.config)
        return cls(int(config["block_m"]), int(config["stages"]), int(config["ctas"]))

    @property
    def block_n(self) -> int:
        return MMA_ROWS

    def grid(self, problem: Problem, rows: int) -> int:
        """CTAs that are launched: those beyond one for each tile would end at once."""
        return min(self.ctas, -(-rows // self.block_m) * -(-problem.n // MMA_ROWS))

    def smem_bytes(self, result_bytes: int, scaled: bool) -> int:
        """Dynamic shared memory of a CTA: buffers of results, ring, scales, barriers, a word for tensor memory."""
        results = _STORE_BUFFERS * STORE_ROWS * MMA_ROWS * result_bytes
        slot = (self.block_m + MMA_ROWS) * STEP_BYTES + 3 * _BARRIER
        if scaled:
            slot += 4 * (round_up(self.block_m, MMA_ROWS) + MMA_ROWS)
        return results + self.stages * slot + (2 * _RESULT_STAGES + 2) * _BARRIER


def tall_fields() -> dict[str, tuple[ConfigValue, ...]]:
    """Config fields with their values."""
    return {"block_m": BLOCK_M, "stages": STAGES, "ctas": CTAS}


def tall_default(problem: Problem, rows: int) -> dict[str, ConfigValue]:
    """The fields to start from: a tile as wide as the tokens, and a CTA for each tile as far as there are SMs."""
    block_m = next((size for size in BLOCK_M if size >= rows), BLOCK_M[-1])
    tiles = -(-rows // block_m) * -(-problem.n // MMA_ROWS)
    return {"block_m": block_m, "stages": 6, "ctas": next((ctas for ctas in CTAS if ctas >= tiles), CTAS[-1])}
