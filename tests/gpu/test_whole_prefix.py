"""The whole prefix is right in every structure: built-in plans, the published one, and random ones of the search space.

Every M that the kernels are tested at, each with one KV: over poison, replay after replay, op by op against the
references; a few plans also with slow producers and shuffled priorities.
"""

import functools
from contextlib import suppress
from random import Random

import pytest

from mktune.errors import CandidateError
from mktune.graph.builtin import MODES, make_plan
from mktune.graph.workload import workload
from mktune.graph.workloads.glm52_attention_prefix import article_plan
from mktune.jit.build import build
from mktune.lowering.graph import lower
from mktune.lowering.kernel_graph import specs_of
from mktune.measure.compile_ahead import CompileAhead
from mktune.measure.correctness import KnownResults, verify
from mktune.measure.gate import check_facts
from mktune.measure.memory import make_memory
from mktune.measure.validation import Effort, delayed, producers, validate
from mktune.shape import Shape
from mktune.space import SearchSpace
from mktune.validity import check

pytestmark = pytest.mark.gpu

WORKLOAD = workload("glm52_attention_prefix")
KV_OF = {1: 64, 2: 100, 7: 4096, 8: 8192, 16: 65536, 17: 64, 64: 4096, 100: 100, 128: 8192, 256: 100}
BUILTIN = (*MODES, "article")
RANDOM = [(m, kv, seed) for seed, (m, kv) in enumerate([*KV_OF.items(), (16, 8192), (64, 100)])]
VALIDATED = [("branches+pdl", 1, 64), ("branches+pdl", 16, 100), ("article", 16, 100), ("article", 64, 64)]
RANDOM_VALIDATED = [case for case in RANDOM if case[1] <= 100][:3]
REPLAYS = 8
EFFORT = Effort(plain=60, delayed=16, shuffles=2)


def builtin(name, m, kv, arch):
    shape = Shape.from_m(m, kv)
    return article_plan(shape, arch) if name == "article" else make_plan(WORKLOAD, None, shape, arch, name)


@functools.cache
def random_plan(m, kv, seed, device):
    space = SearchSpace.load(WORKLOAD, None, Shape.from_m(m, kv), device)
    draw = Random(seed)
    plans = (space.walk(lambda question: draw.choice(list(question.options)))[1] for _ in range(100))
    return next(plan for plan in plans if check(plan, device) == [])


def lowered(plan, device):
    assert check(plan, device) == []
    return lower(plan, WORKLOAD.graph, plan.shape, device, launches=True)


def wanted(device):
    """Every kernel that some test here launches."""
    plans = [builtin(name, m, kv, device.arch) for m, kv in KV_OF.items() for name in BUILTIN]
    slow = [builtin(*case, device.arch) for case in VALIDATED]
    slow += [random_plan(*case, device) for case in RANDOM_VALIDATED]
    graphs = [lowered(plan, device) for plan in (*plans, *slow, *(random_plan(*case, device) for case in RANDOM))]
    graphs += [delayed(graph, name) for graph in (lowered(plan, device) for plan in slow) for name in producers(graph)]
    return list(dict.fromkeys(spec for graph in graphs for spec in specs_of(graph)))


@pytest.fixture(scope="module", autouse=True)
def compiled_ahead(device):
    """Fills the cache of cubins in parallel; a kernel that does not compile fails the tests that launch it."""
    ahead = CompileAhead(device.arch)
    with suppress(CandidateError):
        ahead.wait(wanted(device))
    yield
    ahead.close()


def compiled(device, specs):
    return {kernel.spec: kernel for kernel in build(list(dict.fromkeys(specs)), device.arch)}


@functools.lru_cache(maxsize=2)
def problem(m, kv, ragged):
    """The copies to verify with, and which results were found to be right on them."""
    memory = make_memory(WORKLOAD.graph, Shape.from_m(m, kv), 2, seed=m, place="cuda:0", ragged=ragged)
    return memory.verification(), KnownResults()


def assert_right(plan, device):
    graph = lowered(plan, device)
    kernels = compiled(device, specs_of(graph))
    check_facts(graph, kernels)
    for ragged in (False, True):
        copies, known = problem(plan.shape.m, plan.shape.kv, ragged)
        verify(plan, graph, kernels, copies, REPLAYS, known)


@pytest.mark.parametrize("name", BUILTIN)
@pytest.mark.parametrize(("m", "kv"), KV_OF.items())
def test_builtin_and_published_plans_equal_the_reference(device, m, kv, name):
    assert_right(builtin(name, m, kv, device.arch), device)


@pytest.mark.parametrize(("m", "kv", "seed"), RANDOM)
def test_random_plans_of_the_space_equal_the_reference(device, m, kv, seed):
    assert_right(random_plan(m, kv, seed, device), device)


@pytest.mark.parametrize(("name", "m", "kv"), VALIDATED)
def test_early_starts_survive_slow_producers(device, name, m, kv):
    validated(builtin(name, m, kv, device.arch), device)


@pytest.mark.parametrize(("m", "kv", "seed"), RANDOM_VALIDATED)
def test_random_plans_survive_slow_producers(device, m, kv, seed):
    validated(random_plan(m, kv, seed, device), device)


def validated(plan, device):
    graph = lowered(plan, device)
    assert producers(graph)
    copies, _ = problem(plan.shape.m, plan.shape.kv, False)
    text = validate(plan, graph, copies, functools.partial(compiled, device), EFFORT)
    print(plan.short_id, text)
    assert text.startswith(f"{EFFORT.plain + EFFORT.delayed * len(producers(graph))} poisoned replays")
