"""D2: the MLA query: the nope part of each head absorbed into the latent space, and RoPE of its rope part."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mktune.deep_gemm import IMPL
from mktune.device import Device
from mktune.graph.tensors import Port
from mktune.ops import compare
from mktune.ops.base import Tensors, Violation
from mktune.ops.deep_gemm import WithDeepGemm
from mktune.ops.deep_gemm.bf16 import Absorb
from mktune.ops.dimensions import HEAD_DIM, HEADS, KV_LORA, MLA_DIM, NOPE, ROPE, ROPE_THETA
from mktune.ops.gemm import GemmOp, Problem
from mktune.ops.gemm_schedules import ONE_TILE, PERSISTENT, SCHEDULES, STREAM_K, longest_steps
from mktune.ops.gemm_tiles import GemmConfig
from mktune.ops.numerics import rope, to_bf16
from mktune.ops.tolerances import BF16_RMS, BF16_ULPS, QuantisedTolerance
from mktune.plan import ConfigValue, OpPlan
from mktune.shape import Shape

if TYPE_CHECKING:
    import torch


class QAbsorb(WithDeepGemm, GemmOp):
    """64 × ([M, 192] bf16 × [192, 512] bf16). K is three slots of 64: splits leave a CTA one, fewer than a ring has."""

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
    schedules = SCHEDULES
    long_rings = True
    defaults: ClassVar[dict[str, ConfigValue]] = {"block_n": 128, "split_k": 1, "stages": 3, "warps": 4}
    ports: ClassVar[dict[str, Port]] = {
        "q": Port("bf16", ("m", HEADS, HEAD_DIM)),
        "W_uk": Port("bf16", (HEADS, NOPE, KV_LORA), scale=NOPE**-0.5),
        "cos": Port("f32", ("kv", ROPE // 2), "cos", ROPE_THETA),
        "sin": Port("f32", ("kv", ROPE // 2), "sin", ROPE_THETA),
        "positions": Port("i64", ("m",), "positions"),
        "mla_q": Port("bf16", ("m", HEADS, MLA_DIM)),
    }

    def config_violations(self, plan: OpPlan, shape: Shape, device: Device) -> list[Violation]:
        found = super().config_violations(plan, shape, device)
        if found or plan.impl == IMPL:
            return found
        config = GemmConfig.of(plan)
        if config.split_k > 1:
            return [Violation("schedule", "", "whole tiles have three steps of K: leave splitting them to stream_k")]
        return self._needless(config, shape)

    def _needless(self, config: GemmConfig, shape: Shape) -> list[Violation]:
        """stream_k where whole tiles go round as evenly: with three steps a tile, that is often so."""
        if config.schedule != STREAM_K:
            return []
        row_blocks, _ = config.tiles(self.problem, shape)
        whole = longest_steps(config._replace(schedule=PERSISTENT), self.problem, row_blocks)
        if longest_steps(config, self.problem, row_blocks) < whole:
            return []
        message = f"no CTA has fewer than the {whole} steps of K of whole tiles: use persistent, or leave it out"
        return [Violation("schedule", "", message)]

    def smem_bytes(self, config: GemmConfig) -> int:
        return super().smem_bytes(config) + self.staged_bytes(config)

    def staged_bytes(self, config: GemmConfig) -> int:
        """Shared memory behind the ring for results: of CTAs with several tiles, whose ring has no room for them."""
        return 0 if config.schedule == ONE_TILE else 2 * config.block_m * config.block_n

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
