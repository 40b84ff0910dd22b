"""Launches of D1: the GEMM and its finalizer, or one kernel for both (kernels/standalone/indexer_q.cu)."""

from __future__ import annotations

from mktune.device import Device
from mktune.launch import Arg, BufferArg, Launch
from mktune.ops.indexer_q import IndexerQ
from mktune.ops.launch.block_fp8 import BlockFp8Kernels
from mktune.ops.scale_formats import FP32
from mktune.plan import KernelPlan, OpPlan
from mktune.shape import Shape

_KERNELS = BlockFp8Kernels(IndexerQ, "standalone/indexer_q.cu", "mktune::IndexerQ")

dynamic_smem = _KERNELS.dynamic_smem


def launches(
    plan: OpPlan, kernels: tuple[KernelPlan, ...], shape: Shape, device: Device, scale_format: str = FP32
) -> tuple[Launch, ...]:
    """D1p and D1f, or D1p alone: all three finalizers. `plan` and `kernels` passed the op's own check."""
    ours = _KERNELS.under(scale_format)
    finalizer = ours.config(plan).finalizer
    if finalizer == "cluster":
        return (ours.cluster(plan, kernels[0], shape, "indexer_q_cluster", _finish_args()),)
    if finalizer == "last_arriver":
        rest = (*ours.head_workspaces(plan, unused="qi"), *_finish_args())
        return (ours.whole(plan, kernels[0], shape, "indexer_q_last_arriver", rest),)
    producer = ours.producer(plan, kernels[0], shape, ours.sums(plan))
    finish = ours.head_finalizer(plan, kernels[1], shape, "indexer_q_finalizer", _finish_args())
    return producer, finish


def _finish_args() -> tuple[Arg, ...]:
    tables = tuple(BufferArg(port, constant=True) for port in ("cos", "sin"))
    return (*tables, BufferArg("g"), BufferArg("positions", constant=True), BufferArg("qi"), BufferArg("w"))
