"""One decode layer of GLM-5.2-FP8 with the full indexer, from Add + RMSNorm + Quant to the paged indexer score.

All 64 heads on one GPU; what follows (TopK and sparse FlashMLA) is not part of it. Sizes are in
`mktune.ops.dimensions`, each op's ports and formula in its own module.

Scales are fp32, or under the scale format ue8m0 powers of two (see `mktune.ops.scale_formats`). Then h_s, q_lora_s and
the scales of W_a, W_k, W_qb and W_iq are packed words, i32 [K / 512, rows rounded up to 4]: four exponents along K, the
first in the lowest byte, MN-major, a row of a weight as a row of activations, as DeepGEMM's Blackwell templates take
them. What the indexer quantises for itself keeps fp32 scales: those of its keys in the pages of index_k_cache, and
those of its queries, which are a factor of w.
"""

from __future__ import annotations

from mktune.graph.builtin import make_plan
from mktune.graph.opgraph import OpGraph
from mktune.graph.tensors import Port, TensorSpec
from mktune.graph.workload import Workload
from mktune.ops.add_rmsnorm_quant import AddRmsnormQuant
from mktune.ops.base import Op
from mktune.ops.head_gate import HeadGate
from mktune.ops.indexer_k import IndexerK
from mktune.ops.indexer_q import IndexerQ
from mktune.ops.main_q import MainQ
from mktune.ops.paged_indexer_score import PagedIndexerScore
from mktune.ops.q_absorb import QAbsorb
from mktune.ops.qkv_a import QkvA
from mktune.ops.scale_formats import FP32, UE8M0
from mktune.plan import OpPlan, Plan
from mktune.shape import Shape


def _build(scale_format: str) -> OpGraph:
    graph = OpGraph("glm52_attention_prefix")
    kinds = (AddRmsnormQuant, QkvA, HeadGate, IndexerK, MainQ, IndexerQ, QAbsorb, PagedIndexerScore)
    a0, b0, c0, b1, d0, d1, d2, e1 = (kind(scale_format) for kind in kinds)

    def arg(op: Op, port: str) -> TensorSpec:
        return graph.runtime_arg(port, *_spec(op.ports[port]))

    def weights(op: Op, *ports: str) -> dict[str, TensorSpec]:
        return {port: graph.bound_weight(port, *_spec(op.ports[port])) for port in ports}

    positions, slots = arg(b0, "positions"), arg(b0, "slots")
    rope = weights(b0, "cos", "sin")
    mla_cache = graph.cache("mla_cache", *_spec(b0.ports["mla_cache"]))
    index_k_cache = graph.cache("index_k_cache", *_spec(b1.ports["index_k_cache"]))

    a = graph.call("A0", a0, x=arg(a0, "x"), residual=arg(a0, "residual"), **weights(a0, "norm_w"))
    hidden = {port: a[port] for port in ("h_q", "h_s")}
    placed = {"positions": positions, "slots": slots, **rope}
    norms = weights(b0, "W_a", "W_a_s", "q_norm_w", "kv_norm_w")
    b = graph.call("B0", b0, **hidden, **norms, **placed, mla_cache=mla_cache)
    c = graph.call("C0", c0, h=a["h"], **weights(c0, "W_g"))
    key = weights(b1, "W_k", "W_k_s", "k_ln_w", "k_ln_b")
    k = graph.call("B1", b1, **hidden, **key, **placed, index_k_cache=index_k_cache)
    q_lora = {port: b[port] for port in ("q_lora_q", "q_lora_s")}
    q = graph.call("D0", d0, **q_lora, **weights(d0, "W_qb", "W_qb_s"))
    i = graph.call("D1", d1, **q_lora, **weights(d1, "W_iq", "W_iq_s"), **rope, g=c["g"], positions=positions)
    mla = graph.call("D2", d2, q=q["q"], **weights(d2, "W_uk"), **rope, positions=positions)
    lookup = {"block_table": arg(e1, "block_table"), "context_lens": arg(e1, "context_lens")}
    e = graph.call("E1", e1, qi=i["qi"], w=i["w"], index_k_cache=k["index_k_cache"], **lookup)
    graph.set_outputs(a["residual_out"], b["mla_cache"], k["index_k_cache"], mla["mla_q"], e["logits"])
    return graph


def _spec(port: Port) -> tuple[str, tuple[int | str, ...]]:
    return port.dtype, port.dims


def _under(scale_format: str, others: tuple[Workload, ...] = ()) -> Workload:
    return Workload(
        name="glm52_attention_prefix",
        contract=1,
        scale_format=scale_format,
        graph=_build(scale_format),
        branches=(("A0", "B0", "D0", "D2"), ("C0",), ("B1",), ("D1", "E1")),
        title="GLM-5.2-FP8 decode attention prefix with indexer: Add+RMSNorm+Quant to the paged indexer score",
        growth=("A0", "C0", "B1", "B0", "D0", "D1", "D2", "E1"),
        others=others,
        # Each pair reads the same rows; the op whose CTAs go through more bytes comes first.
        fusions=(("B1", "C0"), ("D0", "D1")),
    )


WORKLOAD = _under(FP32, others=(_under(UE8M0),))


def article_plan(shape: Shape, arch: str = "sm_90a") -> Plan:
    """The published CUDA-graph plan: four streams, every edge programmatic, early triggers, weights prefetched.

    Tiles follow the published decomposition at M = 16: B0 21 × split-K 4, B1 split-K 8, D0 64 heads × 2, D1 32 heads
    × split-K 4, D2 64 heads × 4. C0's 48 splits become 16, the most that this GEMM has.
    """
    tiles = {
        "B0": {"block_n": 128, "split_k": 4, "stages": 6},
        "C0": {"block_n": 64, "split_k": 16, "stages": 4},
        "B1": {"block_n": 128, "split_k": 8, "stages": 4},
        "D0": {"block_n": 128, "split_k": 1, "stages": 8},
        "D1": {"block_n": 128, "split_k": 4, "stages": 4},
        "D2": {"block_n": 128, "split_k": 1, "stages": 3},
        "E1": {"kv_split": 512, "q_block": 4, "stages": 4},
    }
    op_plans = {}
    for name, plan in WORKLOAD.default_ops(WORKLOAD.ops, arch).items():
        op_plans[name] = OpPlan.of(plan.impl, {**dict(plan.config), **tiles.get(name, {})})
    return make_plan(WORKLOAD, None, shape, arch, "branches+pdl", op_plans)
