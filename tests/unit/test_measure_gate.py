"""Machine code is held against what the closure rule was told of it, before anything is timed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mktune.access import Access, KernelFacts
from mktune.errors import CandidateError, SetupError
from mktune.graph.builtin import make_plan
from mktune.graph.workload import workload
from mktune.launch import BufferArg, CompiledKernel, KernelSpec, Launch, SassFacts, ScalarArg
from mktune.lowering.kernel_graph import Edge, KernelGraph
from mktune.measure.gate import check_facts, check_registers, disagreement, misplaced, undeclared
from mktune.plan import TRIGGERS, KernelPlan, Plan
from mktune.shape import Shape

WAITS = KernelFacts("B", "B", (), waits=True, trigger="after_wait")
CODE = SassFacts(mma=(), tma=False, waits="always", trigger="after_wait", loads_before_wait=4, unproven_loads=0)


@pytest.mark.parametrize("waits", ["some", "never"])
def test_a_wait_that_is_declared_must_be_on_every_path(waits: str) -> None:
    assert "waits" in disagreement(WAITS, replace(CODE, waits=waits), False)
    assert (
        disagreement(replace(WAITS, waits=False, trigger="exit"), replace(CODE, waits=waits, trigger="exit"), False)
        == ""
    )


def test_code_may_trigger_later_than_declared_never_earlier() -> None:
    order = ("before_wait", "after_wait", "exit")
    for declared in order:
        for found in order:
            wrong = disagreement(replace(WAITS, trigger=declared), replace(CODE, trigger=found), False)
            assert bool(wrong) == (order.index(found) < order.index(declared)), (declared, found)


def test_loads_before_the_wait_count_where_an_edge_lets_the_kernel_start_early() -> None:
    code = replace(CODE, unproven_loads=2)
    assert disagreement(WAITS, code, starts_early=True).startswith("2 loads before the wait")
    assert disagreement(WAITS, code, starts_early=False) == ""
    assert disagreement(WAITS, CODE, starts_early=True) == ""


def graph(kind: str) -> KernelGraph:
    kernels = (replace(WAITS, name="A", op="A"), WAITS)
    launches = tuple((name, Launch(KernelSpec("x.cu", name), (1, 1, 1), 32, 0, ())) for name in ("A", "B"))
    return KernelGraph(kernels, (Edge("A", "B", kind),), launches=launches)


def compiled(**facts: SassFacts | None) -> dict[KernelSpec, CompiledKernel]:
    return {
        KernelSpec("x.cu", name): CompiledKernel(
            KernelSpec("x.cu", name), "sm_90a", b"", name, 32, 0, 0, 0, "NVRTC", code
        )
        for name, code in facts.items()
    }


@pytest.mark.parametrize(("spill_bytes", "stack_bytes"), [(8, 0), (0, 16)])
def test_a_kernel_that_keeps_registers_in_local_memory_is_refused(spill_bytes: int, stack_bytes: int) -> None:
    kernels, spec = compiled(A=CODE, B=CODE), KernelSpec("x.cu", "B")
    check_registers(graph("full"), kernels)
    kernels[spec] = replace(kernels[spec], spill_bytes=spill_bytes, stack_bytes=stack_bytes)
    with pytest.raises(CandidateError, match="B: spills") as caught:
        check_registers(graph("full"), kernels)
    assert caught.value.status == "build_error"


@pytest.mark.parametrize(("kind", "early"), [("full", False), ("programmatic", True), ("launch_order", True)])
def test_each_kernel_of_a_graph_is_judged_by_the_edges_into_it(kind: str, early: bool) -> None:
    loads = replace(CODE, unproven_loads=1)
    check_facts(graph(kind), compiled(A=loads, B=CODE))  # nothing lets A start early
    if early:
        with pytest.raises(CandidateError, match=r"^B: 1 loads before the wait") as caught:
            check_facts(graph(kind), compiled(A=CODE, B=loads))
        assert caught.value.status == "build_error"
    else:
        check_facts(graph(kind), compiled(A=CODE, B=loads))


def test_a_plan_that_nobody_can_check_is_not_timed() -> None:
    with pytest.raises(SetupError, match="nvdisasm"):
        check_facts(graph("full"), compiled(A=CODE, B=None))


ARGS = (BufferArg("W", constant=True), BufferArg("x"), ScalarArg(16), BufferArg("table", constant=True))
LAUNCH = Launch(KernelSpec("x.cu", "B"), (1, 1, 1), 32, 0, ARGS)
READS = replace(WAITS, accesses=(Access("W", False, False), Access("x", False, True), Access("y", True, True)))
EARLY = replace(CODE, early_parameters=(0,), trigger_place="after_wait")
PLACED = KernelPlan(gdc="prefetch", trigger="after_wait")


def test_code_reads_early_only_what_its_facts_declare() -> None:
    assert undeclared(READS, LAUNCH, EARLY, starts_early=True) == ""
    wider = replace(EARLY, early_parameters=(0, 3))
    assert undeclared(READS, LAUNCH, wider, starts_early=True).startswith("reads table before its wait")
    assert undeclared(READS, LAUNCH, wider, starts_early=False) == ""
    scalar = replace(EARLY, early_parameters=(0, 2))
    assert "parameter 2, which is a number" in undeclared(READS, LAUNCH, scalar, starts_early=True)
    late = replace(READS, accesses=(Access("W", False, True),))
    assert "reads W before" in undeclared(late, LAUNCH, EARLY, starts_early=True)


def test_code_triggers_where_the_plan_says() -> None:
    places = ("exit", "start", "prologue", "after_wait", "before_epilogue")
    for planned in TRIGGERS:
        for found in places:
            wrong = misplaced(replace(PLACED, trigger=planned), READS, LAUNCH, replace(EARLY, trigger_place=found))
            assert bool(wrong) == (planned != found), (planned, found)


def test_entry_loads_nothing_early_and_prefetch_loads_its_weights() -> None:
    assert misplaced(PLACED, READS, LAUNCH, EARLY) == ""
    none = replace(EARLY, early_parameters=(), loads_before_wait=0)
    assert "should read W before its wait" in misplaced(PLACED, READS, LAUNCH, none)
    at_entry = replace(PLACED, gdc="entry")
    assert "4 loads stand before the wait" in misplaced(at_entry, READS, LAUNCH, EARLY)
    late = replace(READS, accesses=(Access("W", False, True),))
    assert misplaced(at_entry, late, LAUNCH, none) == ""
    assert misplaced(PLACED, READS, LAUNCH, replace(none, waits="never")) == ""  # every read stands before no wait


def test_a_plan_whose_code_does_not_do_what_it_says_is_refused() -> None:
    plan = serial_plan()
    name = plan.order[0]
    placed = plan.kernel[name]
    facts = replace(READS, name=name, op=name, trigger="exit")
    launches = ((name, LAUNCH),)
    lowered = KernelGraph((facts,), (), launches=launches)
    code = replace(EARLY, trigger="exit", trigger_place=placed.trigger)
    late = replace(code, early_parameters=())

    def built(found: SassFacts) -> dict[KernelSpec, CompiledKernel]:
        return {LAUNCH.kernel: CompiledKernel(LAUNCH.kernel, "sm_90a", b"", "B", 32, 0, 0, 0, "NVRTC", found)}

    prefetching = replace(plan, kernels=tuple((one, replace(placed, gdc="prologue")) for one, _ in plan.kernels))
    check_facts(lowered, built(code), prefetching)
    check_facts(lowered, built(late))  # without a plan nobody asks what it prefetches
    with pytest.raises(CandidateError, match=f"^{name}: with gdc = prologue it should read W") as caught:
        check_facts(lowered, built(late), prefetching)
    assert caught.value.status == "build_error"


def serial_plan() -> Plan:
    known = workload("glm52_attention_prefix")
    return make_plan(known, tuple(known.ops), Shape.from_m(16, 8192), "sm_90a", "serial")


def test_what_is_unproven_is_told_with_its_place() -> None:
    code = replace(CODE, unproven_loads=1, unproven=("LDG R4 at 0x0010 in block 0x0000: why",))
    assert disagreement(WAITS, code, starts_early=True).endswith("constants: LDG R4 at 0x0010 in block 0x0000: why")
