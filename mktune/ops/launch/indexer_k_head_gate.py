"""B1's first kernel and C0 as one launch (kernels/standalone/indexer_k_head_gate.cu)."""

from __future__ import annotations

from collections.abc import Sequence

from mktune.launch import Launch
from mktune.ops.gemm_tiles import GemmConfig
from mktune.ops.launch.shared import joined
from mktune.plan import KernelPlan, OpPlan


def fused(source: str, plans: Sequence[OpPlan], parts: Sequence[Launch], kernel: KernelPlan) -> Launch:
    """`parts` are the ops' own launches; `source` is under kernels/. Finalizers of B1: kernel, last_arriver."""
    template = "indexer_k_head_gate"
    if GemmConfig.of(plans[0]).finalizer == "last_arriver":
        template += "_last_arriver"
    return joined(source, template, plans, parts, [arg for part in parts for arg in part.args], kernel)
