"""D0, B1 and D1 against the contract's fp64 reference: all tiles, splits, finalizers, placements and row counts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

import pytest

torch = pytest.importorskip("torch")

from chain import H200, compile_all  # noqa: E402

from mktune.errors import CandidateError  # noqa: E402
from mktune.graph.builtin import make_plan  # noqa: E402
from mktune.graph.workload import workload  # noqa: E402
from mktune.lowering.graph import lower  # noqa: E402
from mktune.lowering.kernel_graph import KernelGraph  # noqa: E402
from mktune.measure.correctness import Checked, KnownResults, verify  # noqa: E402
from mktune.measure.memory import Copies, make_memory  # noqa: E402
from mktune.measure.validation import Effort, delayed, producers, validate  # noqa: E402
from mktune.ops.gemm import GemmOp  # noqa: E402
from mktune.ops.gemm_tiles import GemmConfig  # noqa: E402
from mktune.plan import GDC, TRIGGERS, KernelPlan, OpPlan, Plan  # noqa: E402
from mktune.shape import Shape  # noqa: E402
from mktune.validity import check  # noqa: E402

pytestmark = pytest.mark.gpu

WORKLOAD = workload("glm52_attention_prefix")
CALLS = ("D0", "B1", "D1")
ROWS = (1, 2, 7, 8, 16, 17, 32, 64, 100, 128, 256)
KV = 1024
LATE = KernelPlan(gdc="prefetch", trigger="start")
SMALL = KernelPlan(gdc="prologue", trigger="start")


def op_of(call: str) -> GemmOp:
    op = WORKLOAD.graph.calls[call].op
    assert isinstance(op, GemmOp)
    return op


@dataclass(frozen=True)
class Case:
    """One op alone under one config, its kernels placed in their order, its edge of one kind."""

    call: str
    op: OpPlan
    kernels: tuple[KernelPlan, ...]
    edge: str = "programmatic"

    def plan(self, m: int) -> Plan:
        serial = make_plan(WORKLOAD, (self.call,), Shape.from_m(m, KV), "sm_90a", "serial", {self.call: self.op})
        placed = dict(zip(serial.order, self.kernels, strict=True))
        edges = tuple((edge, self.edge) for edge, _ in serial.edges)
        return replace(serial, kernels=tuple(placed.items()), edges=edges).canonical()

    def lowered(self, m: int) -> KernelGraph:
        plan = self.plan(m)
        assert check(plan, H200) == []
        return lower(plan, WORKLOAD.subgraph((self.call,)), plan.shape, H200, launches=True)

    def __str__(self) -> str:
        config, first = GemmConfig.of(self.op), self.kernels[0]
        tile = f"{config.block_m}x{config.block_n}-k{config.split_k}-s{config.stages}-w{config.warps}"
        words = (self.call, self.op.impl, tile, config.finalizer, first.gdc, first.trigger, self.edge)
        return "-".join(filter(None, words))


def default(call: str, edge: str = "programmatic", **fields: int | str) -> Case:
    """The default config, or one like it, waiting as late and triggering as early as can be."""
    plan = op_of(call).default("sm_90a")
    plan = OpPlan.of(plan.impl, {**dict(plan.config), **fields})
    return Case(call, plan, (LATE, SMALL)[: len(op_of(call).kernels(plan))], edge)


def _fitting(op: GemmOp, impl: str, fields: Mapping[str, int | str], shape: Shape) -> OpPlan | None:
    """The config with as many of its stages as exist and fit, or None where the tile does not exist."""
    for stages in range(int(fields["stages"]), 1, -1):
        plan = OpPlan.of(impl, {**fields, "stages": stages})
        if not op.violations(plan, (KernelPlan(),) * len(op.kernels(plan)), shape, H200):
            return plan
    return None


def _cover(call: str) -> Iterator[Case]:
    """Every tile and warp count of our two implementations, with all finalizers; the other knobs take turns."""
    op = op_of(call)
    finalizers = op.finalizers or ("",)
    turns = zip(
        itertools.cycle((1, 2, 1, 3, 4, 6, 8, 1, 12, 16, 2) if op.problem.groups == 48 else (1, 2, 1, 4, 8, 4, 16)),
        itertools.cycle((12, 2, 6, 4, 3)),
        itertools.cycle((256, 128, 512)),
        itertools.cycle((*GDC, "prefetch")),
        itertools.cycle((*TRIGGERS, "start")),
        itertools.cycle(("prologue", "entry", "prologue")),
        itertools.cycle(("full", "programmatic", "launch_order", "programmatic")),
    )
    for impl, choices in op.choices("sm_90a").items():
        if impl == "deep_gemm":
            continue
        tiles = itertools.product(choices["block_m"], choices["block_n"], choices["warps"], finalizers)
        for block_m, block_n, warps, finalizer in tiles:
            split, stages, threads, gdc, trigger, small, edge = next(turns)
            fields = {"block_m": block_m, "block_n": block_n, "split_k": split, "stages": stages, "warps": warps}
            if finalizer:
                fields |= {"finalizer": finalizer, "finalizer_threads": threads}
            # One step of K cannot be shared by two warpgroups.
            fields["split_k"] = 1 if split == op.problem.groups and warps == 8 else split
            if finalizer == "cluster":
                fields["split_k"] = min(split, 8 if block_n == 64 else 16) if split > 1 or block_n == 64 else 4
            plan = _fitting(op, impl, fields, Shape.from_m(16, KV))
            if plan is None:
                continue
            beyond = op.bytes_beyond_ring(GemmConfig.of(plan)) if gdc == "prefetch" else 0
            placed = (KernelPlan(gdc=gdc, trigger=trigger, l2_prefetch_bytes=min(beyond, 32768)),)
            placed += (KernelPlan(gdc=small, trigger=trigger),)
            yield Case(call, plan, placed[: len(op.kernels(plan))], edge)


CASES = [case for call in CALLS for case in _cover(call)]

PROVOKED = [
    default("D0"),
    default("D0", split_k=4, stages=4),
    *(default(call, finalizer=finalizer) for call in ("B1", "D1") for finalizer in ("kernel", "last_arriver")),
    default("B1", finalizer="cluster", split_k=8, block_n=64),
    default("D1", finalizer="cluster", split_k=4, block_n=64),
    *(
        default(call, finalizer="last_arriver", block_n=block_n, split_k=1)
        for call in CALLS[1:]
        for block_n in (64, 128)
    ),
]

FINISHED = [
    default(call, split_k=split, finalizer_threads=threads)
    for call in ("B1", "D1")
    for split, threads in ((1, 128), (4, 512))
]


@pytest.fixture(scope="module")
def kernels(request):
    """Compiled kernels of the tests that were chosen."""
    params = [getattr(item, "callspec", None) for item in request.session.items]
    chosen = [spec.params["case"] for spec in params if spec and isinstance(spec.params.get("case"), Case)]
    graphs = [case.lowered(16) for case in dict.fromkeys((*chosen, *PROVOKED, *FINISHED))]
    provoked = [case.lowered(16) for case in PROVOKED]
    graphs += [delayed(graph, name) for graph in provoked for name in producers(graph)]
    return compile_all([launch.kernel for graph in graphs for _, launch in graph.launches])


@cache
def copies(call: str, m: int) -> Copies:
    graph = WORKLOAD.subgraph((call,))
    return make_memory(graph, Shape.from_m(m, KV), 2, seed=m, place="cuda:0", ragged=True).verification()


@cache
def known(call: str, m: int) -> KnownResults:
    return KnownResults()


def test_every_tile_of_every_op_is_covered():
    """Both of a head's tiles, and a whole one, by all finalizers with and without splits."""
    seen = {
        (case.call, config.finalizer, config.block_n, config.split_k > 1)
        for case in CASES
        for config in [GemmConfig.of(case.op)]
    }
    for call in ("B1", "D1"):
        kinds = set(itertools.product(("kernel", "last_arriver", "cluster"), (64, 128), (False, True)))
        assert {key[1:] for key in seen if key[0] == call} == kinds - {("cluster", 128, False)}  # a cluster of one
    assert {key[1:] for key in seen if key[0] == "D0"} == set(itertools.product(("",), (64, 128), (False, True)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_tile_is_right_at_every_row_count(case, kernels, device):
    wrong = []
    for m in ROWS:
        try:
            verify(case.plan(m), case.lowered(m), kernels, copies(case.call, m), 2, known(case.call, m))
        except CandidateError as error:
            wrong.append(f"M = {m}: {error}")
    assert not wrong


@pytest.mark.parametrize("m", [1, 17, 64])
@pytest.mark.parametrize("case", PROVOKED, ids=str)
def test_many_replays_and_late_producers_give_the_same_bits(case, m, kernels, device):
    effort = Effort(plain=100, delayed=20, shuffles=2)
    text = validate(case.plan(m), case.lowered(m), copies(case.call, m), lambda specs: kernels, effort).how
    assert text.endswith("bit-equal to full edges")
    assert ("p delayed" in text) == (len(case.kernels) == 2)


@pytest.mark.parametrize("m", [1, 17, 64])
@pytest.mark.parametrize("case", FINISHED, ids=str)
def test_a_finalizer_is_right_on_what_its_own_gemm_gave_it(case, m, kernels, device):
    """By the tighter tolerance: no GEMM's rounding stands between."""
    op, split = op_of(case.call), GemmConfig.of(case.op).split_k
    checked = Checked(case.plan(m), case.lowered(m), kernels, copies(case.call, m))
    try:
        checked.replay()
        sums = {name.partition(".")[2]: space for name, space in checked._spaces.items()}
        if split == 1:
            y = sums["y"].view(torch.bfloat16)[: m * op.problem.n]
        else:
            parts = sums["partials"].view(torch.float32)[: split * m * op.problem.n].view(split, -1)
            total = torch.zeros_like(parts[0])
            for part in parts:  # in the kernel's order
                total += part
            y = total.to(torch.bfloat16)
        of = copies(case.call, m)
        last = len(of.made) - 1  # whose sums the workspace still holds
        assert op.compare_finish(y.view(m, -1), of.inputs(last, case.call), of.outputs(last, case.call)) == []
    finally:
        checked.close()


@pytest.mark.parametrize("case", [default(call) for call in CALLS], ids=str)
def test_a_wrong_result_is_seen(case, kernels, device):
    """The checks themselves: one K group's scale off by a factor of two is an error."""
    of, op = copies(case.call, 16), op_of(case.call)
    checked = Checked(case.plan(16), case.lowered(16), kernels, of)
    try:
        checked.replay()
        assert checked.differences() == []
        inputs, scales = of.inputs(0, case.call), op.operands[1]
        broken = inputs[scales].clone()
        broken[:, 7] *= 2
        assert op.compare({**inputs, scales: broken}, of.outputs(0, case.call), Shape.from_m(16, KV)) != []
    finally:
        checked.close()


def test_rows_without_a_slot_leave_the_pages_as_they_were(kernels, device):
    of = copies("B1", 64)
    assert (of.memory.args["slots"] < 0).any(), "the case has no padding row"
    case = default("B1")
    checked = Checked(case.plan(64), case.lowered(64), kernels, of)
    try:
        checked.replay()
        before, after = of.inputs(0, "B1")["index_k_cache"], of.outputs(0, "B1")["index_k_cache"]
        slots = of.memory.args["slots"][of.memory.args["slots"] >= 0]
        assert len((before != after).any(-1).nonzero()) == len((slots // 64).unique())
        assert op_of("B1").compare(of.inputs(0, "B1"), of.outputs(0, "B1"), Shape.from_m(64, KV)) == []
    finally:
        checked.close()
