"""Kernels that two ops share compute what the ops do: in every class of config, in the whole prefix, and when slow.

The classes of a pair run in the smallest connected part of the workload that has it, at every number of rows that
matters: one row, fewer than a tile, whole tiles, one row more, several tiles. Tiles of the two ops differ in their
rows, so that their grids are cut differently. The whole prefix runs a few of them on one stream and on branches with
every edge programmatic, and again with each producer slow.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from whole import WORKLOAD, assert_holds, assert_right, compiled, compiling, lowered, wanted  # noqa: E402

from mktune.backends.base import Problem  # noqa: E402
from mktune.backends.cuda import CudaBackend  # noqa: E402
from mktune.errors import CandidateError  # noqa: E402
from mktune.graph.builtin import make_plan  # noqa: E402
from mktune.graph.fused import fused_among  # noqa: E402
from mktune.lowering.graph import lower  # noqa: E402
from mktune.lowering.kernel_graph import specs_of  # noqa: E402
from mktune.measure.correctness import KnownResults, verify  # noqa: E402
from mktune.measure.gate import check_facts  # noqa: E402
from mktune.measure.memory import make_memory  # noqa: E402
from mktune.ops.sharing import IMPLS  # noqa: E402
from mktune.plan import GDC, TRIGGERS, OpPlan, Plan  # noqa: E402
from mktune.shape import Shape  # noqa: E402
from mktune.validity import check  # noqa: E402

pytestmark = pytest.mark.gpu

KV_OF = {1: 64, 7: 4096, 16: 8192, 17: 64, 64: 100, 128: 8192}
"""Every M that is tested, and its KV."""
PARTS = {"B1p+C0": ("A0", "C0", "B1"), "D0+D1p": ("B0", "D0", "D1")}
"""Fused kernel → a small connected part of the workload that has it."""
OPS = WORKLOAD.fused_kernels(None, "sm_90a")
BLOCKS = ((8, 8), (16, 16), (16, 32), (32, 16), (64, 64), (64, 16), (16, 128), (128, 64))
"""Rows of a tile of the first op and of the second."""
SPLITS = {"B1": (1, 4, 12, 2), "C0": (1, 16, 3, 8), "D0": (1, 2, 4, 8), "D1": (1, 4, 2, 8)}


def shape_of(m: int) -> Shape:
    return Shape.from_m(m, KV_OF[m])


# ---- every class of a pair


@functools.cache
def classes(name: str) -> tuple[Plan, ...]:
    """A plan at M = 16 for each class: blocks, who finishes, splits or none; the rest takes turns."""
    return tuple(_classes(name))


def _classes(name: str) -> Iterator[Plan]:
    turns = itertools.count()
    for impl, blocks, finalizer, split in itertools.product(IMPLS, BLOCKS, ("kernel", "last_arriver"), (False, True)):
        if impl == "mma_sync" and 8 in blocks:
            continue
        found = first_legal(name, impl, blocks, finalizer, split, next(turns))
        if found is not None:
            yield found


def first_legal(name, impl, blocks, finalizer, split, turn) -> Plan | None:
    """The first plan of the class that is right, trying the fields that take turns from another place each time."""
    rest = list(itertools.product((4, 8), (64, 128), (64, 128), (4, 2, 6), range(1, 4)))
    for warps, first_n, second_n, stages, at in rest[turn % len(rest) :] + rest[: turn % len(rest)]:
        fields = {"warps": warps, "stages": stages}
        configs = {}
        for op, block_m, block_n in zip(OPS[name], blocks, (first_n, second_n), strict=True):
            own = {**fields, "block_m": block_m, "block_n": 64 if op == "C0" else block_n}
            own["split_k"] = SPLITS[op][at] if split else 1
            default = dict(WORKLOAD.graph.calls[op].op.default("sm_90a").config)
            if "finalizer" in default:
                own["finalizer"] = "last_arriver" if op == "C0" else finalizer
            configs[op] = OpPlan.of(impl, {**default, **own})
        plan = make_plan(WORKLOAD, PARTS[name], shape_of(16), "sm_90a", "branches+pdl", configs, (name,))
        placed = replace(plan.kernel[name], gdc=GDC[turn % 3], trigger=TRIGGERS[turn // 3 % 4])
        plan = replace(plan, kernels=tuple({**plan.kernel, name: placed}.items()))
        if check(plan, _h200()) == []:
            return plan
    return None


@functools.cache
def _h200():
    from mktune.backends.models import gpu_of

    return gpu_of("sm_90a")


def at(plan: Plan, shape: Shape) -> Plan:
    kv_range = WORKLOAD.subgraph(plan.op_names).served_kv(shape)
    return replace(plan, shape=shape, m_range=shape.served_m, kv_range=kv_range)


def test_the_classes_are_many_and_cut_their_grids_differently():
    for name, ops in OPS.items():
        assert len(classes(name)) >= 40
        fields = [{op: dict(plan.op[op].config) for op in ops} for plan in classes(name)]
        assert any(one[ops[0]]["block_m"] != one[ops[1]]["block_m"] for one in fields)
        assert {one[ops[0]]["warps"] for one in fields} == {4, 8}
        assert {plan.kernel[name].gdc for plan in classes(name)} == set(GDC)
        assert {plan.kernel[name].trigger for plan in classes(name)} == set(TRIGGERS)


def lowered_part(plan: Plan, device):
    assert check(plan, device) == []
    return lower(plan, WORKLOAD.subgraph(plan.op_names), plan.shape, device, launches=True)


@functools.cache
def of_classes(name: str, device):
    """Compiled kernels of all classes of one pair."""
    graphs = [lowered_part(at(plan, shape_of(m)), device) for plan in classes(name) for m in KV_OF]
    specs = list(dict.fromkeys(spec for graph in graphs for spec in specs_of(graph)))
    with compiling(specs, device):
        return compiled(device, specs)


def _rows_of_pairs() -> Iterator:
    """(fused kernel, M), a pair in one process and any other pair in any."""
    for name, m in itertools.product(PARTS, KV_OF):
        yield pytest.param(name, m, id=f"{name}-{m}@{name}")


@pytest.mark.parametrize(("name", "m"), list(_rows_of_pairs()))
def test_every_class_is_right(device, name, m):
    """Over poison, with padding rows and short contexts, op by op against the fp64 reference; then bit by bit."""
    memory = make_memory(WORKLOAD.subgraph(PARTS[name]), shape_of(m), 2, seed=m, place="cuda:0", ragged=True)
    copies, known, wrong = memory.verification(), KnownResults(), []
    kernels = of_classes(name, device)
    for plan in classes(name):
        plan = at(plan, shape_of(m))
        graph = lowered_part(plan, device)
        try:
            check_facts(graph, kernels, plan)
            verify(plan, graph, kernels, copies, 3, known)
        except CandidateError as error:
            wrong.append(f"{[plan.op[op] for op in OPS[name]]}: {error}")
    assert wrong == []


# ---- the whole prefix

LAST: dict[str, int | str] = {"finalizer": "last_arriver"}
WHOLE: dict[str, dict[str, dict[str, int | str]]] = {
    "finalizers out": {"C0": LAST, "D0": {"stages": 4}},
    "finalizers in": {"C0": LAST, "B1": LAST, "D1": LAST, "D0": {"split_k": 2, "stages": 4}},
    "no splits": {
        "C0": {**LAST, "split_k": 1},
        "B1": {**LAST, "split_k": 1, "block_n": 128},
        "D1": {**LAST, "split_k": 1, "block_n": 128},
    },
}
BOTH = tuple(PARTS)
FUSED = {"B1+C0": BOTH[:1], "D0+D1": BOTH[1:], "both": BOTH}


def whole_plan(mode: str, case: str, fused: str, m: int, arch: str) -> Plan:
    ops = WORKLOAD.default_ops(WORKLOAD.ops, arch)
    for op, fields in WHOLE[case].items():
        ops[op] = OpPlan.of(ops[op].impl, {**dict(ops[op].config), **fields})
    return make_plan(WORKLOAD, None, shape_of(m), arch, mode, ops, FUSED[fused])


MODES = ("serial", "branches+pdl")
RIGHT = [(m, mode, case, fused) for m in KV_OF for mode in MODES for case in WHOLE for fused in FUSED]
HOLDS = [(m, case, fused) for m in (1, 17, 64) for case, fused in itertools.product(list(WHOLE)[:2], FUSED)]


@pytest.fixture(scope="module")
def of_prefix(device):
    plans = [whole_plan(mode, case, fused, m, device.arch) for m, mode, case, fused in RIGHT]
    slow = [whole_plan("branches+pdl", case, fused, m, device.arch) for m, case, fused in HOLDS]
    with compiling(wanted(plans, slow, device), device):
        yield


@pytest.mark.parametrize(("m", "mode", "case", "fused"), RIGHT)
def test_the_whole_prefix_is_right(device, of_prefix, m, mode, case, fused):
    assert_right(whole_plan(mode, case, fused, m, device.arch), device, ragged=m != 16)


@pytest.mark.parametrize(("m", "case", "fused"), HOLDS)
def test_early_starts_survive_slow_producers(device, of_prefix, m, case, fused):
    """The fused kernel too is built asleep between its trigger and its results."""
    assert_holds(whole_plan("branches+pdl", case, fused, m, device.arch), device)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", list(WHOLE)[:2])
def test_fused_and_unfused_plans_give_the_same_bits(device, of_prefix, mode, case):
    """Tiles, splits and the order in which sums are added are those of the ops alone."""
    from mktune.measure.correctness import Checked, unequal_bits

    copies = make_memory(WORKLOAD.graph, shape_of(16), 2, seed=1, place="cuda:0").verification()
    results = []
    for plan in (whole_plan(mode, case, "both", 16, device.arch), None):
        if plan is None:
            fused = whole_plan(mode, case, "both", 16, device.arch)
            plan = make_plan(WORKLOAD, None, shape_of(16), device.arch, mode, fused.op)
        graph = lowered(plan, device)
        checked = Checked(plan, graph, compiled(device, specs_of(graph)), copies)
        try:
            checked.replay()
            results.append(checked.results())
        finally:
            checked.close()
    assert unequal_bits(*results) == []


# ---- measuring them


@pytest.mark.gpu_alone
def test_a_fused_plan_is_measured_traced_and_loaded_as_any_other(device):
    shape = shape_of(16)
    plans = {fused: whole_plan("branches+pdl", "finalizers out", fused, 16, device.arch) for fused in FUSED}
    plans["alone"] = make_plan(WORKLOAD, None, shape, device.arch, "branches+pdl", plans["both"].op)
    with CudaBackend().open(Problem(WORKLOAD.name, WORKLOAD.ops, shape)) as bench:
        bench.prepare(list(plans.values()))
        spans = {}
        for name, plan in plans.items():
            outcome = bench.measure(plan, None)
            assert outcome.measurement is not None, outcome
            spans[name] = outcome.measurement.span_us
        print("spans", spans)
        trace = bench.trace(plans["both"])
        again = bench.measure(replace(plans["both"], executor="streams"), None)
    assert again.measurement is not None, again
    assert [kernel.name for kernel in trace.kernels] == list(plans["both"].order)
    for kernel in trace.kernels:
        if kernel.name in fused_among(plans["both"].kernel):
            assert len(kernel.ctas) == kernel.grid > 30
            assert all(cta.begin <= cta.ready + 0.1 and cta.ready <= cta.end for cta in kernel.ctas)
            assert all(cta.triggered is not None for cta in kernel.ctas)


def test_a_fused_plan_replays_on_an_engines_own_tensors(device):
    from mktune.ops.inputs import make_inputs
    from mktune.runtime.replay import load

    shape = shape_of(16)
    plan = whole_plan("branches+pdl", "finalizers in", "both", 16, device.arch)
    tensors = make_inputs(WORKLOAD.graph, shape, device="cuda")
    stream = torch.cuda.current_stream()
    with load(plan, {name: value.clone() for name, value in tensors.items()}) as loaded:
        loaded.replay(stream)
        torch.cuda.synchronize()
        first = {name: loaded.tensors[name].clone() for name in WORKLOAD.graph.outputs}
    with load(plan, {name: value.clone() for name, value in tensors.items()}) as loaded:
        loaded.launch(stream)
        torch.cuda.synchronize()
        compared = {name: loaded.tensors[name] for name in WORKLOAD.graph.outputs if name != "logits"}
        for name, value in compared.items():
            assert torch.equal(value.view(torch.uint8), first[name].view(torch.uint8)), name
