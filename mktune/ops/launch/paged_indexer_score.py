"""Launch of E1 (kernels/standalone/paged_indexer_score.cu, or …_ahead.cu): one CTA per query block and split of a
request's pages.

With impl deep_gemm its kernel, behind one of ours that schedules it (kernels/standalone/paged_score_schedule.cu).
"""

from __future__ import annotations

from mktune.deep_gemm import IMPL
from mktune.device import Device
from mktune.graph.tensors import PAGE, pages_per_request
from mktune.launch import Arg, BufferArg, Launch, ScalarArg, TensorMapArg
from mktune.ops.deep_gemm.scores import SCHEDULE_SOURCE, SCHEDULE_THREADS, numbers, smem_bytes
from mktune.ops.dimensions import INDEX_DIM, INDEX_HEADS, INDEX_PAGE_BYTES
from mktune.ops.launch.bf16 import MMA
from mktune.ops.launch.deep_gemm import paged_scores
from mktune.ops.launch.description import instance, placement
from mktune.ops.paged_indexer_score import (
    AHEAD_SOURCE,
    AT_ONCE,
    QUERY_BYTES,
    SCALE_BYTES,
    PagedIndexerScore,
    ahead,
    config_numbers,
    threads,
)
from mktune.plan import KernelPlan, OpPlan
from mktune.shape import Shape

_PAGE_ROWS = INDEX_PAGE_BYTES // INDEX_DIM  # 64 keys, then their scales in two rows as long as a key
_POOL_ROWS = (2**31 - 1) // _PAGE_ROWS * _PAGE_ROWS  # what a signed row number reaches
_BARRIER_BYTES = 8
_AHEAD = {"half": "mktune::Ahead::kHalf", "page": "mktune::Ahead::kPage", "turns": "mktune::Ahead::kTurns"}


def launches(plan: OpPlan, kernels: tuple[KernelPlan, ...], shape: Shape, device: Device) -> tuple[Launch, ...]:
    """The one kernel of E1, or two. `plan` and `kernels` passed the op's own check."""
    if plan.impl == IMPL:
        return _schedule(plan, kernels[0], shape), paged_scores(plan, kernels[1], shape)
    config, (kernel,) = config_numbers(plan), kernels
    # Asking for pages before the wait is what gdc = prefetch means; the closure rule has judged whether it may.
    early = kernel.gdc == "prefetch"
    # NOTE: the maps over the pool are as long as any pool. An engine's has more pages than a step can name, the block
    # table may name any of them, and what lies outside a map would arrive as zeros without a word.
    args: tuple[Arg, ...] = (
        _rows("index_k_cache", _POOL_ROWS, PAGE, swizzle=128, constant=early),
        _rows("index_k_cache", _POOL_ROWS, _PAGE_ROWS - PAGE, swizzle=0, constant=early),
        _rows("qi", shape.m * INDEX_HEADS, config["q_block"] * INDEX_HEADS, swizzle=128, constant=False),
        BufferArg("w"),
        BufferArg("block_table", constant=True),
        BufferArg("context_lens", constant=True),
        BufferArg("logits"),
        ScalarArg(shape.m),
        ScalarArg(shape.tokens_per_request),
        ScalarArg(pages_per_request(shape)),
        ScalarArg(config["kv_split"] // PAGE),
        ScalarArg(PagedIndexerScore.ports["logits"].size(shape)[1]),
    )
    tile = config["q_block"], config["stages"]
    placed = placement(kernel, prefetches=True)
    if (what := ahead(plan)) != AT_ONCE:
        spec = instance(AHEAD_SOURCE, "paged_indexer_score_ahead", (*tile, _AHEAD[what], *placed), args)
    else:
        mma = MMA["wgmma" if device.arch == "sm_90a" else "mma_sync"]
        spec = instance("standalone/paged_indexer_score.cu", "paged_indexer_score", (mma, *tile, *placed), args)
    blocks = -(-shape.tokens_per_request // config["q_block"])
    grid = (blocks, -(-shape.kv // config["kv_split"]), shape.requests)
    return (Launch(spec, grid, threads(plan), dynamic_smem(plan, ""), args),)


def dynamic_smem(plan: OpPlan, suffix: str) -> int:
    """Bytes of dynamic shared memory of a CTA: `PagedIndexerScore::kBytes`."""
    if plan.impl == IMPL:
        return 0 if suffix else smem_bytes(plan)
    config = config_numbers(plan)
    barriers = _BARRIER_BYTES * (2 * config["stages"] + 2)
    return config["stages"] * INDEX_PAGE_BYTES + SCALE_BYTES + config["q_block"] * QUERY_BYTES + barriers


def _schedule(plan: OpPlan, kernel: KernelPlan, shape: Shape) -> Launch:
    config = numbers(plan)
    tokens = config["q_block"]
    groups = shape.m // tokens
    args: tuple[Arg, ...] = (
        BufferArg("block_table", constant=True),
        BufferArg("context_lens", constant=True),
        *(BufferArg(port) for port in ("lens", "tables", "schedule")),
        ScalarArg(groups),
        ScalarArg(shape.tokens_per_request // tokens),
        ScalarArg(pages_per_request(shape)),
    )
    parameters = (tokens, config["ctas"], *placement(kernel, prefetches=False))
    spec = instance(SCHEDULE_SOURCE, "paged_score_schedule", parameters, args)
    return Launch(spec, (groups + 1, 1, 1), SCHEDULE_THREADS, 0, args)


def _rows(buffer: str, rows: int, box_rows: int, swizzle: int, constant: bool) -> TensorMapArg:
    """`buffer` as rows of 128 bytes, by boxes of `box_rows`."""
    dims, box = (INDEX_DIM, rows), (INDEX_DIM, box_rows)
    return TensorMapArg(buffer, "u8", dims, (INDEX_DIM,), box, swizzle=swizzle, l2=256, constant=constant)
