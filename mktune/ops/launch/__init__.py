"""How the kernels of configured ops are launched: a module per op, `<title>.py`, with buffers named by port."""

from __future__ import annotations

from collections.abc import Callable

from mktune.device import Device
from mktune.errors import SetupError
from mktune.launch import Launch
from mktune.ops.launch import (
    add_rmsnorm_quant,
    head_gate,
    indexer_k,
    indexer_q,
    main_q,
    paged_indexer_score,
    q_absorb,
    qkv_a,
)
from mktune.ops.launch.description import with_defines
from mktune.plan import KernelPlan, OpPlan
from mktune.shape import Shape

__all__ = ["LAUNCHES", "Describe", "dynamic_smem", "launches_for", "with_defines"]

Describe = Callable[[OpPlan, tuple[KernelPlan, ...], Shape, Device], tuple[Launch, ...]]

LAUNCHES: dict[tuple[str, str], Describe] = {
    ("add_rmsnorm_quant", "mktune"): add_rmsnorm_quant.launches,
    ("qkv_a", "wgmma"): qkv_a.launches,
    ("qkv_a", "mma_sync"): qkv_a.launches,
    ("head_gate", "wgmma"): head_gate.launches,
    ("head_gate", "mma_sync"): head_gate.launches,
    ("q_absorb", "wgmma"): q_absorb.launches,
    ("q_absorb", "mma_sync"): q_absorb.launches,
    ("paged_indexer_score", "mktune"): paged_indexer_score.launches,
    ("indexer_k", "wgmma"): indexer_k.launches,
    ("indexer_k", "mma_sync"): indexer_k.launches,
    ("main_q", "wgmma"): main_q.launches,
    ("main_q", "mma_sync"): main_q.launches,
    ("indexer_q", "wgmma"): indexer_q.launches,
    ("indexer_q", "mma_sync"): indexer_q.launches,
}
"""(op title, implementation) → its launches."""

_SMEM = {
    "add_rmsnorm_quant": add_rmsnorm_quant.dynamic_smem,
    "qkv_a": qkv_a.dynamic_smem,
    "head_gate": head_gate.dynamic_smem,
    "q_absorb": q_absorb.dynamic_smem,
    "paged_indexer_score": paged_indexer_score.dynamic_smem,
    "indexer_k": indexer_k.dynamic_smem,
    "main_q": main_q.dynamic_smem,
    "indexer_q": indexer_q.dynamic_smem,
}


def launches_for(
    title: str, plan: OpPlan, kernels: tuple[KernelPlan, ...], shape: Shape, device: Device
) -> tuple[Launch, ...]:
    """One launch for each kernel of the op, in issue order. Raises SetupError for an op without CUDA kernels."""
    describe = LAUNCHES.get((title, plan.impl))
    if describe is None:
        raise SetupError(_missing(f"{title} ({plan.impl})"))
    return describe(plan, kernels, shape, device)


def dynamic_smem(title: str, plan: OpPlan, suffix: str) -> int:
    """Bytes of dynamic shared memory of one CTA of kernel `suffix`. Raises SetupError for an op without kernels."""
    if title not in _SMEM:
        raise SetupError(_missing(title))
    return _SMEM[title](plan, suffix)


def _missing(what: str) -> str:
    known = ", ".join(dict.fromkeys(title for title, _ in LAUNCHES))
    return f"op {what} has no CUDA kernel yet; choose with --ops among: {known}"
