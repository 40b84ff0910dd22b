"""D1: the indexer's query: projection, RoPE on the first 64 dims of each head, quantise; and the head weights."""

from __future__ import annotations

from typing import ClassVar

from mktune.graph.tensors import Port
from mktune.ops.dimensions import GROUP, INDEX_DIM, INDEX_HEADS, Q_LORA, ROPE
from mktune.ops.gemm import GemmOp, Problem


class IndexerQ(GemmOp):
    """[M, 2048] e4m3 × [4096, 2048]ᵀ e4m3: 32 heads of 128. w = g · 32^-½ · 128^-½ · scale of the quantised head."""

    title = "indexer_q"
    problem = Problem(n=INDEX_HEADS * INDEX_DIM, k=Q_LORA, element_bytes=1, finalizer_span=INDEX_DIM)
    activations = ("q_lora_q", "q_lora_s")
    operands = ("W_iq", "W_iq_s")
    constants = ("cos", "sin")
    arguments = ("g", "positions")
    inputs = (*activations, *operands, *constants, *arguments)
    outputs = ("qi", "w")
    weights = (*operands, *constants)
    defaults: ClassVar[dict[str, int]] = {"block_n": 128, "split_k": 4, "stages": 4, "warps": 4}
    ports: ClassVar[dict[str, Port]] = {
        "q_lora_q": Port("e4m3", ("m", Q_LORA)),
        "q_lora_s": Port("f32", (Q_LORA // GROUP, "m4")),
        "W_iq": Port("e4m3", (INDEX_HEADS * INDEX_DIM, Q_LORA)),
        "W_iq_s": Port("f32", (INDEX_HEADS * INDEX_DIM // GROUP, Q_LORA // GROUP)),
        "cos": Port("f32", ("kv", ROPE // 2)),
        "sin": Port("f32", ("kv", ROPE // 2)),
        "g": Port("f32", ("m", INDEX_HEADS)),
        "positions": Port("i64", ("m",)),
        "qi": Port("e4m3", ("m", INDEX_HEADS, INDEX_DIM)),
        "w": Port("f32", ("m", INDEX_HEADS)),
    }
