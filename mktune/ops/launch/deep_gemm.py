"""Launches of DeepGEMM's kernels: instances of its templates, their parameters, tensor maps, grids.

Parameters and maps are what the templates of sgl-deep-gemm 0.1.5.post1 read: maps are 2-D or 3-D, innermost first, of
boxes of one swizzle atom; what lies outside a tensor arrives as zeros and is not written. N and K are known to the
compiler, M is a parameter, so a kernel serves every M.
"""

from __future__ import annotations

from collections.abc import Sequence

from mktune.graph.tensors import PAGE, pages_per_request, round_up
from mktune.launch import Arg, BufferArg, KernelSpec, Launch, ScalarArg, TensorMapArg
from mktune.ops.deep_gemm.bf16 import SOURCE as BF16_SOURCE
from mktune.ops.deep_gemm.bf16 import Absorb, Gate
from mktune.ops.deep_gemm.block_fp8 import SOURCE, smem_bytes
from mktune.ops.deep_gemm.scores import QUERY_STAGES, SPLIT, THREADS, WARPGROUPS, numbers
from mktune.ops.deep_gemm.scores import SOURCE as SCORES_SOURCE
from mktune.ops.deep_gemm.scores import smem_bytes as score_smem_bytes
from mktune.ops.deep_gemm.tiles import LOADER_THREADS, Tiles
from mktune.ops.dimensions import GROUP, HEAD_DIM, HEADS, INDEX_DIM, INDEX_HEADS, INDEX_PAGE_BYTES, MLA_DIM
from mktune.ops.gemm import GemmOp
from mktune.ops.gemm_tiles import STEP_BYTES
from mktune.ops.paged_indexer_score import PagedIndexerScore
from mktune.plan import KernelPlan, OpPlan
from mktune.shape import Shape

TRIGGER_AFTER_WAIT = "MKTUNE_TRIGGER_AFTER_WAIT"
K_MAJOR, MN_MAJOR = "cute::UMMA::Major::K", "cute::UMMA::Major::MN"
NORMAL, BATCHED = "deep_gemm::GemmType::Normal", "deep_gemm::GemmType::Batched"
BF16 = "cutlass::bfloat16_t"
PLAIN_EPILOGUE = "deep_gemm::epilogue::transform::EpilogueIdentity"

FP32 = "float"

_ATOM = STEP_BYTES // 2  # values of bf16 in a swizzle atom
_POOL_PAGES = (2**31 - 1) // (INDEX_PAGE_BYTES // INDEX_DIM)  # as many as our own kernel reaches
_GRANULARITY = 16  # bytes to which TMA wants a row of scales rounded up


def instance(
    source: str, template: str, parameters: Sequence[int | str], args: Sequence[Arg], kernel: KernelPlan
) -> KernelSpec:
    """The spec of `deep_gemm::template<parameters>`, which kernels/`source` includes."""
    constants = tuple(i for i, arg in enumerate(args) if isinstance(arg, ScalarArg) or arg.constant)
    scalars = tuple(i for i, arg in enumerate(args) if isinstance(arg, ScalarArg))
    defines = ((TRIGGER_AFTER_WAIT, "1"),) if kernel.trigger == "after_wait" else ()
    name = f"deep_gemm::{template}<{', '.join(map(str, parameters))}>"
    return KernelSpec(source, name, defines, constants, scalars)


def fp8_gemm(op: GemmOp, tiles: Tiles, kernel: KernelPlan, shape: Shape, out: str) -> Launch:
    """out bf16 [M, N] = activations · weightsᵀ, both block-FP8."""
    problem, (weights, weight_scales), (codes, scales) = op.problem, op.operands, op.activations
    swizzle = tiles.result_swizzle(2)
    args: tuple[Arg, ...] = (
        BufferArg(weight_scales, constant=True),
        *sizes(shape.m, problem.n, problem.k),
        rows(codes, "u8", shape.m, problem.k, tiles.block_m, constant=False),
        rows(weights, "u8", problem.n, problem.k, tiles.block_n, constant=True),
        results(out, "bf16", shape.m, problem.n, tiles, swizzle),
        row_scales(scales, shape.m, problem.k, tiles.block_m),
    )
    layout = (tiles.block_m, tiles.block_n, GROUP, STEP_BYTES, STEP_BYTES, swizzle, tiles.stages)
    parameters = (K_MAJOR, 0, problem.n, problem.k, 1, *layout, *launched(tiles), NORMAL, BF16, PLAIN_EPILOGUE)
    spec = instance(SOURCE, "sm90_fp8_gemm_1d2d_impl", parameters, args, kernel)
    grid = (tiles.grid(problem, shape.m), 1, 1)
    return Launch(spec, grid, tiles.threads, smem_bytes(op, tiles), args, cluster=tiles.cluster)


