"""E1: scores of every cached token: logits[m, t] = ks[t] · Σ_h w[m, h] · relu(qi[m, h] · k[t])."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from mktune.access import KernelFacts
from mktune.device import Device
from mktune.graph.tensors import PAGE, Port
from mktune.ops import compare
from mktune.ops.base import KernelWork, Op, Tensors, Violation, Workspace
from mktune.ops.checks import (
    BARRIER_BYTES,
    field_violations,
    reads,
    smem_violations,
    trigger_class,
    writes,
)
from mktune.ops.deep_gemm import WithDeepGemm
from mktune.ops.deep_gemm.scores import PagedScores
from mktune.ops.dimensions import INDEX_DIM, INDEX_HEADS, INDEX_PAGE_BYTES, INDEX_WEIGHT_SCALE
from mktune.ops.index_pages import unpack
from mktune.ops.tolerances import LOGITS_PEAK, LOGITS_RMS
from mktune.plan import ConfigValue, KernelPlan, OpPlan
from mktune.shape import Shape

if TYPE_CHECKING:
    import torch

LOADER_THREADS = 64
"""A warp that loads pages and one that loads queries."""

GIVING_THREADS = 128
"""The same, as a whole warpgroup that gives two others registers: of eight tokens, a page ahead or in turns."""

WARPGROUP_TOKENS = 4
"""Tokens of a CTA whose scores one warpgroup makes."""

QUERY_BYTES = INDEX_HEADS * INDEX_DIM + 4 * INDEX_HEADS
"""Shared memory of one token's query: its heads in e4m3 and their fp32 weights."""

SCALE_BYTES = 4 * PAGE
"""Shared memory of one page's scales. There is room for one page more than there are stages."""

_PRODUCTS = 1 << 24
"""Products of heads and cached tokens that the reference holds at once: 128 MiB, and as much again on the way."""

WARP_PAGES = 32
"""Pages of a CTA of which a warp holds the numbers, a lane each. Kernels that multiply ahead look twice as many up."""

KV_SPLITS = (64, 128, 256, 512, 1024, 2048, 4096)
Q_BLOCKS = (1, 2, 4, 8)
ONE_WAVE = 132
"""CTAs that run at once where each has an SM of its own, on GPUs that have so many or a few more."""

AHEAD = ("half", "page", "turns")
"""On sm_90a, beside the kernel that does not."""
AT_ONCE = "none"
"""Of `ahead`: every product of a page is waited for, then added up."""

AHEAD_SOURCE = "standalone/paged_indexer_score_ahead.cu"
"""Under kernels/, of every other value. A source of its own: stored plans without it stay valid when it changes."""

PAGES = ("index_k_cache", "block_table", "context_lens")


