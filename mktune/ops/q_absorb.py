"""D2: the MLA query: the nope part of each head absorbed into the latent space, and RoPE of its rope part."""

from __future__ import annotations

from typing import ClassVar

from mktune.graph.tensors import Port
from mktune.ops.dimensions import HEAD_DIM, HEADS, KV_LORA, MLA_DIM, NOPE, ROPE
from mktune.ops.gemm import GemmOp, Problem


class QAbsorb(GemmOp):
    """64 × ([M, 192] bf16 × [192, 512] bf16). K is three slots of 64, so split_k is 1 or 3."""

    title = "q_absorb"
    problem = Problem(n=KV_LORA, k=NOPE, element_bytes=2, batch=HEADS)
    activations = ("q",)
    operands = ("W_uk",)
    constants = ("cos", "sin")
    arguments = ("positions",)
    inputs = (*activations, *operands, *constants, *arguments)
    outputs = ("mla_q",)
    weights = (*operands, *constants)
    defaults: ClassVar[dict[str, int]] = {"block_n": 128, "split_k": 1, "stages": 3, "warps": 4}
    ports: ClassVar[dict[str, Port]] = {
        "q": Port("bf16", ("m", HEADS, HEAD_DIM)),
        "W_uk": Port("bf16", (HEADS, NOPE, KV_LORA)),
        "cos": Port("f32", ("kv", ROPE // 2)),
        "sin": Port("f32", ("kv", ROPE // 2)),
        "positions": Port("i64", ("m",)),
        "mla_q": Port("bf16", ("m", HEADS, MLA_DIM)),
    }
