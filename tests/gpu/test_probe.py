"""The probe on a GPU: the default kernels wait for a late producer, and each is caught when it is built not to."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from whole import builtin, compiled, compiling, lowered, problem  # noqa: E402

from mktune.errors import CandidateError  # noqa: E402
from mktune.lowering.kernel_graph import specs_of  # noqa: E402
from mktune.measure.probe import Probe  # noqa: E402
from mktune.ops.launch import with_defines  # noqa: E402

pytestmark = pytest.mark.gpu

KERNELS = ("A0", "B0p", "B0f", "C0", "B1p", "B1f", "D0", "D1p", "D1f", "D2", "E1")
CELLS = [(1, 64), (16, 8192), (64, 4096)]
RIGHT = ("serial", "branches+pdl", "article")
MUTATED = ("serial", "branches+pdl")


def mutant_of(graph, kernel):
    launches = dict(graph.launches)
    launches[kernel] = with_defines(launches[kernel], {"MKTUNE_WITHOUT_WAIT": "1"})
    return replace(graph, launches=tuple(launches.items()))


@pytest.fixture(scope="module", autouse=True)
def compiled_ahead(device):
    graphs = [lowered(builtin(mode, m, kv, device.arch), device) for mode in RIGHT for m, kv in CELLS]
    bases = [lowered(builtin(mode, 16, 8192, device.arch), device) for mode in MUTATED]
    graphs += [mutant_of(graph, kernel) for graph in bases for kernel in KERNELS]
    with compiling(list(dict.fromkeys(spec for graph in graphs for spec in specs_of(graph))), device):
        yield


def probed(probe, plan, graph, device):
    copies, _ = problem(plan.shape.m, plan.shape.kv, False)
    return probe.check(plan, graph, compiled(device, specs_of(graph)), copies)


@pytest.mark.parametrize(("m", "kv"), CELLS)
@pytest.mark.parametrize("mode", RIGHT)
def test_the_default_kernels_hold(device, mode, m, kv):
    plan = builtin(mode, m, kv, device.arch)
    probe = Probe(lambda specs: compiled(device, specs))
    assert probed(probe, plan, lowered(plan, device), device) == "11 kernels held"
    assert probed(probe, plan, lowered(plan, device), device) == "11 kernels held"  # those that did before


@pytest.mark.parametrize("mode", MUTATED)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_that_does_not_wait_is_caught(device, kernel, mode):
    plan = builtin(mode, 16, 8192, device.arch)
    mutant = mutant_of(lowered(plan, device), kernel)
    facts = compiled(device, specs_of(mutant))[dict(mutant.launches)[kernel].kernel].facts
    assert facts is None or facts.waits == "never"
    with pytest.raises(CandidateError, match=f"{kernel}: behind a late producer it had changed [0-9]+ words") as caught:
        probed(Probe(lambda specs: compiled(device, specs)), plan, mutant, device)
    print(caught.value)
