"""How tiles are shared out where a GEMM has fewer CTAs than tiles (device side: kernels/standalone/gemm_schedules.cuh).

one_tile     a CTA for each tile and split of K; a config does not name it
persistent   at most `ctas` CTAs: each takes every ctas-th tile and split, its loaders running ahead into the next one
stream_k     exactly `ctas` CTAs: the steps of K of all tiles stand in one line, of which each CTA has an even share, so
             that no CTA is idle while others finish a last round of tiles. A tile is then in pieces, one for each CTA
             that has some of it. Pieces are partial sums, added in their order: by the finalizer kernel, which reads as
             many of every tile and finds zeros for those that a tile does not have; or, where an op has none, by the
             last piece of a tile to arrive. No CTA waits for another
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from mktune.ops.base import Violation
from mktune.ops.gemm_tiles import GemmConfig, Problem
from mktune.plan import OpPlan
from mktune.shape import Shape

ONE_TILE, PERSISTENT, STREAM_K = "one_tile", "persistent", "stream_k"

SCHEDULES = (PERSISTENT, STREAM_K)

CTAS = {"sm_90a": (33, 66, 99, 132, 264)}
OTHER_CTAS = (37, 74, 111, 148, 296)
"""CTAs of a grid: a quarter, half, three quarters, one and two for each SM of an H200; else of a B300."""

MAX_PIECES = 16
"""Pieces of a tile: what a finalizer kernel adds at most, and so what partial sums have room for."""


MAX_SUMS = {("wgmma", 4): 64, ("wgmma", 8): 64, ("mma_sync", 4): 32, ("mma_sync", 8): 16}
"""Sums that a thread of a block-FP8 GEMM may hold beside its place in the schedule, by impl and warps: beyond them
tiles spill more (compiled for sm_90a and sm_103a). bf16 products need no registers of their own: no tile spills."""


FP8_SOURCE, BF16_SOURCE = SOURCES = ("standalone/persistent_gemm.cu", "standalone/persistent_bf16_gemm.cu")
"""Under kernels/: what ops with a schedule are compiled from, beside their own sources."""


def has_schedule(ops: Iterable[OpPlan]) -> bool:
    """Whether some of these are compiled from SOURCES."""
    return any(name == "schedule" for op in ops for name, _ in op.config)


class Shares(NamedTuple):
    """Work in `ctas` even shares: `share` for each CTA, and one more for the first `longer` ones.

    m_tiles  row blocks, by which tiles are counted first
    """

    ctas: int
    share: int
    longer: int
    m_tiles: int

    @classmethod
    def of(cls, config: GemmConfig, problem: Problem, row_blocks: int) -> Shares:
        """Tiles and splits of the CTAs of a persistent GEMM, or steps of K of those of a stream_k one."""
        things = work_items(config, problem, row_blocks)
        ctas = max(1, min(config.ctas, things))
        return cls(ctas, things // ctas, things % ctas, row_blocks)

    @property
    def most(self) -> int:
        """The largest share."""
        return self.share + (self.longer > 0)

    @property
    def m_tiles_inverse(self) -> int:
        """2^32 / m_tiles, rounded up: the device divides by it."""
        return -(-(1 << 32) // self.m_tiles)


def work_items(config: GemmConfig, problem: Problem, row_blocks: int) -> int:
    """What a schedule shares out: tiles and splits, or steps of K."""
    tiles = row_blocks * config.column_blocks(problem)
    return tiles * (problem.steps if config.schedule == STREAM_K else config.split_k)


def longest_steps(config: GemmConfig, problem: Problem, row_blocks: int) -> int:
    """Steps of K of the CTA that has most."""
    if config.schedule == ONE_TILE:
        return problem.steps // config.split_k
    most = Shares.of(config, problem, row_blocks).most
    return most if config.schedule == STREAM_K else most * (problem.steps // config.split_k)


def partial_sums(config: GemmConfig, problem: Problem, shape: Shape) -> int:
    """Sums of a tile that are added up, each another CTA's: splits of K, or the most pieces that a tile may be in."""
    if config.schedule != STREAM_K:
        return config.split_k
    shares = Shares.of(config, problem, config.tiles(problem, shape)[0])
    return min(shares.ctas, (problem.steps - 2) // shares.share + 2)


@lru_cache(maxsize=1 << 12)
def added_pieces(config: GemmConfig, problem: Problem, row_blocks: int) -> int:
    """Pieces that a stream_k GEMM of so many row blocks leaves for the last one of their tile to add up.

    All pieces of tiles that have more than one: each CTA but the first that begins inside a tile begins a piece of it.
    """
    shares = Shares.of(config, problem, row_blocks)
    begun = [cta * shares.share + min(cta, shares.longer) for cta in range(shares.ctas)]
    inside = [at // problem.steps for at in begun if at % problem.steps]
    return len(inside) + len(set(inside))


def schedule_violations(impl: str, config: GemmConfig, problem: Problem, shape: Shape) -> list[Violation]:
    """Schedules that do not exist, or that do what a config without them does."""
    if config.schedule == ONE_TILE:
        return [Violation("schedule", "", "CTAs are counted with a schedule only")] if config.ctas else []
    if not config.ctas:
        return [Violation("schedule", "", f"{config.schedule} needs the number of its ctas")]
    if message := _unfinished(config, problem):
        return [Violation("schedule", "", message)]
    if problem.element_bytes == 1 and config.accumulators > MAX_SUMS[impl, config.warps]:
        message = f"{config.block_m} × {config.block_n} with {config.warps} warps spills under a schedule"
        return [Violation("tile", "", message)]
    row_blocks, _ = config.tiles(problem, shape)
    items = work_items(config, problem, row_blocks)
    if config.schedule == PERSISTENT:
        message = f"{config.ctas} CTAs for {items} tiles and splits: leave the schedule out"
        return [Violation("schedule", "", message)] if config.ctas >= items else []
    if config.split_k != 1:
        return [Violation("schedule", "", "stream_k splits K by itself: split_k = 1")]
    return _stream_k_violations(config, problem, shape, items)


def _unfinished(config: GemmConfig, problem: Problem) -> str:
    """Why the sums of a schedule would not be finished as the config says; empty where they are."""
    if problem.finalizer_span == 0:  # nothing to finish but sums, which the last CTA to arrive adds up
        return "CTAs of a cluster have one tile: use finalizer = last_arriver" if config.finalizer == "cluster" else ""
    if config.finalizer == "kernel":
        return ""
    return f"{config.schedule} leaves rows to a finalizer kernel, not to finalizer = {config.finalizer}"


def _stream_k_violations(config: GemmConfig, problem: Problem, shape: Shape, items: int) -> list[Violation]:
    if config.ctas > items:
        return [Violation("schedule", "", f"{config.ctas} CTAs share {items} steps of K: use fewer")]
    shares = Shares.of(config, problem, config.tiles(problem, shape)[0])
    if shares.longer == 0 and 0 in (problem.steps % shares.share, shares.share % problem.steps):
        message = f"each CTA has {shares.share} of a tile's {problem.steps} steps of K: as with split_k or persistent"
        return [Violation("schedule", "", message)]
    pieces = partial_sums(config, problem, shape)
    if pieces > MAX_PIECES:
        return [Violation("schedule", "", f"tiles in up to {pieces} pieces, {MAX_PIECES} can be added: use fewer ctas")]
    return []
