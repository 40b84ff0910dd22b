"""An attention output projection and the RMSNorm behind it: the consumer has next to nothing to do before its wait."""

from __future__ import annotations

from gemm_rmsnorm.ops.output_projection import OutputProjection
from gemm_rmsnorm.ops.row_norm import RowNorm
from mktune.graph.opgraph import OpGraph
from mktune.graph.workload import Workload


def _build() -> OpGraph:
    graph = OpGraph("gemm_rmsnorm")
    projection, norm = OutputProjection(), RowNorm()
    given = graph.runtime_arg("attention", "bf16", projection.ports["attention"].dims)
    weight = graph.bound_weight("W_o", "bf16", projection.ports["W_o"].dims)
    projected = graph.call("G", projection, attention=given, W_o=weight)["projected"]
    norm_weight = graph.bound_weight("norm_w", "bf16", norm.ports["norm_w"].dims)
    graph.set_outputs(graph.call("N", norm, y=projected, norm_w=norm_weight)["h"])
    return graph


WORKLOAD = Workload(
    name="gemm_rmsnorm",
    contract=1,
    scale_format="none",
    graph=_build(),
    branches=(("G", "N"),),
    title="Attention output projection (bf16) and RMSNorm",
)
