"""`check` on whole plans: what must pass, what must not, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from mktune import deep_gemm
from mktune.access import Access, KernelFacts
from mktune.device import Device
from mktune.graph.builtin import MODES, make_plan
from mktune.lowering.kernel_graph import Edge, KernelGraph
from mktune.plan import KernelPlan, OpPlan, Plan
from mktune.shape import Shape
from mktune.validity import check
from mktune.validity.hazards import hazards
from mktune.validity.waits import unheld
from tests.benchmarks.validity_rate import measure
from tests.oracle.events import race
from tests.oracle.plans import H200, SHAPE, SUBGRAPHS, WORKLOAD, lowered, place, random_plan, with_edges

B300 = Device("NVIDIA B300", "sm_103a", 148, 232448, 126 << 20, 8e12)
AB = ("A0", "B0")


def builtin(mode: str, ops: tuple[str, ...] | None = None, **configs: OpPlan) -> Plan:
    return make_plan(WORKLOAD, ops, SHAPE, H200.arch, mode, configs)


def configured(op: str, **fields: int | str) -> OpPlan:
    default = WORKLOAD.graph.calls[op].op.default(H200.arch)
    return OpPlan.of(default.impl, {**dict(default.config), **fields})


def article() -> Plan:
    """The article's plan: every kernel edge programmatic, every trigger before the wait, weights prefetched."""
    configs = {"B0": configured("B0", split_k=4), "B1": configured("B1", split_k=8), "D1": configured("D1", split_k=4)}
    plan = builtin("branches+pdl", None, **configs)
    return place(plan, **{name: {"trigger": "start"} for name in plan.order})


def renamed(graph: KernelGraph, **owners: str) -> KernelGraph:
    """The graph with the workspaces of one call in those of another: D1="B0"."""

    def name(buffer: str) -> str:
        owner, dot, port = buffer.partition(".")
        return f"{owners[owner]}.{port}" if dot and owner in owners else buffer

    kernels = tuple(
        replace(kernel, accesses=tuple(replace(access, buffer=name(access.buffer)) for access in kernel.accesses))
        for kernel in graph.kernels
    )
    return replace(graph, kernels=kernels)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ops", SUBGRAPHS)
def test_builtin_plans_pass_for_any_ops_device_and_shape(mode: str, ops: tuple[str, ...]) -> None:
    for device in (H200, B300):
        for shape in (SHAPE, Shape(1, 1, 1), Shape(32, 8, 131072), Shape(1, 7, 100)):
            assert check(make_plan(WORKLOAD, ops, shape, device.arch, mode), device) == []


def test_merged_finalizers_pass_in_every_builtin_plan() -> None:
    merged = {op: configured(op, finalizer="last_arriver") for op in ("B0", "B1", "D1")}
    for mode in MODES:
        assert check(builtin(mode, None, **merged), H200) == []


def test_the_articles_plan_passes_with_separate_finalizers() -> None:
    plan = article()
    assert "D1f" in plan.kernel
    assert {kind for _, kind in plan.edges} == {"programmatic"}
    assert {kernel.trigger for kernel in lowered(plan).kernels} == {"before_wait"}
    assert check(plan, H200) == []


def test_workspaces_of_b0_and_d1_may_be_shared_but_not_those_of_b0_and_b1() -> None:
    graph = lowered(article())
    assert hazards(renamed(graph, D1="B0")) == []
    found = hazards(renamed(graph, B1="B0"))
    assert {violation.where for violation in found} >= {"B0p->B1p", "B0p->B1f", "B0f->B1p"}
    assert all("B0.partials" in violation.message for violation in found)


def test_chaining_from_e1_alone_races_on_q_lora_q_and_the_mla_query() -> None:
    graph = lowered(article())
    assert hazards(graph) == hazards(graph, chained=("D2", "E1")) == []
    found = hazards(graph, chained=("E1",))
    assert race(graph, chained=("E1",)) is not None
    text = " ".join(violation.message for violation in found)
    assert all(name in text for name in ("q_lora_q", "q_lora_s", " q ", "mla_q"))
    assert "of the copy before" in text
    assert "chain every sink" in text


def test_pages_may_be_read_before_the_wait_behind_a_full_edge_from_their_writer() -> None:
    early = place(article(), E1={"gdc": "prefetch"})
    (found,) = check(early, H200)
    assert (found.rule, found.where) == ("read_after_write", "B1f->E1")
    assert "index_k_cache" in found.message
    assert "make B1f->E1 a full edge" in found.message
    assert check(with_edges(early, B1f_E1="full"), H200) == []


