"""B0: the fused QKV-A projection, then per row: RMSNorm and quantise q_lora, RMSNorm kv, RoPE k_pe, MLA cache write."""

from __future__ import annotations

from typing import ClassVar

from mktune.graph.tensors import Port
from mktune.ops.dimensions import GROUP, HIDDEN, KV_LORA, MLA_DIM, PAGE, Q_LORA, QKV_A, ROPE
from mktune.ops.gemm import GemmOp, Problem


class QkvA(GemmOp):
    """[M, 6144] e4m3 × [2624, 6144]ᵀ e4m3. A row's norms span every column, hence every tile of the row."""

    title = "qkv_a"
    problem = Problem(n=QKV_A, k=HIDDEN, element_bytes=1, finalizer_span=QKV_A)
    activations = ("h_q", "h_s")
    operands = ("W_a", "W_a_s")
    constants = ("q_norm_w", "kv_norm_w", "cos", "sin")
    arguments = ("positions", "slots")
    inputs = (*activations, *operands, *constants, *arguments, "mla_cache")
    outputs = ("q_lora_q", "q_lora_s", "mla_cache")
    weights = (*operands, *constants)
    defaults: ClassVar[dict[str, int]] = {"block_n": 128, "split_k": 6, "stages": 6, "warps": 4}
    ports: ClassVar[dict[str, Port]] = {
        "h_q": Port("e4m3", ("m", HIDDEN)),
        "h_s": Port("f32", (HIDDEN // GROUP, "m4")),
        "W_a": Port("e4m3", (QKV_A, HIDDEN)),
        "W_a_s": Port("f32", (-(-QKV_A // GROUP), HIDDEN // GROUP)),
        "q_norm_w": Port("bf16", (Q_LORA,)),
        "kv_norm_w": Port("bf16", (KV_LORA,)),
        "cos": Port("f32", ("kv", ROPE // 2)),
        "sin": Port("f32", ("kv", ROPE // 2)),
        "positions": Port("i64", ("m",)),
        "slots": Port("i64", ("m",)),
        "mla_cache": Port("bf16", ("pages", PAGE, MLA_DIM)),
        "q_lora_q": Port("e4m3", ("m", Q_LORA)),
        "q_lora_s": Port("f32", (Q_LORA // GROUP, "m4")),
    }
