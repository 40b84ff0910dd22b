"""Launches of B0: the GEMM and its finalizer, or one kernel for both (kernels/standalone/qkv_a.cu)."""

from __future__ import annotations

from mktune.device import Device
from mktune.launch import Arg, BufferArg, Launch, ScalarArg
from mktune.ops.gemm_tiles import GemmConfig
from mktune.ops.launch.block_fp8 import BlockFp8Kernels
from mktune.ops.launch.description import instance, placement, scale_defines
from mktune.ops.qkv_a import QkvA
from mktune.ops.scale_formats import FP32
from mktune.plan import KernelPlan, OpPlan
from mktune.shape import Shape

_KERNELS = BlockFp8Kernels(QkvA, "standalone/qkv_a.cu", "mktune::QkvA")

dynamic_smem = _KERNELS.dynamic_smem


def launches(
    plan: OpPlan, kernels: tuple[KernelPlan, ...], shape: Shape, device: Device, scale_format: str = FP32
) -> tuple[Launch, ...]:
    """B0p and B0f, or B0p alone with finalizer = last_arriver. `plan` and `kernels` passed the op's own check."""
    ours = _KERNELS.under(scale_format)
    config = ours.config(plan)
    if config.finalizer == "last_arriver":
        rest = (*_workspaces(config), *_finish_args())
        return (ours.whole(plan, kernels[0], shape, "qkv_a_last_arriver", rest),)
    sums = ours.sums(plan)
    return ours.producer(plan, kernels[0], shape, sums), _finalizer(ours, config, kernels[1], shape, sums)


def _finalizer(ours: BlockFp8Kernels, config: GemmConfig, kernel: KernelPlan, shape: Shape, sums: str) -> Launch:
    args = (BufferArg(sums), *_finish_args(), ScalarArg(shape.m))
    partial_sums = QkvA().partial_sums(config, shape)
    parameters = (config.finalizer_threads, partial_sums, *placement(kernel, prefetches=False))
    spec = instance(ours.source, "qkv_a_finalizer", parameters, args, scale_defines(ours.scale_format))
    return Launch(spec, (shape.m, 1, 1), config.finalizer_threads, 0, args)


def _workspaces(config: GemmConfig) -> tuple[Arg, ...]:
    """partials, y, tile counters, row counters. Without splits there are no partials and no tile counters: not read."""
    partials, tiles = ("partials", "tile_counters") if config.split_k > 1 else ("y", "row_counters")
    return BufferArg(partials), BufferArg("y"), BufferArg(tiles), BufferArg("row_counters")


def _finish_args() -> tuple[Arg, ...]:
    constants = ("q_norm_w", "kv_norm_w", "cos", "sin", *QkvA.places)
    results = ("q_lora_q", "q_lora_s", "mla_cache")
    return (*(BufferArg(port, constant=True) for port in constants), *(BufferArg(port) for port in results))
