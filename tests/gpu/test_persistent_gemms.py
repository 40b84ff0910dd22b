"""GEMMs whose CTAs go through several tiles or pieces of tiles, against the contract's fp64 reference.

Every op and schedule with a few tiles, splits and numbers of CTAs; waits, triggers and stages take turns. Every run
poisons results and partial sums, and a second replay must give the same bits; stream_k also under hundreds of replays
and late producers. What a schedule does is proven without a GPU in tests/unit/test_gemm_emulated.py and
test_bf16_gemm_emulated.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache

import pytest

torch = pytest.importorskip("torch")

from chain import H200, Kernels, compile_all  # noqa: E402
from test_config_matrix import KNOWN, Case, op_of  # noqa: E402

from mktune.errors import CandidateError  # noqa: E402
from mktune.measure.correctness import KnownResults, verify  # noqa: E402
from mktune.measure.memory import Copies, make_memory  # noqa: E402
from mktune.measure.validation import Effort, delayed, producers, validate  # noqa: E402
from mktune.ops.gemm import GemmOp  # noqa: E402
from mktune.plan import GDC, TRIGGERS, KernelPlan, OpPlan  # noqa: E402
from mktune.shape import Shape  # noqa: E402

pytestmark = pytest.mark.gpu

CALLS = ("B0", "B1", "C0", "D0", "D1", "D2")
ROWS = (1, 7, 16, 17, 64, 100, 128, 256)
KV = 1000
TILES = ((8, 64, 4), (16, 64, 8), (16, 128, 4), (32, 64, 4), (64, 128, 8), (128, 64, 8))
PROVOKED_ROWS = (16, 100)


def _placed(op: GemmOp, plan: OpPlan, number: int) -> tuple[KernelPlan, ...]:
    gdc, trigger = (*GDC, "prefetch")[number % 4], (*TRIGGERS, "before_epilogue")[number % 5]
    l2 = min(op.l2_limit(plan), 32768) if gdc == "prefetch" else 0
    placed = (KernelPlan(gdc=gdc, trigger=trigger, l2_prefetch_bytes=l2), KernelPlan(gdc="prologue", trigger=trigger))
    return placed[: len(op.kernels(plan))]


def cases(call: str) -> Iterator[Case]:
    """Each tile of each implementation under each schedule, with every number of CTAs in turn."""
    op, number = op_of(call), 0
    assert isinstance(op, GemmOp)
    for impl, fields in op.choices("sm_90a").items():
        if "schedule" not in fields:
            continue
        turns = itertools.cycle(itertools.product((12, 3, 8, 4, 2), fields["ctas"]))
        for (block_m, block_n, warps), schedule in itertools.product(TILES, op.schedules):
            found = 0
            for _ in range(40):
                stages, ctas = next(turns)
                splits = [split for split in fields["split_k"] if schedule == "persistent" or split == 1]
                config = {"block_m": block_m, "block_n": block_n, "warps": warps, "stages": stages, "ctas": ctas}
                config |= {"split_k": splits[number % len(splits)], "schedule": schedule}
                if op.has_finalizer:
                    config |= {"finalizer": "kernel", "finalizer_threads": (128, 256, 512)[number % 3]}
                elif op.finalizers:
                    config["finalizer"] = "last_arriver"
                plan = OpPlan.of(impl, config)
                number += 1
                if any(_exists(op, plan, shape) for shape in _shapes()):
                    yield Case(call, plan, _placed(op, plan, number))
                    found += 1
                if found == 2:
                    break


def _shapes() -> list[Shape]:
    return [Shape.from_m(m, KV) for m in ROWS]


def _exists(op: GemmOp, plan: OpPlan, shape: Shape) -> bool:
    return not op.config_violations(plan, shape, H200)


CASES = {call: list(cases(call)) for call in CALLS}


def _provoked() -> Iterator[Case]:
    late, small = KernelPlan(gdc="prefetch", trigger="start"), KernelPlan(gdc="prologue", trigger="start")
    for call, ctas in (("B0", 132), ("B1", 33), ("C0", 10), ("D0", 132), ("D1", 99), ("D2", 99)):
        op = op_of(call)
        tile = {"block_m": 8 if call == "B1" else 16, "block_n": 64, "split_k": 1, "stages": 4, "ctas": ctas}
        tile |= {"finalizer": "last_arriver"} if call == "C0" else {}
        plan = OpPlan.of("wgmma", {**dict(op.default("sm_90a").config), **tile, "schedule": "stream_k"})
        yield Case(call, plan, (late, small)[: len(op.kernels(plan))])


PROVOKED = list(_provoked())


@cache
def memory(call: str, shape: Shape) -> tuple[Copies, KnownResults]:
    made = make_memory(KNOWN.subgraph((call,)), shape, 2, seed=shape.m, place="cuda:0", ragged=True)
    return made.verification(), KnownResults()


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    """All of them: the number of partial sums that a finalizer kernel adds depends on the rows."""
    everything = [case for cases in CASES.values() for case in cases]
    graphs = [
        case.lowered(shape) for case in everything for shape in _shapes() if _exists(op_of(case.call), case.op, shape)
    ]
    for case, m in itertools.product(PROVOKED, PROVOKED_ROWS):
        graph = case.lowered(Shape.from_m(m, KV))
        graphs += [graph, *(delayed(graph, name) for name in producers(graph))]
    return compile_all([launch.kernel for graph in graphs for _, launch in graph.launches], workers=14)


@pytest.mark.parametrize("call", CALLS)
def test_every_schedule_is_right_at_every_number_of_rows(call, kernels, device):
    wrong, runs = [], 0
    for shape in _shapes():
        copies, known = memory(call, shape)
        for case in CASES[call]:
            if not _exists(op_of(call), case.op, shape):
                continue
            runs += 1
            try:
                verify(case.plan(shape), case.lowered(shape), kernels, copies, 2, known)
            except CandidateError as error:
                wrong.append(f"{case} at {shape}: {error}")
    assert wrong == []
    assert runs > 50


@pytest.mark.parametrize("m", PROVOKED_ROWS)
@pytest.mark.parametrize("case", PROVOKED, ids=lambda case: case.call)
def test_many_replays_and_late_producers_give_the_same_bits(case, m, kernels, device):
    shape = Shape.from_m(m, KV)
    effort = Effort(plain=300, delayed=20, shuffles=2)
    copies, _ = memory(case.call, shape)
    text = validate(case.plan(shape), case.lowered(shape), copies, lambda specs: kernels, effort).how
    assert text.endswith("bit-equal to full edges")
    assert ("p delayed" in text) == (len(case.kernels) == 2)
