"""B1: the indexer's key: projection, LayerNorm, RoPE on the first 64 dims, quantise, page write."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mktune.graph.tensors import Port
from mktune.ops import compare
from mktune.ops.base import Tensors, Violation
from mktune.ops.deep_gemm import WithDeepGemm
from mktune.ops.deep_gemm.block_fp8 import BlockFp8
from mktune.ops.dimensions import (
    GROUP,
    HIDDEN,
    INDEX_AMAX,
    INDEX_DIM,
    INDEX_PAGE_BYTES,
    LAYER_NORM_EPS,
    ROPE,
    ROPE_THETA,
)
from mktune.ops.gemm import GemmOp, Problem
from mktune.ops.gemm_schedules import SCHEDULES
from mktune.ops.index_pages import pack, spans_of, tokens, unpack
from mktune.ops.numerics import block_fp8_matmul, layer_norm, quantise, rope, to_bf16, with_rows
from mktune.ops.scale_formats import row_words, weight_words
from mktune.ops.tolerances import QuantisedTolerance
from mktune.plan import ConfigValue

if TYPE_CHECKING:
    import torch

    from mktune.device import Device
    from mktune.plan import OpPlan
    from mktune.shape import Shape

_TOO_LARGE = {"block_m": 128, "block_n": 128}


class IndexerK(WithDeepGemm, GemmOp):
    """[M, 6144] e4m3 × [128, 6144]ᵀ e4m3. One key of 128 a row, written as e4m3 and one fp32 scale."""

    title = "indexer_k"
    provided = BlockFp8()
    problem = Problem(n=INDEX_DIM, k=HIDDEN, element_bytes=1, finalizer_span=INDEX_DIM)
    activations = ("h_q", "h_s")
    operands = ("W_k", "W_k_s")
    constants = ("k_ln_w", "k_ln_b", "cos", "sin")
    arguments = places = ("positions", "slots")
    inputs = (*activations, *operands, *constants, *arguments, "index_k_cache")
    outputs = ("index_k_cache",)
    weights = (*operands, *constants)
    finalizers = ("kernel", "last_arriver", "cluster")
    schedules = SCHEDULES
    defaults: ClassVar[dict[str, ConfigValue]] = {
        "block_n": 64,
        "split_k": 12,
        "stages": 4,
        "warps": 4,
        "finalizer": "kernel",
        "finalizer_threads": 128,
    }
    ports: ClassVar[dict[str, Port]] = {
        "h_q": Port("e4m3", ("m", HIDDEN), "codes"),
        "h_s": Port("f32", (HIDDEN // GROUP, "m4"), "row_scales"),
        "W_k": Port("e4m3", (INDEX_DIM, HIDDEN), "codes"),
        "W_k_s": Port("f32", (INDEX_DIM // GROUP, HIDDEN // GROUP), "scales", HIDDEN**-0.5),
        "k_ln_w": Port("f32", (INDEX_DIM,), "near_one"),
        "k_ln_b": Port("f32", (INDEX_DIM,), scale=0.2),
        "cos": Port("f32", ("kv", ROPE // 2), "cos", ROPE_THETA),
        "sin": Port("f32", ("kv", ROPE // 2), "sin", ROPE_THETA),
        "positions": Port("i64", ("m",), "positions"),
        "slots": Port("i64", ("m",), "slots"),
        "index_k_cache": Port("u8", ("pages", INDEX_PAGE_BYTES), "index_pages"),
    }
    ue8m0_impls = ("wgmma", "mma_sync")
    ue8m0_ports: ClassVar[dict[str, Port]] = {"h_s": row_words(HIDDEN), "W_k_s": weight_words(INDEX_DIM, HIDDEN)}

    def config_violations(self, plan: OpPlan, shape: Shape, device: Device) -> list[Violation]:
        """Also: wgmma keeps few bits of a sum, so a key of 128 codes needs sums of half K groups, and registers."""
        found = super().config_violations(plan, shape, device)
        if not found and plan.impl == "wgmma" and _TOO_LARGE.items() <= dict(plan.config).items():
            found.append(Violation("tile", "", "128 × 128 leaves wgmma no registers to sum half K groups apart"))
        return found

    def written(self, port: str, inputs: Tensors) -> list[tuple[int, int]]:
        return [span for slot in inputs["slots"].tolist() if slot >= 0 for span in spans_of(slot)]

    def product(self, inputs: Tensors) -> torch.Tensor:
        return to_bf16(block_fp8_matmul(inputs["h_q"], inputs["h_s"], inputs["W_k"], inputs["W_k_s"]))

    def finish(self, y: torch.Tensor, inputs: Tensors) -> dict[str, torch.Tensor]:
        import torch

        normed = layer_norm(y, inputs["k_ln_w"], inputs["k_ln_b"], LAYER_NORM_EPS)
        turned = rope(normed[:, :ROPE], inputs["cos"], inputs["sin"], inputs["positions"])
        codes, scales = quantise(to_bf16(torch.cat((turned, normed[:, ROPE:]), -1)), INDEX_AMAX)
        values, page_scales = unpack(inputs["index_k_cache"])
        slots = inputs["slots"]
        values = with_rows(values.view(torch.uint8), slots, codes.view(torch.uint8)).view(torch.float8_e4m3fn)
        return {"index_k_cache": pack(values, with_rows(page_scales, slots, scales.squeeze(-1)))}

    def judge(self, inputs: Tensors, expected: Tensors, outputs: Tensors, tolerance: QuantisedTolerance) -> list[str]:
        name = "index_k_cache"
        if wrong := compare.form(name, outputs[name], expected[name]):
            return wrong
        slots = inputs["slots"]
        named = slots[slots >= 0]
        (given, given_scales), (right, right_scales) = unpack(outputs[name]), unpack(expected[name])
        before, before_scales = unpack(inputs[name])
        found = compare.codes(f"{name}.values", tokens(given, named), tokens(right, named), tolerance)
        found += compare.scales(f"{name}.scales", given_scales[named], right_scales[named], tolerance)
        found += compare.untouched(f"{name}.values", given, before, named)
        return found + compare.untouched(
            f"{name}.scales", given_scales.unsqueeze(-1), before_scales.unsqueeze(-1), named
        )
