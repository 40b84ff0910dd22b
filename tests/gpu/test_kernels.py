"""Every kernel of A0 → B0 against the contract's fp64 reference: all tiles, splits, placements and row counts."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache

import pytest

torch = pytest.importorskip("torch")

from chain import OUTPUTS, Chain, Running, compile_all, delayed  # noqa: E402

from mktune.graph.workload import workload  # noqa: E402
from mktune.ops.add_rmsnorm_quant import AddRmsnormQuant  # noqa: E402
from mktune.ops.gemm_tiles import GemmConfig  # noqa: E402
from mktune.ops.inputs import make_inputs  # noqa: E402
from mktune.ops.qkv_a import QkvA  # noqa: E402
from mktune.ops.tolerances import DIRECT, THROUGH_GEMM  # noqa: E402
from mktune.plan import KernelPlan, OpPlan  # noqa: E402
from mktune.shape import Shape  # noqa: E402

pytestmark = pytest.mark.gpu

ROWS = (1, 2, 7, 8, 16, 17, 32, 64, 100, 128, 256)
GDC = ("entry", "prologue", "prefetch")
TRIGGERS = ("exit", "start", "after_wait", "before_epilogue")
EDGES = ("full", "programmatic", "launch_order")


def b0(impl="wgmma", block_m=16, block_n=64, split_k=3, stages=12, warps=4, finalizer="kernel", threads=512):
    return OpPlan.of(
        impl,
        {
            "block_m": block_m,
            "block_n": block_n,
            "split_k": split_k,
            "stages": stages,
            "warps": warps,
            "finalizer": finalizer,
            "finalizer_threads": threads,
        },
    )


def _cover() -> list[Chain]:
    """Every tile and warp count of both implementations, each with both finalizers; the other knobs take turns."""
    tiles = itertools.product(
        ("wgmma", "mma_sync"), (8, 16, 32, 64, 128), (64, 128), (4, 8), ("kernel", "last_arriver")
    )
    turns = zip(
        itertools.cycle((1, 2, 3, 4, 6, 8, 12, 16, 1)),  # odd lengths, so that both finalizers meet every value
        itertools.cycle((2, 3, 4, 6, 12)),
        itertools.cycle((128, 256, 512)),
        itertools.cycle((192, 384, 768)),
        itertools.cycle(GDC),
        itertools.cycle((*TRIGGERS, "start")),
        itertools.cycle(TRIGGERS[1:]),
        itertools.cycle(("entry", "prologue", "prologue")),
        itertools.cycle(EDGES),
    )
    chains = []
    for impl, block_m, block_n, warps, finalizer in tiles:
        config = GemmConfig(block_m, block_n, 1, 2, warps)
        if config.accumulators > 64 or (impl == "mma_sync" and block_m == 8):
            continue
        split, stages, threads, a0_threads, gdc, trigger, a0_trigger, gdc_small, edge = next(turns)
        stages = min(stages, 48 // split)
        stages -= stages % 2 if config.splits_steps else 0  # warpgroups that take turns
        plan = b0(impl, block_m, block_n, split, stages, warps, finalizer, threads)
        while GemmConfig.of(plan).smem_bytes(48 // split) > 232448:
            stages -= 2 if config.splits_steps else 1
            plan = b0(impl, block_m, block_n, split, stages, warps, finalizer, threads)
        rest = (48 // split - stages) * 128 * block_n
        l2 = min(rest, 65536) if gdc == "prefetch" else 0
        chains.append(
            Chain(
                plan,
                a0_threads,
                KernelPlan(gdc=gdc_small, trigger=a0_trigger),
                KernelPlan(gdc=gdc, trigger=trigger, l2_prefetch_bytes=l2),
                KernelPlan(gdc=gdc_small, trigger=a0_trigger),
                edge,
            )
        )
    return chains


CHAINS = _cover()


def title(chain: Chain) -> str:
    config = GemmConfig.of(chain.b0)
    tile = f"{config.block_m}x{config.block_n}-k{config.split_k}-s{config.stages}-w{config.warps}"
    return f"{chain.b0.impl}-{tile}-{config.finalizer}-{chain.b0p.gdc}-{chain.b0p.trigger}-{chain.edge}"


@pytest.fixture(scope="module")
def kernels(request):
    """Compiled kernels of the tests that were chosen."""
    chosen = [item.callspec.params["chain"] for item in request.session.items if "chain" in item_params(item)]
    firsts = [_first_early(finalizer) for finalizer in ("kernel", "last_arriver")]
    return compile_all([spec for chain in (*chosen, Chain(b0()), *firsts) for spec in chain.specs(ROWS)])


def item_params(item) -> dict:
    return item.callspec.params if hasattr(item, "callspec") else {}


def _first_early(finalizer: str) -> Chain:
    return next(chain for chain in CHAINS if dict(chain.b0.config)["finalizer"] == finalizer and chain.edge != "full")


@dataclass
class Case:
    """Inputs of one shape and what A0 makes of them by the reference."""

    shape: Shape
    inputs: dict

    def fresh_outputs(self) -> dict:
        """Outputs full of 0xFF, the cache as it was."""
        ports = {**AddRmsnormQuant.ports, **QkvA.ports}
        dtypes = {"bf16": torch.bfloat16, "f32": torch.float32, "e4m3": torch.float8_e4m3fn}
        made = {}
        for name in OUTPUTS:
            made[name] = torch.empty(ports[name].size(self.shape), dtype=dtypes[ports[name].dtype], device="cuda")
            made[name].view(torch.uint8).fill_(0xFF)
        return made | {"mla_cache": self.inputs["mla_cache"].clone()}


@cache
def case(m: int) -> Case:
    graph = workload("glm52_attention_prefix").subgraph(("A0", "B0"))
    shape = Shape.from_m(m, 8192)
    return Case(shape, make_inputs(graph, shape, seed=m, device="cuda", ragged=True))


def run(chain: Chain, m: int, kernels, replays: int = 1):
    """Outputs of the last replay, and what of the scratch memory is left; each replay must give the same bits."""
    of = case(m)
    outputs = of.fresh_outputs()
    running = Running(chain, of.shape, kernels, [{**of.inputs, **outputs}])
    first = None
    try:
        for name, buffer in running.scratch.items():
            if not name.endswith("counters"):
                buffer.fill_(0xFF)
        for _ in range(replays):
            for name in OUTPUTS:
                outputs[name].view(torch.uint8).fill_(0xFF)
            running.replay()
            torch.cuda.synchronize()
            bits = [outputs[name].view(torch.uint8).clone() for name in outputs]
            if first is not None:
                differ = [name for name, a, b in zip(outputs, first, bits, strict=True) if not torch.equal(a, b)]
                assert not differ, f"M = {m}: replays differ in {differ}"
            first = bits
    finally:
        running.close()
    return outputs, running.scratch


def faults(chain: Chain, m: int, outputs, scratch) -> list[str]:
    """What is wrong with a run, one line each."""
    of = case(m)
    found = AddRmsnormQuant().compare(of.inputs, outputs, of.shape)
    given = {**of.inputs, "h_q": outputs["h_q"], "h_s": outputs["h_s"]}
    found += QkvA().judge(given, _reference(m, outputs), outputs, THROUGH_GEMM)
    found += [f"{name} is not zero again" for name in scratch if name.endswith("counters") and scratch[name].any()]
    return found + [f"finalizer: {line}" for line in _finalizer_faults(chain, of, given, outputs, scratch)]


def check(chain: Chain, m: int, outputs, scratch) -> None:
    assert faults(chain, m, outputs, scratch) == []


_REFERENCES: dict = {}


def _reference(m: int, outputs):
    """B0's reference on A0's actual result: the same for every config whose A0 gives the same bits."""
    codes = outputs["h_q"].view(torch.uint8)
    for known, expected in _REFERENCES.get(m, []):
        if torch.equal(known, codes):
            return expected
    of = case(m)
    expected = QkvA().reference({**of.inputs, "h_q": outputs["h_q"], "h_s": outputs["h_s"]}, of.shape)
    _REFERENCES.setdefault(m, []).append((codes.clone(), expected))
    return expected


def _finalizer_faults(chain, of, given, outputs, scratch) -> list[str]:
    """The finalizer judged on the GEMM's own result, where that is in memory."""
    m, split = of.shape.m, GemmConfig.of(chain.b0).split_k
    if "y" in scratch:
        y = scratch["y"].view(torch.bfloat16)[: m * 2624].view(m, 2624)
    else:
        parts = scratch["partials"].view(torch.float32)[: split * m * 2624].view(split, m, 2624)
        total = torch.zeros_like(parts[0])
        for part in parts:  # in the kernel's order
            total += part
        y = total.to(torch.bfloat16)
    op = QkvA()
    return op.judge(given, op.finish(y, given), outputs, DIRECT)


