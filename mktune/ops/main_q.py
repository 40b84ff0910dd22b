"""D0: the main query projection, q = q_lora · W_qbᵀ, rounded to bf16."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mktune.graph.tensors import Port
from mktune.ops import compare
from mktune.ops.base import Tensors
from mktune.ops.deep_gemm import WithDeepGemm
from mktune.ops.deep_gemm.block_fp8 import BlockFp8
from mktune.ops.dimensions import GROUP, HEAD_DIM, HEADS, Q_LORA
from mktune.ops.gemm import GemmOp, Problem
from mktune.ops.gemm_schedules import SCHEDULES
from mktune.ops.numerics import block_fp8_matmul, to_bf16
from mktune.ops.scale_formats import row_words, weight_words
from mktune.ops.tolerances import BF16_RMS, BF16_ULPS, QuantisedTolerance
from mktune.plan import ConfigValue

if TYPE_CHECKING:
    import torch


class MainQ(WithDeepGemm, GemmOp):
    """[M, 2048] e4m3 × [16384, 2048]ᵀ e4m3: 64 heads of 192 + 64."""

    title = "main_q"
    provided = BlockFp8()
    problem = Problem(n=HEADS * HEAD_DIM, k=Q_LORA, element_bytes=1)
    activations = ("q_lora_q", "q_lora_s")
    operands = ("W_qb", "W_qb_s")
    inputs = (*activations, *operands)
    outputs = ("q",)
    weights = operands
    schedules = SCHEDULES
    defaults: ClassVar[dict[str, ConfigValue]] = {"block_n": 128, "split_k": 1, "stages": 8, "warps": 4}
    ports: ClassVar[dict[str, Port]] = {
        "q_lora_q": Port("e4m3", ("m", Q_LORA), "codes"),
        "q_lora_s": Port("f32", (Q_LORA // GROUP, "m4"), "row_scales"),
        "W_qb": Port("e4m3", (HEADS * HEAD_DIM, Q_LORA), "codes"),
        "W_qb_s": Port("f32", (HEADS * HEAD_DIM // GROUP, Q_LORA // GROUP), "scales", Q_LORA**-0.5),
        "q": Port("bf16", ("m", HEADS, HEAD_DIM)),
    }
    ue8m0_impls = ("wgmma", "mma_sync")
    ue8m0_ports: ClassVar[dict[str, Port]] = {
        "q_lora_s": row_words(Q_LORA),
        "W_qb_s": weight_words(HEADS * HEAD_DIM, Q_LORA),
    }

    def product(self, inputs: Tensors) -> torch.Tensor:
        return to_bf16(block_fp8_matmul(inputs["q_lora_q"], inputs["q_lora_s"], inputs["W_qb"], inputs["W_qb_s"]))

    def finish(self, y: torch.Tensor, inputs: Tensors) -> dict[str, torch.Tensor]:
        return {"q": y.view(-1, HEADS, HEAD_DIM)}

    def judge(self, inputs: Tensors, expected: Tensors, outputs: Tensors, tolerance: QuantisedTolerance) -> list[str]:
        return compare.bf16_rows("q", outputs["q"], expected["q"], BF16_ULPS, BF16_RMS)
