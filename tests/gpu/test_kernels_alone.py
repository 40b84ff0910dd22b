"""C0, D2 and E1, each alone, against the contract's fp64 reference: all tiles, splits, placements, rows, contexts.

What an op writes is poisoned before every run, two layers share its workspaces, and a second replay must give the same
bits. E1 is also built with the tensor-core instructions that other architectures use.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cache

import pytest

torch = pytest.importorskip("torch")

from chain import H200, compile_all  # noqa: E402

from mktune.device import Device  # noqa: E402
from mktune.errors import CandidateError  # noqa: E402
from mktune.graph.builtin import make_plan  # noqa: E402
from mktune.graph.workload import workload  # noqa: E402
from mktune.jit.build import build  # noqa: E402
from mktune.lowering.graph import lower  # noqa: E402
from mktune.measure.correctness import KnownResults, verify  # noqa: E402
from mktune.measure.memory import make_memory  # noqa: E402
from mktune.measure.validation import Effort, validate  # noqa: E402
from mktune.ops.launch import launches_for  # noqa: E402
from mktune.plan import KernelPlan, OpPlan  # noqa: E402
from mktune.shape import Shape  # noqa: E402

pytestmark = pytest.mark.gpu

KNOWN = workload("glm52_attention_prefix")
ROWS = (1, 2, 7, 8, 16, 17, 32, 64, 100, 128, 256)
GDC = ("entry", "prologue", "prefetch")
TRIGGERS = ("exit", "start", "after_wait", "before_epilogue")
PORTABLE = replace(H200, arch="sm_100a")
"""A device for which E1 is described with mma.sync. It is compiled for sm_90a all the same."""


@dataclass(frozen=True)
class Variant:
    """One way to run one op."""

    call: str
    op: OpPlan
    kernel: KernelPlan
    device: Device = H200

    def spec(self):
        title = KNOWN.graph.calls[self.call].op.title
        return launches_for(title, self.op, (self.kernel,), Shape(1, 1, 64), self.device)[0].kernel

    def __str__(self):
        config = "-".join(f"{name}{value}" for name, value in self.op.config)
        impl = self.op.impl if self.device == H200 else "mma_sync"
        return f"{self.call}-{impl}-{config}-{self.kernel.gdc}-{self.kernel.trigger}"


def _gemms(call: str) -> list[Variant]:
    """Every tile and warp count of our two implementations; the other knobs take turns."""
    op = KNOWN.graph.calls[call].op
    turns = zip(
        itertools.cycle((*reversed(op.choices("sm_90a")["wgmma"]["split_k"]), 4)),  # odd: every finalizer meets all
        itertools.cycle((2, 3, 4, 6, 12)),
        itertools.cycle(GDC),
        itertools.cycle((*TRIGGERS, "start")),
    )
    found = []
    for impl, fields in op.choices("sm_90a").items():
        if impl == "deep_gemm":
            continue
        tiles = itertools.product(fields["block_m"], fields["block_n"], fields["warps"], fields.get("finalizer", ("",)))
        for block_m, block_n, warps, finalizer in tiles:
            split, stages, gdc, trigger = next(turns)
            made = [
                _gemm(
                    call, impl, (block_m, block_n, splits, few, warps), finalizer, KernelPlan(gdc=gdc, trigger=trigger)
                )
                for splits in (split, 1, 8)  # not every split of D2 exists, and a cluster has several
                for few in range(stages, 1, -1)
            ]
            found += [variant for variant in made if not _violations(variant)][:1]
    return found


def _gemm(call: str, impl: str, tile: tuple[int, ...], finalizer: str, kernel: KernelPlan) -> Variant:
    config: dict[str, int | str] = dict(zip(("block_m", "block_n", "split_k", "stages", "warps"), tile, strict=True))
    return Variant(call, OpPlan.of(impl, config | ({"finalizer": finalizer} if finalizer else {})), kernel)


def _violations(variant: Variant):
    op = KNOWN.graph.calls[variant.call].op
    return op.violations(variant.op, (variant.kernel,), Shape(2, 8, 8192), H200)


def _scores() -> list[Variant]:
    """Every query block with every split and what it may multiply ahead; stages and placements take turns."""
    turns = zip(
        itertools.cycle((2, 3, 4, 5, 6, 8, 12)),
        itertools.cycle((*GDC, "prefetch", "entry")),  # five, and nine: none always meets the same of four values
        itertools.cycle((*TRIGGERS, *TRIGGERS, "exit")),
    )
    found = []
    for q_block, kv_split, ahead in itertools.product(
        (1, 2, 4, 8), (64, 128, 256, 512, 1024, 2048, 4096), ("", "half", "page", "turns")
    ):
        stages, gdc, trigger = next(turns)
        config = {"q_block": q_block, "kv_split": kv_split, "stages": min(stages, max(2, kv_split // 64))}
        plan = OpPlan.of("mktune", config | ({"ahead": ahead} if ahead else {}))
        variant = Variant("E1", plan, KernelPlan(gdc=gdc, trigger=trigger))
        found += [] if _violations(variant) else [variant]
    return found


GEMMS = [*_gemms("C0"), *_gemms("D2")]
SCORES = _scores()
PORTABLE_SCORES = [replace(variant, device=PORTABLE) for variant in SCORES if "ahead" not in dict(variant.op.config)]


@pytest.fixture(scope="module")
def kernels():
    return compile_all([variant.spec() for variant in (*GEMMS, *SCORES, *PORTABLE_SCORES)], workers=12)


@cache
def case(call: str, shape: Shape, ragged: bool):
    """Memory of one op at one shape, and what was found to be right there."""
    memory = make_memory(KNOWN.subgraph((call,)), shape, 2, seed=shape.m, place="cuda", ragged=ragged)
    return memory.verification(), KnownResults()


def prepared(variant: Variant, shape: Shape):
    plan = make_plan(KNOWN, (variant.call,), shape, "sm_90a", "serial", {variant.call: variant.op})
    plan = replace(plan, kernels=((variant.call, variant.kernel),))
    return plan, lower(plan, KNOWN.subgraph((variant.call,)), shape, variant.device, launches=True)


def check(variant: Variant, shape: Shape, kernels, ragged: bool = True, replays: int = 2) -> None:
    copies, known = case(variant.call, shape, ragged)
    plan, lowered = prepared(variant, shape)
    try:
        verify(plan, lowered, kernels, copies, replays, known)
    except CandidateError as wrong:
        raise AssertionError(f"{variant} at {shape}: {wrong}") from None


@pytest.mark.parametrize("variant", GEMMS, ids=str)
def test_every_tile_is_right_at_every_row_count(variant, kernels):
    for m in ROWS:
        check(variant, Shape.from_m(m, 8192), kernels)


@pytest.mark.parametrize("kv", [64, 100, 4096, 8192])
@pytest.mark.parametrize("variants", [SCORES, PORTABLE_SCORES], ids=["wgmma", "mma_sync"])
def test_scores_are_right_at_every_row_count_and_context(variants, kv, kernels):
    """Contexts of all lengths up to kv: each query block at each shape, each split at some."""
    for at, m in enumerate(ROWS):
        for q_block in (1, 2, 4, 8):
            own = [variant for variant in variants if dict(variant.op.config)["q_block"] == q_block]
            check(own[(at + kv + q_block) % len(own)], Shape.from_m(m, kv), kernels)
    case.cache_clear()


@pytest.mark.parametrize("shape", [Shape(1, 7, 100), Shape(3, 5, 1000), Shape(1, 17, 64), Shape(2, 33, 4096)], ids=str)
def test_requests_may_have_any_number_of_tokens(shape, kernels):
    for variant in (*SCORES, *PORTABLE_SCORES):
        check(variant, shape, kernels)


@pytest.mark.parametrize("variant", [*SCORES, *PORTABLE_SCORES], ids=str)
def test_scores_are_right_with_long_and_full_contexts(variant, kernels):
    check(variant, Shape.from_m(16, 65536), kernels)
    check(variant, Shape.from_m(16, 65536), kernels, ragged=False)
    check(variant, Shape.from_m(16, 100), kernels, ragged=False)


def _of(variants: list[Variant], **wanted) -> Variant:
    return next(variant for variant in variants if wanted.items() <= dict(variant.op.config).items())


SPLIT = [_of(GEMMS, split_k=16, finalizer=finalizer) for finalizer in ("last_arriver", "cluster")]


@pytest.mark.parametrize("variant", [*SPLIT, GEMMS[-1], SCORES[-1], SCORES[6]], ids=str)
def test_many_replays_give_the_same_bits(variant, kernels):
    check(variant, Shape.from_m(17, 8192), kernels, replays=200)
    check(variant, Shape.from_m(16, 8192), kernels, replays=200)


def test_the_gate_waits_for_a_producer_that_triggers_at_once_and_writes_late():
    shape, ops = Shape.from_m(16, 8192), ("A0", "C0")
    copies = make_memory(KNOWN.subgraph(ops), shape, 2, 3, "cuda", ragged=True).verification()
    for variant in (GEMMS[0], *SPLIT, _of(GEMMS, split_k=1)):
        plan = make_plan(KNOWN, ops, shape, "sm_90a", "serial+pdl", {"C0": variant.op})
        lowered = lower(plan, KNOWN.subgraph(ops), shape, H200, launches=True)
        assert "A0 delayed" in validate(plan, lowered, copies, _built, Effort(plain=20, delayed=8, shuffles=2)).how


def _built(specs):
    return {kernel.spec: kernel for kernel in build(list(specs), "sm_90a", facts=False)}


@pytest.mark.parametrize(
    ("variant", "port"), [(GEMMS[0], "W_g"), (GEMMS[-1], "W_uk"), (SCORES[0], "index_k_cache")], ids=lambda v: str(v)
)
def test_a_wrong_result_is_seen(variant, port, kernels):
    """The checks themselves: a result is wrong for other weights or pages than it was made from."""
    shape = Shape.from_m(16, 4096)
    check(variant, shape, kernels)
    copies, _ = case(variant.call, shape, True)
    op, inputs = KNOWN.graph.calls[variant.call].op, copies.inputs(0, variant.call)
    other = {**inputs, port: inputs[port].roll(1, 0)}
    outputs = copies.outputs(0, variant.call)
    assert op.compare(inputs, outputs, shape) == []
    assert op.compare(other, outputs, shape) != []
