"""G: the attention output projection, projected = attention · W_oᵀ, rounded to bf16."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mktune.graph.tensors import Port
from mktune.ops import compare
from mktune.ops.base import Tensors
from mktune.ops.gemm import GemmOp, Problem
from mktune.ops.numerics import to_bf16
from mktune.ops.tolerances import BF16_RMS, BF16_ULPS, QuantisedTolerance

if TYPE_CHECKING:
    import torch

HIDDEN = 6144
ATTENTION = 2048


class OutputProjection(GemmOp):
    """[M, 2048] bf16 × [6144, 2048]ᵀ bf16."""

    title = "output_projection"
    problem = Problem(n=HIDDEN, k=ATTENTION, element_bytes=2)
    activations = ("attention",)
    operands = ("W_o",)
    inputs = (*activations, *operands)
    outputs = ("projected",)
    weights = operands
    defaults: ClassVar[dict[str, int]] = {"block_n": 64, "split_k": 1, "stages": 8, "warps": 4}
    ports: ClassVar[dict[str, Port]] = {
        "attention": Port("bf16", ("m", ATTENTION)),
        "W_o": Port("bf16", (HIDDEN, ATTENTION), scale=ATTENTION**-0.5),
        "projected": Port("bf16", ("m", HIDDEN)),
    }

    def product(self, inputs: Tensors) -> torch.Tensor:
        return to_bf16(inputs["attention"].double() @ inputs["W_o"].double().T)

    def finish(self, y: torch.Tensor, inputs: Tensors) -> dict[str, torch.Tensor]:
        return {"projected": y}

    def judge(self, inputs: Tensors, expected: Tensors, outputs: Tensors, tolerance: QuantisedTolerance) -> list[str]:
        return compare.bf16_rows("projected", outputs["projected"], expected["projected"], BF16_ULPS, BF16_RMS)