@pytest.mark.parametrize("chain", CHAINS, ids=title)
def test_every_tile_is_right_at_every_row_count(chain, kernels):
    wrong = [f"M = {m}: {line}" for m in ROWS for line in faults(chain, m, *run(chain, m, kernels, replays=2))]
    assert not wrong


@pytest.mark.parametrize("finalizer", ["kernel", "last_arriver"])
def test_many_replays_give_the_same_bits(finalizer, kernels):
    chain = _first_early(finalizer)
    outputs, scratch = run(chain, 17, kernels, replays=200)
    check(chain, 17, outputs, scratch)


def _delay_chains() -> list[Chain]:
    """Early triggers, late writes: consumers that do not wait would read poison."""
    late = KernelPlan(gdc="prefetch", trigger="start")
    small = KernelPlan(gdc="prologue", trigger="start")
    plans = (b0(), b0(split_k=1, stages=6), b0(finalizer="last_arriver"), b0("mma_sync", split_k=6, stages=6))
    return [delayed(Chain(plan, 384, small, late, small, "programmatic"), 20000) for plan in plans]


@pytest.mark.parametrize("chain", _delay_chains(), ids=title)
def test_consumers_wait_for_producers_that_trigger_at_once_and_write_late(chain, kernels):
    for m in (1, 16):
        outputs, scratch = run(chain, m, kernels, replays=3)
        check(chain, m, outputs, scratch)


def test_rows_without_a_slot_leave_the_cache_as_it_was(kernels):
    of = case(64)
    assert (of.inputs["slots"] < 0).any(), "the case has no padding row"
    outputs, _ = run(Chain(b0()), 64, kernels)
    rows = outputs["mla_cache"].view(-1, 576)
    untouched = torch.ones(len(rows), dtype=torch.bool, device="cuda")
    untouched[of.inputs["slots"][of.inputs["slots"] >= 0]] = False
    assert torch.equal(rows[untouched], of.inputs["mla_cache"].view(-1, 576)[untouched])


def test_a_wrong_result_is_seen(kernels):
    """The checks themselves: one K group's scale off by a factor of two is an error."""
    of = case(16)
    outputs, scratch = run(Chain(b0()), 16, kernels)
    broken = {**of.inputs, "W_a_s": of.inputs["W_a_s"].clone()}
    broken["W_a_s"][:, 7] *= 2
    given = {**broken, "h_q": outputs["h_q"], "h_s": outputs["h_s"]}
    op = QkvA()
    assert op.judge(given, op.reference(given, of.shape), outputs, THROUGH_GEMM) != []
    check(Chain(b0()), 16, outputs, scratch)
