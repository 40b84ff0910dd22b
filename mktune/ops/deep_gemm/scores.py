"""DeepGEMM's paged scores for E1 (template sm90_fp8_paged_mqa_logits), behind a kernel of ours that schedules it.

The template scores groups of one or two tokens. Each group has a row of the block table and one length, so our kernel
"s" lays out a row for each group; and each of its CTAs gets a share of all groups' splits of 256 tokens, which that
kernel works out on the device, from the lengths of the step at hand.

NOTE: the tensor cores' e4m3 sums keep about 13 bits below their largest term, and the contract bounds errors by the RMS
of a row, which may be small by chance where the row is short. Measured on an H200: every row of at least 256 tokens is
within the contract, and of shorter ones a few are not. So shapes with such rows are refused; a request that has just
begun in a longer cache is as the template is. (Our own kernel multiplies short rows by mma.sync.)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import ClassVar

from mktune.access import KernelFacts
from mktune.deep_gemm import IMPL
from mktune.device import Device
from mktune.graph.tensors import PAGE, pages_per_request, round_up
from mktune.ops.base import KernelWork, Op, Violation, Workspace
from mktune.ops.checks import field_violations, reads, smem_violations, trigger_class, writes
from mktune.ops.deep_gemm import SMALL, TEMPLATE, Placement, Provided
from mktune.ops.deep_gemm.tiles import CTAS, LOADER_THREADS
from mktune.ops.dimensions import INDEX_DIM, INDEX_HEADS
from mktune.plan import ConfigValue, KernelPlan, OpPlan
from mktune.shape import Shape

SOURCE = "providers/deep_gemm/sm90_paged_scores.cu"
SCHEDULE_SOURCE = "standalone/paged_score_schedule.cu"

QUERY_STAGES = 3
SPLIT = 256
"""Cached tokens that a CTA scores at a time: a page for each of its four warpgroups."""
WARPGROUPS = SPLIT // PAGE
THREADS = LOADER_THREADS + 128 * WARPGROUPS
SCHEDULE_THREADS = 256

_ATOM = 8 * INDEX_DIM  # bytes that a buffer of shared memory is aligned to
_WORKSPACES = ("lens", "tables", "schedule")
_PAGES = ("block_table", "context_lens")


class PagedScores(Provided):
    """q_block: tokens of a group. stages: pages in flight of each warpgroup."""

    sources = (SOURCE, SCHEDULE_SOURCE)
    placements: ClassVar[Mapping[str, Placement]] = {"": TEMPLATE, "s": SMALL}

    def choices(self, op: Op, arch: str) -> dict[str, tuple[ConfigValue, ...]]:
        return {"q_block": (1, 2), "stages": (2, 3, 4, 5), "ctas": CTAS} if arch == "sm_90a" else {}

    def kernels(self, op: Op) -> tuple[str, ...]:
        return ("s", "")

    def facts(self, op: Op, kernels: tuple[KernelPlan, ...]) -> tuple[KernelFacts, ...]:
        schedule, scores = kernels
        return _schedule_facts(schedule.gdc, schedule.trigger), _score_facts(scores.trigger)

    def config_violations(self, op: Op, plan: OpPlan, shape: Shape, device: Device) -> list[Violation]:
        if found := field_violations(op, plan, device.arch):
            return found
        config = numbers(plan)
        found = smem_violations(smem_bytes(plan), device)
        if shape.tokens_per_request % config["q_block"]:
            message = f"groups of {config['q_block']} tokens, a request has {shape.tokens_per_request}"
            found.append(Violation("q_block", "", message))
        if (shortest := shape.kv - shape.tokens_per_request + 1) < SPLIT:
            message = f"a request's first row sees {shortest} tokens, and below {SPLIT} its sums are too coarse"
            found.append(Violation("kv", "", message))
        if config["ctas"] > device.sms:
            found.append(Violation("ctas", "", f"{config['ctas']} CTAs, {device.name} has {device.sms} SMs"))
        return found

    def workspaces(self, op: Op, plan: OpPlan, shape: Shape) -> tuple[Workspace, ...]:
        groups = shape.m // numbers(plan)["q_block"]
        sizes = (4 * groups, 4 * groups * pages_per_request(shape), 8 * (max(CTAS) + 1))
        return tuple(Workspace(port, size) for port, size in zip(_WORKSPACES, sizes, strict=True))

    def work(self, op: Op, plan: OpPlan, shape: Shape) -> tuple[KernelWork, ...]:
        config, cold = numbers(plan), op.bytes_read(shape)
        made = sum(space.bytes for space in self.workspaces(op, plan, shape))
        given = sum(op.ports[port].nbytes(shape) for port in _PAGES)
        groups = shape.m // config["q_block"]
        schedule = KernelWork(groups + 1, SCHEDULE_THREADS, 0, 0, given + made, 0, 0)
        ring = min(cold, config["ctas"] * config["stages"] * WARPGROUPS * PAGE * INDEX_DIM)
        warm = made + sum(op.ports[port].nbytes(shape) for port in ("qi", "w", "logits"))
        scores = KernelWork(config["ctas"], THREADS, smem_bytes(plan), cold, warm, ring, op.flops(shape))
        return schedule, scores

    def heuristic(self, op: Op, shape: Shape, device: Device) -> OpPlan:
        """Its tile is fixed: three pages in flight, a CTA for each SM. Pairs of tokens where they come out even."""
        ctas = max((count for count in CTAS if count <= device.sms), default=CTAS[0])
        return OpPlan.of(IMPL, {"q_block": 1 + (shape.tokens_per_request % 2 == 0), "stages": 3, "ctas": ctas})


def smem_bytes(plan: OpPlan) -> int:
    """Dynamic shared memory of a CTA: queries and weights, each warpgroup's pages and scales, barriers of each ring."""
    config = numbers(plan)
    query = config["q_block"] * INDEX_HEADS * INDEX_DIM + round_up(config["q_block"] * INDEX_HEADS * 4, _ATOM)
    page = PAGE * INDEX_DIM + round_up(PAGE * 4, _ATOM)
    return QUERY_STAGES * query + _ATOM + WARPGROUPS * (config["stages"] * page + _ATOM)


def numbers(plan: OpPlan) -> dict[str, int]:
    """The fields as numbers."""
    return {name: int(value) for name, value in plan.config}


@cache
def _schedule_facts(gdc: str, trigger: str) -> KernelFacts:
    accesses = reads(("context_lens",), after_wait=gdc == "entry") + reads(("block_table",), after_wait=True)
    return KernelFacts("s", "", accesses + writes(_WORKSPACES), True, trigger_class(trigger))


@cache
def _score_facts(trigger: str) -> KernelFacts:
    """It waits before it reads anything."""
    accesses = reads(("qi", "w", "index_k_cache", *_WORKSPACES), after_wait=True) + writes(("logits",))
    return KernelFacts("", "", accesses, True, trigger_class(trigger))