def test_what_a_trigger_told_may_not_be_read_before_the_wait() -> None:
    """b triggers after its wait for a, so a is complete when c starts; but a trigger publishes nothing."""
    use = (Access("x", True, True),), (Access("x", False, False),)
    kernels = (
        KernelFacts("a", "a", use[0], True, "exit"),
        KernelFacts("b", "b", (), True, "after_wait"),
        KernelFacts("c", "c", use[1], True, "exit"),
    )
    edges = (Edge("a", "b", "programmatic"), Edge("b", "c", "programmatic"))
    assert [violation.rule for violation in hazards(KernelGraph(kernels, edges))] == ["read_after_write"]
    written = replace(kernels[2], accesses=(Access("x", True, False),))
    ordered = KernelGraph((*kernels[:2], written), edges)
    assert not [v for v in hazards(ordered) if v.where == "a->c"]


def test_a_kernel_without_a_wait_takes_full_edges_only() -> None:
    facts = KernelFacts("b", "b", (Access("y", True, False),), False, "exit")
    first = KernelFacts("a", "a", (), False, "before_wait")  # a root may trigger early without a wait
    for kind, count in (("full", 0), ("programmatic", 1), ("launch_order", 1)):
        found = unheld(KernelGraph((first, facts), (Edge("a", "b", kind),)))
        assert [violation.rule for violation in found] == ["no_wait"] * count
    sometimes = replace(facts, accesses=(Access("y", True, True),))
    assert unheld(KernelGraph((first, sometimes), (Edge("a", "b", "programmatic"),))) == []


def test_triggers_of_sinks_are_harmless() -> None:
    plan = article()
    assert {plan.kernel[name].trigger for name in ("D2", "E1")} == {"start"}
    assert check(plan, H200) == check(place(plan, D2={"trigger": "exit"}, E1={"trigger": "exit"}), H200) == []


def test_strict_reports_what_relies_on_other_kernels_waits() -> None:
    for mode in ("serial", "branches"):
        assert check(builtin(mode), H200, strict=True) == []
    found = check(article(), H200, strict=True)
    assert {violation.rule for violation in found} == {"transitive"}
    assert "B0p->A0" in {violation.where for violation in found}
    assert all("only waits in between say" in violation.message for violation in found)


def test_strict_adds_nothing_to_a_plan_that_is_wrong_anyway() -> None:
    wrong = place(article(), E1={"gdc": "prefetch"})
    assert check(wrong, H200, strict=True) == check(wrong, H200)


def test_random_plans_fail_by_the_closure_rule_alone_and_the_model_agrees() -> None:
    random = Random(9)
    verdicts = {True: 0, False: 0}
    for number in range(300):
        plan = random_plan(random, SUBGRAPHS[number % len(SUBGRAPHS)])
        found = check(plan, H200)
        assert {violation.rule for violation in found} <= {"read_after_write", "write_after_read", "write_after_write"}
        assert bool(found) == bool(hazards(lowered(plan)))
        assert found or race(lowered(plan)) is None
        verdicts[bool(found)] += 1
    assert min(verdicts.values()) >= 5


def change_op(plan: Plan, op: str, **fields: int | str) -> Plan:
    changed = OpPlan.of(plan.op[op].impl, {**dict(plan.op[op].config), **fields})
    return replace(plan, ops=tuple({**plan.op, op: changed}.items()))


def rename_kernel(plan: Plan) -> Plan:
    return replace(plan, kernels=(*(pair for pair in plan.kernels if pair[0] != "B0f"), ("B0x", KernelPlan())))


