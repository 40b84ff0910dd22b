"""D0 and D1's first kernel as one launch (kernels/standalone/main_q_indexer_q.cu)."""

from __future__ import annotations

from collections.abc import Sequence

from mktune.launch import Launch
from mktune.ops.gemm_tiles import GemmConfig
from mktune.ops.launch.shared import joined
from mktune.plan import KernelPlan, OpPlan

_OPERANDS = 4  # maps and scales, what D0's own kernels begin with


def fused(source: str, plans: Sequence[OpPlan], parts: Sequence[Launch], kernel: KernelPlan) -> Launch:
    """`parts` are the ops' own launches; `source` is under kernels/. Finalizers of D1: kernel, last_arriver."""
    template = "main_q_indexer_q"
    if GemmConfig.of(plans[1]).finalizer == "last_arriver":
        template += "_last_arriver"
    queries, index = (list(part.args) for part in parts)
    if GemmConfig.of(plans[0]).split_k == 1:
        # Neither partial sums nor counters: q stands in their places and is not read.
        queries[_OPERANDS:_OPERANDS] = [queries[_OPERANDS]] * 2
    return joined(source, template, plans, parts, [*queries, *index], kernel)
