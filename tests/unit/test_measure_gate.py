"""Machine code is held against what the closure rule was told of it, before anything is timed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mktune.access import KernelFacts
from mktune.errors import CandidateError, SetupError
from mktune.launch import CompiledKernel, KernelSpec, Launch, SassFacts
from mktune.lowering.kernel_graph import Edge, KernelGraph
from mktune.measure.gate import check_facts, disagreement

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
