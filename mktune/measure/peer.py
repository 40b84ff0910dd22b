"""What a user has without mktune, op by op: DeepGEMM's FP8 GEMMs and paged scores, and cuBLAS where it has none.

GEMMs only: no norm, RoPE, quantise or cache kernel is included. Each op is timed like ours: a graph of layers with
weights of their own, the launch hidden; and with DeepGEMM's programmatic launches off and on, of which the faster
counts. torch and deep_gemm are imported when asked, in a process that may die of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from mktune.device import Device
from mktune.errors import CandidateError
from mktune.measure.memory import MIN_LAYERS
from mktune.measure.span import GraphTimer
from mktune.measure.stats import median
from mktune.ops import dimensions as d
from mktune.shape import Shape
from mktune.trial import Status

if TYPE_CHECKING:
    import torch

_FP8 = {
    "qkv_a": (d.QKV_A, d.HIDDEN),
    "indexer_k": (d.INDEX_DIM, d.HIDDEN),
    "main_q": (d.HEADS * d.HEAD_DIM, d.Q_LORA),
    "indexer_q": (d.INDEX_HEADS * d.INDEX_DIM, d.Q_LORA),
}
_SAMPLES = 15
Layer = Callable[[int], object]


def peer_us(title: str, shape: Shape, size: int, device: Device, place: str) -> float:
    """µs per layer of the peer's kernel for the op `title`, which reads `size` cold bytes.

    Raises whatever importing or running it does; CandidateError (build_error) for an op that neither library has.
    """
    if title not in _LAYERS:
        raise CandidateError(Status.BUILD_ERROR, "neither DeepGEMM nor cuBLAS has a kernel for it")
    import deep_gemm
    import torch

    layers = max(MIN_LAYERS, math.ceil(4 * device.l2_bytes / size))
    timer = GraphTimer(layers)
    with torch.device(place):
        run = _LAYERS[title](title, shape, layers)
        best = math.inf
        for early in (False, True):
            deep_gemm.set_pdl(early)
            best = min(best, _timed(run, layers, timer))
    return best


class _Replay:
    """A captured graph as the timer replays it: on the current stream, which is the timer's."""

    def __init__(self, graph: torch.cuda.CUDAGraph) -> None:
        self._graph = graph

    def replay(self, stream: int) -> None:
        self._graph.replay()


def _timed(run: Layer, layers: int, timer: GraphTimer) -> float:
    import torch

    run(0)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in range(layers):
            run(layer)
    replay = _Replay(graph)
    timer.settle(replay)
    timer.sample([replay] * 3)
    return median(timer.sample([replay] * _SAMPLES))


def _fp8_gemm(title: str, shape: Shape, layers: int) -> Layer:
    import deep_gemm
    import torch
    from deep_gemm.utils import per_block_cast_to_fp8, per_token_cast_to_fp8

    n, k = _FP8[title]
    codes, scales = per_token_cast_to_fp8(torch.randn(shape.m, k).bfloat16(), use_ue8m0=False)
    given = codes, deep_gemm.get_mn_major_tma_aligned_tensor(scales)  # else every call transposes them
    weights = [per_block_cast_to_fp8(torch.randn(n, k).bfloat16(), use_ue8m0=False) for _ in range(layers)]
    out = torch.empty(shape.m, n, dtype=torch.bfloat16)
    return lambda layer: deep_gemm.fp8_gemm_nt(given, weights[layer], out)


def _gate(title: str, shape: Shape, layers: int) -> Layer:
    import torch

    h = torch.randn(shape.m, d.HIDDEN).bfloat16()
    weights = [torch.randn(d.HIDDEN, d.INDEX_HEADS).bfloat16() for _ in range(layers)]
    out = torch.empty(shape.m, d.INDEX_HEADS, dtype=torch.bfloat16)
    return lambda layer: torch.mm(h, weights[layer], out=out)


def _absorb(title: str, shape: Shape, layers: int) -> Layer:
    import torch

    q = torch.randn(d.HEADS, shape.m, d.NOPE).bfloat16()
    weights = [torch.randn(d.HEADS, d.NOPE, d.KV_LORA).bfloat16() for _ in range(layers)]
    out = torch.empty(d.HEADS, shape.m, d.KV_LORA, dtype=torch.bfloat16)
    return lambda layer: torch.bmm(q, weights[layer], out=out)


def _score(title: str, shape: Shape, layers: int) -> Layer:
    import deep_gemm
    import torch

    row = d.INDEX_DIM + 4  # codes and their scale
    pages = -(-shape.kv // 64)
    pools = []
    for _ in range(layers):
        pool = torch.empty(pages * shape.requests, 64 * row, dtype=torch.uint8)
        keys = torch.randn(len(pool), 64 * d.INDEX_DIM).to(torch.float8_e4m3fn)
        pool[:, : 64 * d.INDEX_DIM] = keys.view(torch.uint8)
        pool[:, 64 * d.INDEX_DIM :] = torch.ones(len(pool), 64).view(torch.uint8)
        pools.append(pool.view(-1, 64, 1, row))
    table = torch.randperm(pages * shape.requests).int().view(shape.requests, pages)
    table = table.repeat_interleave(shape.tokens_per_request, 0).contiguous()  # it takes a token per request
    q = (torch.randn(shape.m, 1, d.INDEX_HEADS, d.INDEX_DIM) * 0.5).to(torch.float8_e4m3fn)
    w = torch.randn(shape.m, d.INDEX_HEADS)
    context = torch.full((shape.m, 1), shape.kv, dtype=torch.int32)
    plan = deep_gemm.get_paged_mqa_logits_metadata(context, 64, deep_gemm.get_num_sms())
    return lambda layer: deep_gemm.fp8_paged_mqa_logits(q, pools[layer], w, context, table, plan, shape.kv, False)


_LAYERS: dict[str, Callable[[str, Shape, int], Layer]] = {
    **dict.fromkeys(_FP8, _fp8_gemm),
    "head_gate": _gate,
    "q_absorb": _absorb,
    "paged_indexer_score": _score,
}
