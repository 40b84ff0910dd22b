"""D2: the MLA query: the nope part of each head absorbed into the latent space, and RoPE of its rope part."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mktune.graph.tensors import Port
from mktune.ops import compare
from mktune.ops.base import Tensors
from mktune.ops.deep_gemm import WithDeepGemm
from mktune.ops.deep_gemm.bf16 import Absorb
from mktune.ops.dimensions import HEAD_DIM, HEADS, KV_LORA, MLA_DIM, NOPE, ROPE, ROPE_THETA
from mktune.ops.gemm import GemmOp, Problem
from mktune.ops.numerics import rope, to_bf16
from mktune.ops.tolerances import BF16_RMS, BF16_ULPS, QuantisedTolerance
from mktune.plan import ConfigValue

if TYPE_CHECKING:
    import torch


class QAbsorb(WithDeepGemm, GemmOp):
    """64 × ([M, 192] bf16 × [192, 512] bf16). K is three slots of 64, so split_k is 1 or 3."""

    title = "q_absorb"
    provided = Absorb()
    problem = Problem(n=KV_LORA, k=NOPE, element_bytes=2, batch=HEADS)
    activations = ("q",)
    operands = ("W_uk",)
    constants = ("cos", "sin")
    arguments = ("positions",)
    inputs = (*activations, *operands, *constants, *arguments)
    outputs = ("mla_q",)
    weights = (*operands, *constants)
    defaults: ClassVar[dict[str, ConfigValue]] = {"block_n": 128, "split_k": 1, "stages": 3, "warps": 4}
    ports: ClassVar[dict[str, Port]] = {
        "q": Port("bf16", ("m", HEADS, HEAD_DIM)),
        "W_uk": Port("bf16", (HEADS, NOPE, KV_LORA), scale=NOPE**-0.5),
        "cos": Port("f32", ("kv", ROPE // 2), "cos", ROPE_THETA),
        "sin": Port("f32", ("kv", ROPE // 2), "sin", ROPE_THETA),
        "positions": Port("i64", ("m",), "positions"),
        "mla_q": Port("bf16", ("m", HEADS, MLA_DIM)),
    }

    def product(self, inputs: Tensors) -> torch.Tensor:
        import torch

        nope = inputs["q"][..., :NOPE].double()
        heads = [nope[:, head] @ inputs["W_uk"][head].double() for head in range(HEADS)]
        return to_bf16(torch.stack(heads, 1))

    def finish(self, y: torch.Tensor, inputs: Tensors) -> dict[str, torch.Tensor]:
        import torch

        q_pe = rope(inputs["q"][..., NOPE:], inputs["cos"], inputs["sin"], inputs["positions"])
        return {"mla_q": torch.cat((y, to_bf16(q_pe)), -1)}

    def judge(self, inputs: Tensors, expected: Tensors, outputs: Tensors, tolerance: QuantisedTolerance) -> list[str]:
        if wrong := compare.form("mla_q", outputs["mla_q"], expected["mla_q"]):
            return wrong
        found = []
        for part, columns in (("q_abs", slice(0, KV_LORA)), ("q_pe", slice(KV_LORA, None))):
            given, right = (side["mla_q"][..., columns] for side in (outputs, expected))
            found += compare.bf16_rows(f"mla_q.{part}", given, right, BF16_ULPS, BF16_RMS)
        return found
