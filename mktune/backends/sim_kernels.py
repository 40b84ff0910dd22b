"""From a plan to what the model needs of each kernel: sizes from the op's own figures, costs from the constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from mktune.access import KernelFacts
from mktune.backends.sim_constants import Constants
from mktune.backends.sim_model import SimKernel
from mktune.graph.fused import fused_among, launched_as, parts_of, with_parts
from mktune.graph.opgraph import Call, OpGraph
from mktune.lowering.kernel_graph import KernelGraph
from mktune.ops.base import KernelWork
from mktune.ops.sharing import placed_part
from mktune.plan import KernelPlan, OpPlan, Plan


def sim_kernels(plan: Plan, graph: OpGraph, lowered: KernelGraph, constants: Constants) -> tuple[SimKernel, ...]:
    """The kernels of `lowered`, in its order."""
    found: dict[str, SimKernel] = {}
    facts = {kernel.name: kernel for kernel in lowered.kernels}
    launched, placed = launched_as(plan.kernel), with_parts(plan.kernel)
    for name, call in graph.calls.items():
        op = plan.op[name]
        for kernel, work in zip(call.kernel_names(op), call.op.work(op, plan.shape), strict=True):
            done = facts[launched.get(kernel, kernel)]
            found[kernel] = _kernel(plan, placed[kernel], call, op, done, work, constants)
    for name in fused_among(plan.kernel):
        found[name] = _side_by_side(name, [found[part] for part in parts_of(name)])
    return tuple(found[kernel.name] for kernel in lowered.kernels)


def _side_by_side(name: str, parts: Sequence[SimKernel]) -> SimKernel:
    """Tiles of several ops in one grid: a CTA takes as much room as the largest, the end is that of the slowest."""
    cold = sum(part.cold_bytes for part in parts)
    return replace(
        parts[0],
        name=name,
        ctas=sum(part.ctas for part in parts),
        ctas_per_sm=min(part.ctas_per_sm for part in parts),
        cold_bytes=cold,
        ring_bytes=sum(part.ring_bytes for part in parts),
        ahead_bytes=sum(part.ahead_bytes for part in parts),
        passes=sum(part.cold_bytes * part.passes for part in parts) / cold if cold else 1.0,
        busy_us=sum(part.busy_us for part in parts),
        tail_us=max(part.tail_us for part in parts),
    )


def _kernel(
    plan: Plan, placed: KernelPlan, call: Call, op: OpPlan, facts: KernelFacts, work: KernelWork, c: Constants
) -> SimKernel:
    """A kernel of one op; `facts` are those of the launch that it is, or is a part of."""
    ring = float(work.prefetch_bytes or work.ctas * work.threads * c.thread_rate * c.memory_latency)
    return SimKernel(
        name=facts.name,
        ctas=work.ctas,
        ctas_per_sm=_ctas_per_sm(work, c),
        cold_bytes=float(work.cold_bytes),
        ring_bytes=ring,
        ahead_bytes=_ahead(placed_part(call.op, op, placed), work),
        passes=_passes(plan, op),
        busy_us=_busy_us(plan, call, op, work, c),
        tail_us=_tail_us(plan, call, op, facts, work, c),
        gdc=placed.gdc,
        trigger=placed.trigger,
        priority=placed.priority,
    )


def _ctas_per_sm(work: KernelWork, c: Constants) -> int:
    """How many fit one SM: shared memory, threads, CTAs. Registers are not modelled."""
    by_smem = c.sm_smem // (work.smem_bytes + c.cta_smem)
    return max(1, min(by_smem, c.sm_threads // work.threads, c.sm_ctas))


def _ahead(placed: KernelPlan, work: KernelWork) -> float:
    if placed.gdc != "prefetch":
        return 0.0
    return float(min(work.cold_bytes, work.prefetch_bytes + placed.l2_prefetch_bytes * work.ctas))


def _passes(plan: Plan, op: OpPlan) -> int:
    """Cold bytes reach the SMs once per block of rows (of tokens of a request)."""
    config = dict(op.config)
    if "block_m" in config:
        return -(-plan.shape.m // int(config["block_m"]))
    return -(-plan.shape.tokens_per_request // int(config["q_block"])) if "q_block" in config else 1


def _busy_us(plan: Plan, call: Call, op: OpPlan, work: KernelWork, c: Constants) -> float:
    """Arithmetic of the whole grid, padded rows included, as if spread over all SMs."""
    block_m = int(dict(op.config).get("block_m", 0))
    padded = _passes(plan, op) * block_m / plan.shape.m if block_m else 1.0
    e4m3 = any(call.op.ports[port].dtype == "e4m3" for port in call.op.inputs)
    rate = c.flops.get((op.impl, 1 if e4m3 else 2), math.inf)
    return work.flops * padded / (rate * c.flops_share)


def _tail_us(plan: Plan, call: Call, op: OpPlan, facts: KernelFacts, work: KernelWork, c: Constants) -> float:
    """Warm bytes through L2 by all CTAs, then what the last to arrive does alone: a tile's sums, a row block's row."""
    rate = min(c.cta_rate, work.threads * c.thread_rate)
    tail = work.warm_bytes / min(c.l2_rate, work.ctas * rate)
    used = {access.buffer for access in facts.accesses}
    sizes = {call.buffer(space.port): space.bytes for space in call.op.workspaces(op, plan.shape)}
    for counters, sums, blocks in (("tile_counters", "partials", 0), ("row_counters", "y", _passes(plan, op))):
        counter = call.buffer(counters)
        if counter in used:
            blocks = blocks or sizes[counter] // 4
            tail += c.last_arriver + sizes.get(call.buffer(sums), 0) / blocks / rate
    return tail