class OwnScores(Op):
    """Our kernel: a CTA scores `q_block` tokens of a request against `kv_split` cached ones, `stages` pages in flight.

    ahead: what the tensor cores multiply while a warpgroup adds up products. "none", "half" (the other two of its four
    tokens), "page" (the next one, whose products need as many registers again) or "turns" (the next one, by another
    warpgroup).

    gdc = prefetch loads pages before the wait. Pages are not constants: the closure rule allows it only where the
    kernel that writes them stands behind a full edge.
    """

    @property
    def implied(self) -> Mapping[str, ConfigValue]:
        return {"ahead": AT_ONCE}

    def default(self, arch: str) -> OpPlan:
        return OpPlan.of("mktune", {"kv_split": 256, "q_block": 4, "stages": 3})

    def starts(self, arch: str, shape: Shape) -> tuple[OpPlan, ...]:
        """The tokens of a request in one or two blocks, CTAs for at most two waves, each way to multiply ahead."""
        found = []
        ways = ({}, *({"ahead": way} for way in (AHEAD if arch == "sm_90a" else ())))
        for tokens in [size for size in Q_BLOCKS if size <= shape.tokens_per_request][-2:]:
            blocks = shape.requests * -(-shape.tokens_per_request // tokens)
            fitting = [split for split in KV_SPLITS if blocks * -(-shape.kv // split) <= 2 * ONE_WAVE]
            for split in fitting[:2] or KV_SPLITS[-1:]:
                plain = {"kv_split": split, "q_block": tokens, "stages": min(4, max(2, split // PAGE))}
                found += [OpPlan.of("mktune", {**plain, **each}) for each in ways]
        return tuple(found)

    def choices(self, arch: str) -> dict[str, dict[str, tuple[ConfigValue, ...]]]:
        fields: dict[str, tuple[ConfigValue, ...]] = {
            "kv_split": KV_SPLITS,
            "q_block": Q_BLOCKS,
            "stages": (2, 3, 4, 5, 6, 8, 12),
        }
        return {"mktune": {**fields, "ahead": AHEAD} if arch == "sm_90a" else fields}

    def kernels(self, plan: OpPlan) -> tuple[str, ...]:
        return ("",)

    def kind(self, plan: OpPlan) -> Hashable:
        return ()

    def facts(self, plan: OpPlan, kernels: tuple[KernelPlan, ...]) -> tuple[KernelFacts, ...]:
        return _facts(kernels[0].gdc, kernels[0].trigger)

    def config_violations(self, plan: OpPlan, shape: Shape, device: Device) -> list[Violation]:
        found = field_violations(self, plan, device.arch, optional=frozenset(self.implied))
        if found:
            return found
        config = config_numbers(plan)
        found = smem_violations(_smem_bytes(config), device)
        pages = config["kv_split"] // PAGE
        if config["stages"] > max(2, pages):
            found.append(Violation("stages", "", f"{config['stages']} stages, but a CTA has only {pages} pages"))
        if ahead(plan) == AT_ONCE and pages > WARP_PAGES:
            found.append(Violation("kv_split", "", f"{pages} pages, of which a lane each can name {WARP_PAGES}"))
        if ahead(plan) == "half" and config["q_block"] < WARPGROUP_TOKENS:
            message = f"half of {WARPGROUP_TOKENS} tokens ahead, a CTA has {config['q_block']}"
            found.append(Violation("ahead", "", message))
        if ahead(plan) == "turns" and config["q_block"] < WARPGROUP_TOKENS:
            message = f"turns take at least {WARPGROUP_TOKENS} tokens, a CTA has {config['q_block']}"
            found.append(Violation("ahead", "", message))
        if ahead(plan) in ("page", "turns") and pages == 1:
            found.append(Violation("ahead", "", "a page ahead, but a CTA has only one"))
        return found

    def workspaces(self, plan: OpPlan, shape: Shape) -> tuple[Workspace, ...]:
        return ()

    def work(self, plan: OpPlan, shape: Shape) -> tuple[KernelWork, ...]:
        config = config_numbers(plan)
        blocks = shape.requests * -(-shape.tokens_per_request // config["q_block"])
        ctas = blocks * -(-shape.kv // config["kv_split"])
        warm = sum(self.ports[port].nbytes(shape) for port in ("qi", "w", "logits", "block_table", "context_lens"))
        cold = self.bytes_read(shape)
        ring = min(cold, ctas * config["stages"] * INDEX_PAGE_BYTES)
        return (KernelWork(ctas, threads(plan), _smem_bytes(config), cold, warm, ring, self.flops(shape)),)


class PagedIndexerScore(WithDeepGemm, OwnScores):
    """Every token of a request against all tokens before it, whose keys lie in pages."""

    title = "paged_indexer_score"
    provided = PagedScores()
    inputs = ("qi", "w", "index_k_cache", "block_table", "context_lens")
    outputs = ("logits",)
    ports: ClassVar[dict[str, Port]] = {
        "qi": Port("e4m3", ("m", INDEX_HEADS, INDEX_DIM), "codes"),
        "w": Port("f32", ("m", INDEX_HEADS), scale=INDEX_WEIGHT_SCALE / 100),
        "index_k_cache": Port("u8", ("pages", INDEX_PAGE_BYTES), "index_pages"),
        "block_table": Port("i32", ("requests", "blocks"), "block_table"),
        "context_lens": Port("i32", ("m",), "context_lens"),
        "logits": Port("f32", ("m", "kv256")),
    }

    def bytes_read(self, shape: Shape) -> int:
        return self.ports["index_k_cache"].nbytes(shape)

    def flops(self, shape: Shape) -> int:
        return 2 * shape.m * shape.kv * INDEX_HEADS * INDEX_DIM

    def reference(self, inputs: Tensors, shape: Shape) -> dict[str, torch.Tensor]:
        """Zero where a logit is undefined: at and beyond the row's context length."""
        import torch

        rows = shape.tokens_per_request
        logits = torch.zeros(self.ports["logits"].size(shape), dtype=torch.float32, device=inputs["qi"].device)
        longest_of = inputs["context_lens"].view(shape.requests, rows).amax(1).tolist()
        for request, longest in enumerate(longest_of):
            pages = inputs["block_table"][request, : -(-longest // PAGE)].long()
            values, scales = (part[:longest].double() for part in unpack(inputs["index_k_cache"][pages]))
            at_once = max(1, _PRODUCTS // (INDEX_HEADS * max(1, longest)))
            end = (request + 1) * rows
            for first in range(request * rows, end, at_once):
                own = slice(first, min(first + at_once, end))
                heads = (inputs["qi"][own].double() @ values.T).relu_()
                sums = (inputs["w"][own].double().unsqueeze(1) @ heads).squeeze(1)
                logits[own, :longest] = (scales * sums).float()
        return {"logits": logits * self._defined(inputs, shape)}

    def compare(self, inputs: Tensors, outputs: Tensors, shape: Shape) -> list[str]:
        expected, given = self.reference(inputs, shape)["logits"], outputs["logits"]
        if wrong := compare.form("logits", given, expected):
            return wrong
        given = given.where(self._defined(inputs, shape), 0.0)
        return compare.relative_rms("logits", given, expected, LOGITS_RMS, LOGITS_PEAK)

    def _defined(self, inputs: Tensors, shape: Shape) -> torch.Tensor:
        """[M, row stride]: the logits that a row has."""
        import torch

        lens = inputs["context_lens"].unsqueeze(-1)
        return torch.arange(self.ports["logits"].size(shape)[1], device=lens.device) < lens


def threads(plan: OpPlan) -> int:
    """Threads of a CTA."""
    tokens = config_numbers(plan)["q_block"]
    warpgroups = 2 if ahead(plan) == "turns" else -(-tokens // WARPGROUP_TOKENS)
    gives = tokens > WARPGROUP_TOKENS and ahead(plan) in ("page", "turns")
    return 128 * warpgroups + (GIVING_THREADS if gives else LOADER_THREADS)


def config_numbers(plan: OpPlan) -> dict[str, int]:
    """The fields that are numbers."""
    return {name: value for name, value in plan.config if isinstance(value, int)}


def ahead(plan: OpPlan) -> str:
    """What is multiplied while products are added up."""
    return str(dict(plan.config).get("ahead", AT_ONCE))


def scores_ahead(ops: Iterable[OpPlan]) -> bool:
    """Whether some of these are compiled from AHEAD_SOURCE."""
    return any(ahead(op) != AT_ONCE for op in ops)


def _smem_bytes(config: dict[str, int]) -> int:
    return config["stages"] * INDEX_PAGE_BYTES + SCALE_BYTES + config["q_block"] * QUERY_BYTES + BARRIER_BYTES


@cache
def _facts(gdc: str, trigger: str) -> tuple[KernelFacts, ...]:
    pages = reads(PAGES, after_wait=gdc != "prefetch")
    accesses = pages + reads(("qi", "w"), after_wait=True) + writes(("logits",))
    return (KernelFacts("", "", accesses, True, trigger_class(trigger)),)
