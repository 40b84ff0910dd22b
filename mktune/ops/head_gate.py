"""C0: the indexer's head gate, g = h · W_gᵀ in fp32."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mktune.graph.tensors import Port
from mktune.ops import compare
from mktune.ops.base import Tensors
from mktune.ops.deep_gemm import WithDeepGemm
from mktune.ops.deep_gemm.bf16 import Gate
from mktune.ops.dimensions import HIDDEN, INDEX_HEADS
from mktune.ops.gemm import GemmOp, Problem
from mktune.ops.tolerances import GATE_RMS, QuantisedTolerance
from mktune.plan import ConfigValue

if TYPE_CHECKING:
    import torch


class HeadGate(WithDeepGemm, GemmOp):
    """[M, 6144] bf16 × [32, 6144]ᵀ bf16. One column block: only split-K gives it more CTAs."""

    title = "head_gate"
    provided = Gate()
    problem = Problem(n=INDEX_HEADS, k=HIDDEN, element_bytes=2)
    activations = ("h",)
    operands = ("W_g",)
    inputs = (*activations, *operands)
    outputs = ("g",)
    weights = operands
    finalizers = ("last_arriver", "cluster")
    defaults: ClassVar[dict[str, ConfigValue]] = {
        "block_n": 64,
        "split_k": 16,
        "stages": 6,
        "warps": 4,
        "finalizer": "cluster",
    }
    ports: ClassVar[dict[str, Port]] = {
        "h": Port("bf16", ("m", HIDDEN)),
        "W_g": Port("bf16", (INDEX_HEADS, HIDDEN), scale=HIDDEN**-0.5),
        "g": Port("f32", ("m", INDEX_HEADS)),
    }

    def product(self, inputs: Tensors) -> torch.Tensor:
        return inputs["h"].double() @ inputs["W_g"].double().T

    def finish(self, y: torch.Tensor, inputs: Tensors) -> dict[str, torch.Tensor]:
        return {"g": y.float()}

    def judge(self, inputs: Tensors, expected: Tensors, outputs: Tensors, tolerance: QuantisedTolerance) -> list[str]:
        return compare.relative_rms("g", outputs["g"], expected["g"], GATE_RMS)
