"""Every op in every class of config, at every number of rows, against the contract's fp64 reference.

A class is an implementation with one value of each field that selects code: tiles, finalizer, with splits or without,
E1's splits and query blocks; CTAs that have several tiles are in test_persistent_gemms.py. Fields that only size a ring
or a team take turns, and so do waits and triggers. Every run poisons results, workspaces and the cache rows that are
to be written, two layers share the workspaces, contexts are shorter than the cache, every fifth row is padding (slot
−1), and a second replay must give the same bits.

The cache's capacity means something to five ops. To E1 it is the length of its rows: it meets every class. B0, B1, D1
and D2 only get other positions and slots: one class of each finalizer meets every capacity. A0, C0 and D0 never see
it.

An op's tests stay in one process, behind the "@" of their ids, and share its references.
"""

from __future__ import annotations

import fcntl
import itertools
from collections.abc import Iterator, Sequence

import pytest

torch = pytest.importorskip("torch")

from chain import H200, Kernels, compile_all  # noqa: E402
from configured import KNOWN, Case, faults, memory  # noqa: E402

from mktune.jit.build import build  # noqa: E402
from mktune.ops.base import Op  # noqa: E402
from mktune.plan import KernelPlan, OpPlan  # noqa: E402
from mktune.shape import Shape  # noqa: E402

pytestmark = pytest.mark.gpu

ROWS = (1, 2, 7, 8, 16, 17, 32, 64, 100, 128, 256)
CAPACITIES = (64, 100, 4096, 8192, 65536)
PLAIN_CAPACITY = 1000  # not a whole number of pages
TURNING = ("stages", "warps", "finalizer_threads", "ahead")
GEMMS = ("B0", "C0", "B1", "D0", "D1", "D2")
POSITIONED = ("B0", "B1", "D1", "D2")


def op_of(call: str) -> Op:
    return KNOWN.graph.calls[call].op


def classes(call: str) -> Iterator[Case]:
    op, number = op_of(call), 0
    for impl, fields in op.choices("sm_90a").items():
        if impl == "deep_gemm":  # its templates have a test of their own
            continue
        fields = {
            name: (op.implied[name], *values) if name in op.implied else values
            for name, values in fields.items()
            if name not in op.implied or name in TURNING
        }
        selecting = {name: [(value,) for value in values] for name, values in fields.items() if name not in TURNING}
        if "split_k" in fields:
            selecting["split_k"] = [(1,), tuple(value for value in fields["split_k"] if value != 1)]
        turning = {name: fields[name] for name in TURNING if name in fields}
        for chosen in itertools.product(*selecting.values()):
            values = dict(zip(selecting, chosen, strict=True)) | turning
            found = _first_legal(call, impl, {name: _turned(some, number) for name, some in values.items()})
            if found is not None:
                yield Case(call, found, _placed(op, found, number))
                number += 1


def _turned(values: Sequence, by: int) -> tuple:
    return (*values[by % len(values) :], *values[: by % len(values)])


def _first_legal(call: str, impl: str, fields: dict[str, tuple]) -> OpPlan | None:
    op, shape = op_of(call), Shape(2, 8, PLAIN_CAPACITY)
    for values in itertools.product(*fields.values()):
        chosen = dict(zip(fields, values, strict=True))
        plan = OpPlan.of(impl, {name: value for name, value in chosen.items() if op.implied.get(name) != value})
        if not op.violations(plan, (KernelPlan(),) * len(op.kernels(plan)), shape, H200):
            return plan
    return None