def gate(op: GemmOp, plan: OpPlan, kernel: KernelPlan, shape: Shape) -> Launch:
    """C0's results, fp32 [M, N] = activations · weightsᵀ, both bf16."""
    provided, problem, (activations,), (weights,) = Gate(), op.problem, op.activations, op.operands
    tiles, (out,) = Tiles.of(plan), op.outputs
    args: tuple[Arg, ...] = (
        *sizes(shape.m, problem.n, problem.k),
        rows(activations, "bf16", shape.m, problem.k, tiles.block_m, constant=False),
        rows(weights, "bf16", problem.n, problem.k, tiles.block_n, constant=True),
        results(out, "f32", shape.m, problem.n, tiles, swizzle=0),
    )
    return _bf16_gemm(op, tiles, (K_MAJOR, 0, NORMAL, FP32), provided.smem_bytes(op, tiles), args, kernel, shape)


def absorb(op: GemmOp, plan: OpPlan, kernel: KernelPlan, shape: Shape) -> Launch:
    """D2's GEMMs: of each head the first 192 of q times its weights, into the first 512 of mla_q."""
    provided, problem = Absorb(), op.problem
    tiles = Tiles.of(plan)
    swizzle = tiles.result_swizzle(2)
    by_head = (problem.n, problem.k, problem.batch)
    args: tuple[Arg, ...] = (
        *sizes(shape.m, problem.n, problem.k),
        _heads("q", (problem.k, shape.m, HEADS), (HEADS * HEAD_DIM, HEAD_DIM), (_ATOM, tiles.block_m)),
        _heads("W_uk", by_head, (problem.n, problem.n * problem.k), (_ATOM, problem.step_k), constant=True),
        _heads("mla_q", (problem.n, shape.m, HEADS), (HEADS * MLA_DIM, MLA_DIM), (swizzle // 2, tiles.block_m)),
    )
    kind = (MN_MAJOR, swizzle, BATCHED, BF16)
    return _bf16_gemm(op, tiles, kind, provided.smem_bytes(op, tiles), args, kernel, shape)


def _bf16_gemm(
    op: GemmOp,
    tiles: Tiles,
    kind: tuple[str, int, str, str],
    smem: int,
    args: tuple[Arg, ...],
    kernel: KernelPlan,
    shape: Shape,
) -> Launch:
    """kind: where N lies in the weights, swizzle of the results, kind of GEMM, type of the results."""
    problem, (weights_major, swizzle, gemm, result) = op.problem, kind
    layout = (tiles.block_m, tiles.block_n, problem.step_k, STEP_BYTES, STEP_BYTES, swizzle, tiles.stages)
    shapes = (0, problem.n, problem.k, problem.batch)
    parameters = (K_MAJOR, weights_major, *shapes, *layout, *launched(tiles), gemm, "false", result)
    spec = instance(BF16_SOURCE, "sm90_bf16_gemm_impl", parameters, args, kernel)
    return Launch(spec, (tiles.grid(problem, shape.m), 1, 1), tiles.threads, smem, args, cluster=tiles.cluster)


def paged_scores(plan: OpPlan, kernel: KernelPlan, shape: Shape) -> Launch:
    """E1's logits, by groups of tokens that our schedule kernel has laid out."""
    config = numbers(plan)
    tokens, pages = config["q_block"], (INDEX_DIM, PAGE, _POOL_PAGES)
    # NOTE: the maps over the pool are as long as any pool: an engine's has more pages than a step can name.
    page_strides = (INDEX_DIM, INDEX_PAGE_BYTES)
    args: tuple[Arg, ...] = (
        ScalarArg(shape.m // tokens, "u32"),
        ScalarArg(PagedIndexerScore.ports["logits"].size(shape)[1], "u32"),
        ScalarArg(pages_per_request(shape), "u32"),
        BufferArg("lens"),
        BufferArg("logits"),
        BufferArg("tables"),
        ScalarArg(0, "u64"),  # which requests tokens belong to, where they are of any number
        BufferArg("schedule"),
        TensorMapArg("qi", "u8", (INDEX_DIM, shape.m * INDEX_HEADS), (INDEX_DIM,), (INDEX_DIM, tokens * INDEX_HEADS)),
        TensorMapArg("index_k_cache", "u8", pages, page_strides, (INDEX_DIM, PAGE, 1)),
        TensorMapArg(
            "index_k_cache", "f32", (PAGE, _POOL_PAGES), page_strides[1:], (PAGE, 1), swizzle=0, offset=PAGE * INDEX_DIM
        ),
        TensorMapArg("w", "f32", (INDEX_HEADS, shape.m), (4 * INDEX_HEADS,), (INDEX_HEADS, tokens), swizzle=0),
    )
    rings = (QUERY_STAGES, config["stages"], SPLIT)
    parameters = (tokens, INDEX_HEADS, INDEX_DIM, PAGE, "false", "false", *rings, LOADER_THREADS, 128 * WARPGROUPS)
    spec = instance(SCORES_SOURCE, "sm90_fp8_paged_mqa_logits", (*parameters, FP32), args, kernel)
    return Launch(spec, (config["ctas"], 1, 1), THREADS, score_smem_bytes(plan), args)


def launched(tiles: Tiles) -> tuple[int | str, ...]:
    """Template parameters for threads of the two roles, multicast and number of CTAs."""
    on_activations = str(tiles.multicast == "activations").lower()
    return LOADER_THREADS, tiles.math_threads, tiles.cluster, on_activations, tiles.ctas


def sizes(m: int, n: int, k: int) -> tuple[Arg, ...]:
    """The layout of grouped GEMMs, which this is none of, then M, N and K."""
    return (ScalarArg(0, "u64"), *(ScalarArg(size, "u32") for size in (m, n, k)))


def rows(buffer: str, dtype: str, count: int, k: int, block: int, constant: bool) -> TensorMapArg:
    """Row-major [count, k] by boxes of `block` rows and one 128-byte swizzle atom of K."""
    size = {"u8": 1, "bf16": 2}[dtype]
    box = (STEP_BYTES // size, block)
    return TensorMapArg(buffer, dtype, (k, count), (k * size,), box, swizzle=STEP_BYTES, l2=256, constant=constant)


def _heads(
    buffer: str, dims: tuple[int, int, int], strides: tuple[int, int], box: tuple[int, int], constant: bool = False
) -> TensorMapArg:
    """bf16 [heads, rows, columns] by boxes of one head. `strides` are in elements, of a row and of a head."""
    row, head = strides
    return TensorMapArg(
        buffer, "bf16", dims, (2 * row, 2 * head), (*box, 1), swizzle=2 * box[0], l2=256, constant=constant
    )


def results(buffer: str, dtype: str, m: int, n: int, tiles: Tiles, swizzle: int) -> TensorMapArg:
    """Row-major [m, n], written by boxes of block_m rows and one swizzle atom, or all columns of a tile without one."""
    size = {"bf16": 2, "f32": 4}[dtype]
    columns = swizzle // size if swizzle else tiles.block_n
    return TensorMapArg(buffer, dtype, (n, m), (n * size,), (columns, tiles.block_m), swizzle=swizzle, l2=256)


def row_scales(buffer: str, m: int, k: int, block: int) -> TensorMapArg:
    """fp32 scales of activations, column-major: [groups of K, M rounded up], by boxes of `block` rows of one group."""
    padded = round_up(m, _GRANULARITY // 4)
    return TensorMapArg(buffer, "f32", (padded, -(-k // GROUP)), (4 * padded,), (block, 1), swizzle=0, l2=256)