WRONG: dict[str, tuple[str, Callable[[Plan], Plan]]] = {
    "unknown workload": ("workload", lambda plan: replace(plan, workload="nothing")),
    "no ops": ("workload", lambda plan: replace(plan, ops=())),
    "ops that are not connected": ("workload", lambda plan: replace(plan, ops=(plan.ops[0], ("E1", plan.ops[1][1])))),
    "an op twice": ("ops", lambda plan: replace(plan, ops=(*plan.ops, plan.ops[0]))),
    "another contract": ("contract", lambda plan: replace(plan, contract=99)),
    "another scale format": ("scale_format", lambda plan: replace(plan, scale_format="ue9")),
    "a newer schema": ("schema", lambda plan: replace(plan, schema=99)),
    "another executor": ("executor", lambda plan: replace(plan, executor="megakernel")),
    "rows outside its range": ("range", lambda plan: replace(plan, m_range=(1, 8))),
    "context outside its range": ("range", lambda plan: replace(plan, kv_range=(1, 64))),
    "a kernel too few": ("kernels", lambda plan: replace(plan, kernels=plan.kernels[:-1])),
    "a kernel too many": ("kernels", lambda plan: replace(plan, kernels=(*plan.kernels, ("Z", KernelPlan())))),
    "a kernel of another name": ("kernels", rename_kernel),
    "an order without a kernel": ("order", lambda plan: replace(plan, order=plan.order[1:])),
    "an order with one twice": ("order", lambda plan: replace(plan, order=("A0", "A0", "B0p"))),
    "a consumer first": ("order", lambda plan: replace(plan, order=("A0", "B0f", "B0p"))),
    "streams not numbered by use": ("stream", lambda plan: place(plan, A0={"stream": 3})),
    "a negative stream": ("stream", lambda plan: place(plan, A0={"stream": -1})),
    "an edge too few": ("edges", lambda plan: replace(plan, edges=plan.edges[1:])),
    "an edge too many": ("edges", lambda plan: replace(plan, edges=(*plan.edges, (("A0", "B0f"), "full")))),
    "an edge twice": ("edges", lambda plan: replace(plan, edges=(*plan.edges, plan.edges[0]))),
    "an unknown kind of edge": ("edges", lambda plan: with_edges(plan, A0_B0p="sometimes")),
    "an unknown chain": ("chain", lambda plan: place(plan, B0p={"chain": "loose"})),
    "an unknown wait": ("gdc", lambda plan: place(plan, B0p={"gdc": "never"})),
    "a wait that the kernel does not know": ("gdc", lambda plan: place(plan, B0f={"gdc": "prefetch"})),
    "an unknown trigger": ("trigger", lambda plan: place(plan, B0p={"trigger": "soon"})),
    "an unknown impl": (
        "impl",
        lambda plan: replace(plan, ops=(plan.ops[0], ("B0", OpPlan("x", plan.op["B0"].config)))),
    ),
    "a value that does not exist": ("config", lambda plan: change_op(plan, "B0", block_m=17)),
    "a field that does not exist": ("config", lambda plan: change_op(plan, "B0", colour="red")),
    "a split that does not divide K": ("config", lambda plan: change_op(plan, "B0", split_k=5)),
    "more shared memory than there is": ("smem", lambda plan: change_op(plan, "B0", block_m=128, stages=12, split_k=1)),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_plan_is_told_what_is_wrong(what: str) -> None:
    rule, change = WRONG[what]
    found = check(change(builtin("serial", AB)), H200)
    assert rule in {violation.rule for violation in found}
    assert all(violation.message and "\n" not in str(violation) for violation in found)


@pytest.mark.parametrize("field", ["block_m", "block_n", "split_k", "stages", "warps", "finalizer"])
def test_a_config_that_lacks_a_field_is_told_so(field: str) -> None:
    plan = builtin("serial", AB)
    config = tuple(pair for pair in plan.op["B0"].config if pair[0] != field)
    found = check(replace(plan, ops=(plan.ops[0], ("B0", OpPlan(plan.op["B0"].impl, config)))), H200)
    assert found
    assert all(violation.where == "B0" for violation in found)
    assert any(field in violation.message for violation in found)


def test_limits_name_the_call_they_are_about() -> None:
    found = check(change_op(builtin("serial"), "D1", block_m=17), H200)
    assert [violation.where for violation in found] == ["D1"]


def test_the_same_plan_is_judged_anew_on_another_device() -> None:
    plan = builtin("serial", AB)
    assert check(plan, H200) == []
    small = replace(H200, smem_per_block=64 << 10)
    assert {violation.rule for violation in check(plan, small)} == {"smem"}
    assert {violation.rule for violation in check(plan, B300)} == {"impl"}  # wgmma is an instruction of sm_90a
    assert check(plan, H200) == []


def test_two_mistakes_at_once_are_violations_too_and_never_an_error() -> None:
    random = Random(13)
    refused = 0
    changes = [change for _, change in WRONG.values()]
    for _ in range(300):
        plan = builtin(random.choice(MODES), AB)
        for change in random.sample(changes, 2):
            try:
                plan = change(plan)
            except (KeyError, IndexError):  # the first mistake took away what the second would spoil
                break
        refused += bool(check(plan, H200))
    assert refused >= 290  # now and then one mistake undoes the other


def test_which_kernels_there_are_decides_the_data_edges() -> None:
    """So the edges that a plan must have can be kept by the names of its kernels, whatever else the configs say."""
    random = Random(17)
    edges: dict[tuple[str, ...], set[tuple[tuple[str, str], ...]]] = {}
    for _ in range(600):
        plan = random_plan(random, WORKLOAD.ops)
        names = tuple(name for name, _ in plan.kernels)
        edges.setdefault(names, set()).add(tuple(source_target for source_target, _ in plan.edges))
    # B0, B1 and D1 each with and without a kernel that finishes; of DeepGEMM's D2 and E1 each one more.
    assert len(edges) == (8 if deep_gemm.missing() else 32)
    assert all(len(found) == 1 for found in edges.values())


def test_a_plan_is_judged_at_its_own_shape() -> None:
    plan = builtin("serial", AB)
    assert check(replace(plan, m_range=(1, 16), shape=Shape(1, 4, 8192)), H200) == []
    outside = replace(plan, shape=Shape(4, 8, 8192))
    assert {violation.rule for violation in check(outside, H200)} == {"range"}


def test_plans_of_the_shipped_space_are_judged_by_the_thousand() -> None:
    """A bound that holds on a busy machine; the benchmark prints what a free core does."""
    found = measure(count=400, seed=1)
    assert set(found["rules"]) <= {"read_after_write", "write_after_read", "write_after_write"}
    assert found["again_plans_per_s"] > 2500
    assert found["rule_plans_per_s"] > 5000
