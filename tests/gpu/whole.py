"""Plans of the whole prefix on a GPU: lowered, compiled ahead in parallel, held against the references."""

import functools
from collections.abc import Iterable
from contextlib import contextmanager, suppress

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
from mktune.plan import Plan
from mktune.shape import Shape
from mktune.validity import check

WORKLOAD = workload("glm52_attention_prefix")
BUILTIN = (*MODES, "article")
KV_OF = {1: 64, 2: 100, 7: 4096, 8: 8192, 16: 65536, 17: 64, 64: 4096, 100: 100, 128: 8192, 256: 100}
"""Every M that kernels are tested at, and the KV that it is tested with here."""

REPLAYS = 8
EFFORT = Effort(plain=60, delayed=16, shuffles=2)


def builtin(name, m, kv, arch):
    """A built-in plan, or the published one."""
    shape = Shape.from_m(m, kv)
    return article_plan(shape, arch) if name == "article" else make_plan(WORKLOAD, None, shape, arch, name)


def lowered(plan, device):
    assert check(plan, device) == []
    return lower(plan, WORKLOAD.graph, plan.shape, device, launches=True)


def wanted(plans: Iterable[Plan], slow: Iterable[Plan], device):
    """Every kernel that these plans launch, and those of `slow` with each producer asleep."""
    slow = [lowered(plan, device) for plan in slow]
    graphs = [lowered(plan, device) for plan in plans] + slow
    graphs += [delayed(graph, name) for graph in slow for name in producers(graph)]
    return list(dict.fromkeys(spec for graph in graphs for spec in specs_of(graph)))


@contextmanager
def compiling(specs, device):
    """Fills the cache of cubins in parallel; a kernel that does not compile fails the tests that launch it."""
    ahead = CompileAhead(device.arch)
    with suppress(CandidateError):
        ahead.wait(specs)
    yield
    ahead.close()


def compiled(device, specs):
    return {kernel.spec: kernel for kernel in build(list(dict.fromkeys(specs)), device.arch)}


@functools.lru_cache(maxsize=2)
def problem(m, kv, ragged):
    """The copies to verify with, and which results were found to be right on them."""
    memory = make_memory(WORKLOAD.graph, Shape.from_m(m, kv), 2, seed=m, place="cuda:0", ragged=ragged)
    return memory.verification(), KnownResults()


def assert_right(plan, device, ragged):
    """Over poison, replay after replay, op by op; and the machine code does what the rule was told."""
    graph = lowered(plan, device)
    kernels = compiled(device, specs_of(graph))
    check_facts(graph, kernels)
    copies, known = problem(plan.shape.m, plan.shape.kv, ragged)
    verify(plan, graph, kernels, copies, REPLAYS, known)


def assert_holds(plan, device):
    """The same with each producer slow in turn, and shuffled priorities, bit by bit against full edges."""
    graph = lowered(plan, device)
    assert producers(graph)
    copies, _ = problem(plan.shape.m, plan.shape.kv, False)
    text = validate(plan, graph, copies, functools.partial(compiled, device), EFFORT).how
    print(plan.short_id, text)
    assert text.startswith(f"{EFFORT.plain + EFFORT.delayed * len(producers(graph))} poisoned replays")
