"""The unsafe graphs that are shown on a GPU: the rule and the model refuse each, and pass what each was made from."""

from __future__ import annotations

import pytest

from mktune.lowering.closure import close
from mktune.validity.hazards import hazards
from tests.oracle.events import race
from tests.oracle.plans import H200
from tests.oracle.prefix_mutants import UNSAFE, Unsafe, safe_graph, unsafe_graph


def test_there_are_twenty_and_no_two_are_the_same() -> None:
    graphs = {(mutant.base, mutant.slow, unsafe_graph(mutant, H200).edges) for mutant in UNSAFE}
    assert len(graphs) == len(UNSAFE) == 20
    assert {mutant.copies for mutant in UNSAFE} == {1, 2}


@pytest.mark.parametrize("mutant", UNSAFE, ids=lambda mutant: mutant.name)
def test_rule_and_model_refuse_the_mutant_and_pass_its_base(mutant: Unsafe) -> None:
    wrong = unsafe_graph(mutant, H200)
    assert hazards(wrong)
    assert race(wrong, copies=1) is not None
    right = safe_graph(mutant.base, mutant.copies, H200)
    assert hazards(right) == []
    assert race(right, copies=1) is None


@pytest.mark.parametrize("mutant", UNSAFE, ids=lambda mutant: mutant.name)
def test_the_slow_kernel_is_one_that_others_do_not_wait_for(mutant: Unsafe) -> None:
    graph = unsafe_graph(mutant, H200)
    closed = close(graph)
    kernels = {kernel.name: kernel for kernel in graph.kernels}
    late = {access.buffer for access in kernels[mutant.slow].accesses if access.writes}
    races = [
        name
        for name, kernel in kernels.items()
        if name != mutant.slow
        and mutant.slow not in closed.wait(name)
        and name not in closed.wait(mutant.slow)
        and late & {access.buffer for access in kernel.accesses}
    ]
    assert races, mutant.name


@pytest.mark.parametrize("mutant", UNSAFE, ids=lambda mutant: mutant.name)
def test_its_launches_name_their_copys_buffers_and_one_kernel_sleeps(mutant: Unsafe) -> None:
    graph = unsafe_graph(mutant, H200, launches=True)
    launches = dict(graph.launches)
    assert set(launches) == {kernel.name for kernel in graph.kernels}
    asleep = [name for name, launch in launches.items() if "MKTUNE_DELAY_NS" in dict(launch.kernel.defines)]
    assert asleep == [mutant.slow]
    for copy in range(mutant.copies):
        buffers = {arg.buffer for arg in launches[f"B0p@{copy}"].args if hasattr(arg, "buffer")}
        assert {f"W_a@{copy}", "h_q"} <= buffers
