"""B1: the indexer's key: projection, LayerNorm, RoPE on the first 64 dims, quantise, page write."""

from __future__ import annotations

from typing import ClassVar

from mktune.graph.tensors import Port
from mktune.ops.dimensions import GROUP, HIDDEN, INDEX_DIM, INDEX_PAGE_BYTES, ROPE
from mktune.ops.gemm import GemmOp, Problem


class IndexerK(GemmOp):
    """[M, 6144] e4m3 × [128, 6144]ᵀ e4m3. One key of 128 a row, written as e4m3 and one fp32 scale."""

    title = "indexer_k"
    problem = Problem(n=INDEX_DIM, k=HIDDEN, element_bytes=1, finalizer_span=INDEX_DIM)
    activations = ("h_q", "h_s")
    operands = ("W_k", "W_k_s")
    constants = ("k_ln_w", "k_ln_b", "cos", "sin")
    arguments = ("positions", "slots")
    inputs = (*activations, *operands, *constants, *arguments, "index_k_cache")
    outputs = ("index_k_cache",)
    weights = (*operands, *constants)
    defaults: ClassVar[dict[str, int]] = {"block_n": 64, "split_k": 12, "stages": 4, "warps": 4}
    ports: ClassVar[dict[str, Port]] = {
        "h_q": Port("e4m3", ("m", HIDDEN)),
        "h_s": Port("f32", (HIDDEN // GROUP, "m4")),
        "W_k": Port("e4m3", (INDEX_DIM, HIDDEN)),
        "W_k_s": Port("f32", (INDEX_DIM // GROUP, HIDDEN // GROUP)),
        "k_ln_w": Port("f32", (INDEX_DIM,)),
        "k_ln_b": Port("f32", (INDEX_DIM,)),
        "cos": Port("f32", ("kv", ROPE // 2)),
        "sin": Port("f32", ("kv", ROPE // 2)),
        "positions": Port("i64", ("m",)),
        "slots": Port("i64", ("m",)),
        "index_k_cache": Port("u8", ("pages", INDEX_PAGE_BYTES)),
    }
