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
from mktune.ops.gemm_schedules import STREAM_K
from mktune.ops.tolerances import GATE_RMS, QuantisedTolerance
from mktune.plan import ConfigValue

if TYPE_CHECKING:
    import torch


class HeadGate(WithDeepGemm, GemmOp):
    """[M, 6144] bf16 × [32, 6144]ᵀ bf16. One column block: only pieces of K give it more CTAs.

    With one row block split_k cuts its 96 steps of K into 1, 2, 3, 4, 6, 8, 12 or 16 pieces, and stream_k into any
    number up to 16. There is no persistent schedule: of R row blocks and S splits its longest CTA would have
    ceil(R · S / ctas) · 96 / S steps, never fewer than the ceil(R · 96 / ctas) of stream_k.
    """

    title = "head_gate"
    provided = Gate()
    problem = Problem(n=INDEX_HEADS, k=HIDDEN, element_bytes=2)
    activations = ("h",)
    operands = ("W_g",)
    inputs = (*activations, *operands)
    outputs = ("g",)
    weights = operands
    finalizers = ("last_arriver", "cluster")
    schedules = (STREAM_K,)
    few_ctas = (5, 7, 10, 14, 20)
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
