"""D1: the indexer's query: projection, RoPE on the first 64 dims of each head, quantise; and the head weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mktune.graph.tensors import Port
from mktune.ops import compare
from mktune.ops.base import Tensors
from mktune.ops.deep_gemm import WithDeepGemm
from mktune.ops.deep_gemm.block_fp8 import BlockFp8
from mktune.ops.dimensions import (
    GROUP,
    INDEX_AMAX,
    INDEX_DIM,
    INDEX_HEADS,
    INDEX_WEIGHT_SCALE,
    Q_LORA,
    ROPE,
    ROPE_THETA,
)
from mktune.ops.gemm import GemmOp, Problem
from mktune.ops.gemm_schedules import SCHEDULES
from mktune.ops.numerics import block_fp8_matmul, quantise, rope, to_bf16
from mktune.ops.scale_formats import row_words, weight_words
from mktune.ops.tolerances import HEAD_WEIGHT_RMS, QuantisedTolerance
from mktune.plan import ConfigValue

if TYPE_CHECKING:
    import torch


class IndexerQ(WithDeepGemm, GemmOp):
    """[M, 2048] e4m3 × [4096, 2048]ᵀ e4m3: 32 heads of 128. w = g · 32^-½ · 128^-½ · scale of the quantised head."""

    title = "indexer_q"
    provided = BlockFp8()
    problem = Problem(n=INDEX_HEADS * INDEX_DIM, k=Q_LORA, element_bytes=1, finalizer_span=INDEX_DIM)
    activations = ("q_lora_q", "q_lora_s")
    operands = ("W_iq", "W_iq_s")
    constants = ("cos", "sin")
    arguments = ("g", "positions")
    places = ("positions",)
    inputs = (*activations, *operands, *constants, *arguments)
    outputs = ("qi", "w")
    weights = (*operands, *constants)
    finalizers = ("kernel", "last_arriver", "cluster")
    schedules = SCHEDULES
    defaults: ClassVar[dict[str, ConfigValue]] = {
        "block_n": 64,
        "split_k": 4,
        "stages": 4,
        "warps": 4,
        "finalizer": "kernel",
        "finalizer_threads": 128,
    }
    ports: ClassVar[dict[str, Port]] = {
        "q_lora_q": Port("e4m3", ("m", Q_LORA), "codes"),
        "q_lora_s": Port("f32", (Q_LORA // GROUP, "m4"), "row_scales"),
        "W_iq": Port("e4m3", (INDEX_HEADS * INDEX_DIM, Q_LORA), "codes"),
        "W_iq_s": Port("f32", (INDEX_HEADS * INDEX_DIM // GROUP, Q_LORA // GROUP), "scales", Q_LORA**-0.5),
        "cos": Port("f32", ("kv", ROPE // 2), "cos", ROPE_THETA),
        "sin": Port("f32", ("kv", ROPE // 2), "sin", ROPE_THETA),
        "g": Port("f32", ("m", INDEX_HEADS)),
        "positions": Port("i64", ("m",), "positions"),
        "qi": Port("e4m3", ("m", INDEX_HEADS, INDEX_DIM), "codes"),
        "w": Port("f32", ("m", INDEX_HEADS), scale=INDEX_WEIGHT_SCALE / 100),
    }
    ue8m0_impls = ("wgmma", "mma_sync")
    ue8m0_ports: ClassVar[dict[str, Port]] = {
        "q_lora_s": row_words(Q_LORA),
        "W_iq_s": weight_words(INDEX_HEADS * INDEX_DIM, Q_LORA),
    }

    def product(self, inputs: Tensors) -> torch.Tensor:
        return to_bf16(block_fp8_matmul(inputs["q_lora_q"], inputs["q_lora_s"], inputs["W_iq"], inputs["W_iq_s"]))

    def finish(self, y: torch.Tensor, inputs: Tensors) -> dict[str, torch.Tensor]:
        import torch

        heads = y.view(-1, INDEX_HEADS, INDEX_DIM)
        turned = rope(heads[..., :ROPE], inputs["cos"], inputs["sin"], inputs["positions"])
        codes, scales = quantise(to_bf16(torch.cat((turned, heads[..., ROPE:].double()), -1)), INDEX_AMAX)
        return {"qi": codes, "w": (inputs["g"].double() * INDEX_WEIGHT_SCALE * scales.squeeze(-1).double()).float()}

    def judge(self, inputs: Tensors, expected: Tensors, outputs: Tensors, tolerance: QuantisedTolerance) -> list[str]:
        found = compare.codes("qi", outputs["qi"], expected["qi"], tolerance)
        return found + compare.relative_rms("w", outputs["w"], expected["w"], HEAD_WEIGHT_RMS)