def _placed(op: Op, plan: OpPlan, number: int) -> tuple[KernelPlan, ...]:
    return tuple(
        KernelPlan(
            gdc=_turned(op.gdc_values(plan, suffix), number + at)[0],
            trigger=_turned(op.trigger_values(plan, suffix), number // 2 + at)[0],
        )
        for at, suffix in enumerate(op.kernels(plan))
    )


CASES = {call: tuple(classes(call)) for call in ("A0", *GEMMS, "E1")}


def _each_finalizer(call: str) -> list[Case]:
    kinds = {(case.op.impl, dict(case.op.config).get("finalizer"), len(case.kernels)): case for case in CASES[call]}
    return list(kinds.values())


def _capacities(call: str) -> Iterator:
    """(call, kv), by the process of a capacity."""
    for kv in CAPACITIES:
        yield pytest.param(call, kv, id=f"{call}-{kv}@kv {kv}")


def _slices() -> Iterator:
    """(cases, rows) that one test runs: those of one op, implementation and block of rows."""
    for call in ("A0", *GEMMS):
        groups: dict[str, list[Case]] = {}
        for case in CASES[call]:
            config = dict(case.op.config)
            groups.setdefault(f"{call}-{case.op.impl}-{config.get('block_m', '')}".rstrip("-"), []).append(case)
        for title, cases in groups.items():
            yield pytest.param(cases, id=f"{title}@{call}")


@pytest.fixture(scope="module")
def kernels(tmp_path_factory) -> Kernels:
    """All of them, compiled once for all processes of a run."""
    graphs = [case.lowered(Shape(2, 8, PLAIN_CAPACITY)) for cases in CASES.values() for case in cases]
    graphs += [case.lowered(shape) for case in CASES["A0"] for shape in _shapes(PLAIN_CAPACITY)]  # teams go by rows
    specs = list(dict.fromkeys(launch.kernel for graph in graphs for _, launch in graph.launches))
    shared = tmp_path_factory.getbasetemp().parent
    with (shared / "compiling").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "compiled").exists():
            compile_all(specs, workers=14)
            (shared / "compiled").touch()
    return {kernel.spec: kernel for kernel in build(specs, "sm_90a", facts=False)}


def _shapes(capacity: int) -> list[Shape]:
    return [Shape.from_m(m, capacity) for m in ROWS]


@pytest.mark.parametrize("cases", list(_slices()))
def test_every_class_is_right_at_every_number_of_rows(cases, kernels, device):
    assert [line for case in cases for line in faults(case, _shapes(PLAIN_CAPACITY), kernels)] == []


@pytest.mark.parametrize(("call", "kv"), [param for call in POSITIONED for param in _capacities(call)])
def test_positions_and_slots_of_every_capacity(call, kv, kernels, device):
    assert [line for case in _each_finalizer(call) for line in faults(case, _shapes(kv), kernels)] == []
    memory.cache_clear()


@pytest.mark.parametrize("kv", [pytest.param(kv, id=f"{kv}@E1 {kv}") for kv in CAPACITIES])
def test_scores_of_every_class_at_every_number_of_rows_and_capacity(kv, kernels, device):
    wrong = []
    for shape in _shapes(kv):  # one after the other: they are large
        wrong += [line for case in CASES["E1"] for line in faults(case, [shape], kernels)]
        memory.cache_clear()
    assert wrong == []


@pytest.mark.parametrize("ragged", [False, True], ids=["full@E1 long", "ragged@E1 long"])
def test_scores_of_the_largest_cache(ragged, kernels, device):
    shape = Shape(2, 8, 131072)
    assert [line for case in CASES["E1"] for line in faults(case, [shape], kernels, ragged)] == []
    memory.cache_clear()


@pytest.mark.parametrize("call", [*POSITIONED, "E1"], ids=lambda call: f"{call}@tokens")
def test_requests_of_any_number_of_tokens(call, kernels, device):
    shapes = [Shape(4, 1, 300), Shape(5, 2, 64), Shape(3, 4, 100), Shape(2, 8, 512), Shape(3, 5, 1000)]
    shapes += [Shape(1, 7, 65), Shape(2, 33, 4096)]
    cases = CASES[call] if call == "E1" else _each_finalizer(call)
    assert [line for case in cases for line in faults(case, shapes, kernels)] == []
    memory.cache_clear()


def test_the_cases_have_padding_and_contexts_below_the_capacity(device):
    for call in ("B0", "B1"):
        copies, _ = memory(call, Shape.from_m(16, PLAIN_CAPACITY), True, KNOWN.scale_format)
        assert (copies.memory.args["slots"] < 0).sum() == 3
    copies, _ = memory("E1", Shape.from_m(16, PLAIN_CAPACITY), True, KNOWN.scale_format)
    lens = copies.memory.args["context_lens"]
    assert len(lens.unique()) > 8
    assert lens.max() < PLAIN_CAPACITY
