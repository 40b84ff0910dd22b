"""B0: the fused QKV-A projection, then per row: RMSNorm and quantise q_lora, RMSNorm kv, RoPE k_pe, MLA cache write."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mktune.graph.tensors import PAGE, Port
from mktune.ops import compare, compare_packed
from mktune.ops.base import Tensors
from mktune.ops.deep_gemm import WithDeepGemm
from mktune.ops.deep_gemm.block_fp8 import BlockFp8
from mktune.ops.dimensions import (
    ACTIVATION_AMAX,
    GROUP,
    HIDDEN,
    KV_LORA,
    MLA_DIM,
    Q_LORA,
    QKV_A,
    RMS_EPS,
    ROPE,
    ROPE_THETA,
)
from mktune.ops.gemm import GemmOp, Problem
from mktune.ops.gemm_schedules import SCHEDULES
from mktune.ops.numerics import block_fp8_matmul, quantise, rms_norm, rope, store_scales, to_bf16, with_rows
from mktune.ops.scale_formats import row_words, weight_words
from mktune.ops.tolerances import BF16_RMS, MLA_ROW_ULPS, QuantisedTolerance
from mktune.plan import ConfigValue

if TYPE_CHECKING:
    import torch


class QkvA(WithDeepGemm, GemmOp):
    """[M, 6144] e4m3 × [2624, 6144]ᵀ e4m3. A row's norms span every column, hence every tile of the row."""

    title = "qkv_a"
    provided = BlockFp8()
    problem = Problem(n=QKV_A, k=HIDDEN, element_bytes=1, finalizer_span=QKV_A)
    activations = ("h_q", "h_s")
    operands = ("W_a", "W_a_s")
    constants = ("q_norm_w", "kv_norm_w", "cos", "sin")
    arguments = places = ("positions", "slots")
    inputs = (*activations, *operands, *constants, *arguments, "mla_cache")
    outputs = ("q_lora_q", "q_lora_s", "mla_cache")
    weights = (*operands, *constants)
    finalizers = ("kernel", "last_arriver")
    schedules = SCHEDULES
    defaults: ClassVar[dict[str, ConfigValue]] = {
        "block_n": 64,
        "split_k": 3,
        "stages": 12,
        "warps": 4,
        "finalizer": "kernel",
        "finalizer_threads": 256,
    }
    ports: ClassVar[dict[str, Port]] = {
        "h_q": Port("e4m3", ("m", HIDDEN), "codes"),
        "h_s": Port("f32", (HIDDEN // GROUP, "m4"), "row_scales"),
        "W_a": Port("e4m3", (QKV_A, HIDDEN), "codes"),
        "W_a_s": Port("f32", (-(-QKV_A // GROUP), HIDDEN // GROUP), "scales", HIDDEN**-0.5),
        "q_norm_w": Port("bf16", (Q_LORA,), "near_one"),
        "kv_norm_w": Port("bf16", (KV_LORA,), "near_one"),
        "cos": Port("f32", ("kv", ROPE // 2), "cos", ROPE_THETA),
        "sin": Port("f32", ("kv", ROPE // 2), "sin", ROPE_THETA),
        "positions": Port("i64", ("m",), "positions"),
        "slots": Port("i64", ("m",), "slots"),
        "mla_cache": Port("bf16", ("pages", PAGE, MLA_DIM)),
        "q_lora_q": Port("e4m3", ("m", Q_LORA), "codes"),
        "q_lora_s": Port("f32", (Q_LORA // GROUP, "m4"), "row_scales"),
    }
    ue8m0_impls = ("wgmma", "mma_sync")
    ue8m0_ports: ClassVar[dict[str, Port]] = {
        "h_s": row_words(HIDDEN),
        "W_a_s": weight_words(QKV_A, HIDDEN),
        "q_lora_s": row_words(Q_LORA),
    }

    def written(self, port: str, inputs: Tensors) -> list[tuple[int, int]]:
        row = 2 * MLA_DIM
        return [(slot * row, row) for slot in inputs["slots"].tolist() if slot >= 0]

    def product(self, inputs: Tensors) -> torch.Tensor:
        return to_bf16(block_fp8_matmul(inputs["h_q"], inputs["h_s"], inputs["W_a"], inputs["W_a_s"]))

    def finish(self, y: torch.Tensor, inputs: Tensors) -> dict[str, torch.Tensor]:
        import torch

        lora, kv, pe = y.split((Q_LORA, KV_LORA, ROPE), -1)
        normed = to_bf16(rms_norm(lora, inputs["q_norm_w"], RMS_EPS))
        codes, scales = quantise(normed, ACTIVATION_AMAX, self.scale_format)
        kv_c = rms_norm(kv, inputs["kv_norm_w"], RMS_EPS)
        k_pe = rope(pe, inputs["cos"], inputs["sin"], inputs["positions"])
        before = inputs["mla_cache"]
        cache = with_rows(before.view(-1, MLA_DIM), inputs["slots"], torch.cat((kv_c, k_pe), -1))
        stored = store_scales(scales, self.scale_format)
        return {"q_lora_q": codes, "q_lora_s": stored, "mla_cache": cache.view_as(before)}

    def judge(self, inputs: Tensors, expected: Tensors, outputs: Tensors, tolerance: QuantisedTolerance) -> list[str]:
        found = compare_packed.quantised("q_lora_q", "q_lora_s", outputs, expected, tolerance)
        if wrong := compare.form("mla_cache", outputs["mla_cache"], expected["mla_cache"]):
            return found + wrong
        slots = inputs["slots"]
        named = slots[slots >= 0]
        given, right = (side["mla_cache"].view(-1, MLA_DIM) for side in (outputs, expected))
        for part, columns in (("kv_c", slice(0, KV_LORA)), ("k_pe", slice(KV_LORA, None))):
            name = f"mla_cache.{part}"
            found += compare.bf16_rows(name, given[named][:, columns], right[named][:, columns], MLA_ROW_ULPS, BF16_RMS)
        return found + compare.untouched("mla_cache", given, inputs["mla_cache"].view(-1, MLA_DIM), named)
