"""What DeepGEMM itself would run on Hopper: the tile that its host code of sgl-deep-gemm 0.1.5.post1 picks for a GEMM.

It ranks every legal layout by the cycles that its bytes take in L1 and in L2, stretched by how badly the last wave of
CTAs fills the GPU; the first of equals is taken, and as many stages as shared memory holds. Its numbers:

    L2    min(64 bytes per SM, 8e6 / 1.3e3) a cycle; activations and weights of a tile, less what multicast saves
    L1    128 bytes per SM a cycle; those bytes twice (in, and to the tensor cores, at 64 rows or more), and the results
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mktune.graph.tensors import round_up
from mktune.ops.deep_gemm.tiles import MMA_M, Tiles
from mktune.ops.gemm_tiles import STEP_BYTES, Problem

_SMEM = 232448
_MAX_STAGES = 16
_NEVER = 2**63 - 1


@dataclass(frozen=True)
class Desired:
    """One GEMM as DeepGEMM's host code describes it.

    result_bytes  of an element of the results: 2 (bf16) or 4 (fp32)
    scaled        block-FP8; else bf16
    n_major       weights lie with N innermost
    """

    problem: Problem
    rows: int
    sms: int
    result_bytes: int = 2
    scaled: bool = True
    n_major: bool = False


def pick(wanted: Desired) -> Tiles:
    """The layout that DeepGEMM launches for it: every SM gets a CTA."""
    return min(_candidates(wanted), key=lambda tiles: _cycles(wanted, tiles))


def _candidates(wanted: Desired) -> Iterator[Tiles]:
    """Legal layouts, in the order in which they are looked at."""
    rows, batched = wanted.rows, wanted.problem.batch > 1
    block_ms = [64, 128, *([16] if rows <= 16 else []), *([32] if rows <= 32 else [])]
    block_ms += [256] if wanted.result_bytes == 2 else []
    pairs = ("none",) if batched or wanted.sms % 2 else ("none", "activations", "weights")
    for multicast in pairs:
        for block_m in block_ms:
            for block_n in range(16, (192 if wanted.scaled else 256) + 1, 16):
                tiles = Tiles(block_m, block_n, _MAX_STAGES, wanted.sms, multicast)
                if _is_legal(wanted, tiles):
                    tiles = replace(tiles, stages=_stages(wanted, tiles))
                    if tiles.stages >= (4 if block_m * block_n < 128 * 192 else 3):
                        yield tiles


def _is_legal(wanted: Desired, tiles: Tiles) -> bool:
    beyond = tiles.block_n - STEP_BYTES
    if wanted.scaled and beyond > 0 and tiles.block_n % beyond and STEP_BYTES % beyond:
        return False
    if wanted.n_major and tiles.block_n * wanted.problem.element_bytes % 64:
        return False  # its swizzle would be below 64 bytes
    return tiles.block_m <= 128 or tiles.block_n <= 128


def _stages(wanted: Desired, tiles: Tiles) -> int:
    """As many as shared memory holds; barriers are counted for the most that there may be."""
    slot = (tiles.block_m + tiles.block_n) * STEP_BYTES + (round_up(4 * tiles.block_m, 128) if wanted.scaled else 0)
    rest = round_up(tiles.block_m * tiles.block_n * wanted.result_bytes, 1024) + _MAX_STAGES * 2 * 8
    if wanted.scaled:
        rest += round_up(wanted.problem.k // 128 * 4 * (2 if STEP_BYTES % tiles.block_n else 1), 8)
    return min((_SMEM - rest) // slot, _MAX_STAGES)


def _cycles(wanted: Desired, tiles: Tiles) -> int:
    blocks, sms = tiles.blocks(wanted.problem, wanted.rows), wanted.sms
    waves = -(-blocks // sms)
    if tiles.cluster > 1 and waves <= 1:
        return _NEVER
    m, n, k = tiles.block_m, tiles.block_n, wanted.problem.k * wanted.problem.element_bytes
    results = m * n * wanted.result_bytes
    shared_m = m // (2 if tiles.multicast == "activations" else 1)
    shared_n = n // (2 if tiles.multicast == "weights" else 1)
    l2 = (k * (shared_m + shared_n) + results) * blocks // int(min(64 * sms, 8e6 / 1.3e3))
    l1 = (k * (m + n) + k * (max(MMA_M, m) + n) + 2 * results) * blocks // (128 * sms)
    return int(_single(_single(max(l1, l2)) / _single(blocks / (waves * sms))))


def _single(value: float) -> float:
    """Rounded to fp32, in which DeepGEMM's host code divides."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded
