"""Launches of B1: the GEMM and its finalizer, or one kernel for both (kernels/standalone/indexer_k.cu)."""

from __future__ import annotations

from mktune.device import Device
from mktune.launch import Arg, BufferArg, Launch
from mktune.ops.indexer_k import IndexerK
from mktune.ops.launch.block_fp8 import BlockFp8Kernels
from mktune.ops.scale_formats import FP32
from mktune.plan import KernelPlan, OpPlan
from mktune.shape import Shape

_KERNELS = BlockFp8Kernels(IndexerK, "standalone/indexer_k.cu", "mktune::IndexerK")

dynamic_smem = _KERNELS.dynamic_smem


def launches(
    plan: OpPlan, kernels: tuple[KernelPlan, ...], shape: Shape, device: Device, scale_format: str = FP32
) -> tuple[Launch, ...]:
    """B1p and B1f, or B1p alone: all three finalizers. `plan` and `kernels` passed the op's own check."""
    ours = _KERNELS.under(scale_format)
    finalizer = ours.config(plan).finalizer
    if finalizer == "cluster":
        return (ours.cluster(plan, kernels[0], shape, "indexer_k_cluster", _finish_args()),)
    if finalizer == "last_arriver":
        rest = (*ours.head_workspaces(plan, unused="index_k_cache"), *_finish_args())
        return (ours.whole(plan, kernels[0], shape, "indexer_k_last_arriver", rest),)
    producer = ours.producer(plan, kernels[0], shape, ours.sums(plan))
    finish = ours.head_finalizer(plan, kernels[1], shape, "indexer_k_finalizer", _finish_args())
    return producer, finish


def _finish_args() -> tuple[Arg, ...]:
    constants = ("k_ln_w", "k_ln_b", "cos", "sin", *IndexerK.places)
    return (*(BufferArg(port, constant=True) for port in constants), BufferArg("index_k_cache"))
