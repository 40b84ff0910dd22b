"""Plans in which kernels of two ops are one launch: what they are made of, what is refused, and who handles them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from stored_values import make_winner

from mktune.access import Access, KernelFacts
from mktune.backends.base import Problem
from mktune.backends.sim import SimBackend
from mktune.cli.drawing import draw
from mktune.cli.summary import does, structure
from mktune.errors import InputError, PlanError
from mktune.executors.reference import op_order
from mktune.graph.builtin import MODES, make_plan
from mktune.graph.fused import cycle_among, fuse_edges, fuse_facts, fused_among, kernel_ops
from mktune.graph.kernel_edges import graph_facts, kernel_edges, kernel_names
from mktune.graph.opgraph import OpGraph
from mktune.graph.workload import workload
from mktune.jit.fingerprint import Sources, kernels_fingerprint
from mktune.lowering.graph import lower, lowered_id
from mktune.measure.attribution import GROUPS, put_back
from mktune.measure.cuda_bench import CudaBench
from mktune.ops.add_rmsnorm_quant import AddRmsnormQuant
from mktune.ops.sharing import COMMON, apart
from mktune.plan import KernelPlan, OpPlan, Plan
from mktune.runtime.replay import check_plan
from mktune.store import Store
from mktune.trial import Status, built_alike
from mktune.validity import check
from mktune.validity.fusion import unfusable
from mktune.validity.limits import JudgedGraph, judged_graph
from tests.oracle.events import race
from tests.oracle.plans import H200, SHAPE, WORKLOAD, fused, random_fused_plan

GRAPH = WORKLOAD.graph
KEYS, QUERIES = BOTH = ("B1p+C0", "D0+D1p")
MEMORY = {"finalizer": "last_arriver"}  # C0's sums meet in memory: a cluster shares no launch


def configs(**changed: dict[str, int | str]) -> dict[str, OpPlan]:
    """The default ones, but that C0 can share a launch, and for what is `changed`."""
    found = WORKLOAD.default_ops(WORKLOAD.ops, H200.arch)
    for op, fields in {"C0": MEMORY, **changed}.items():
        found[op] = OpPlan.of(found[op].impl, {**dict(found[op].config), **fields})
    return found


def plan_of(*names: str, mode: str = "branches+pdl", **changed: dict[str, int | str]) -> Plan:
    return make_plan(WORKLOAD, None, SHAPE, H200.arch, mode, configs(**changed), names)


def placed(plan: Plan, kernel: str, **fields: object) -> Plan:
    return replace(plan, kernels=tuple({**plan.kernel, kernel: replace(plan.kernel[kernel], **fields)}.items()))


FUSED = plan_of(*BOTH)


# ---- what a fused plan is made of


def test_a_fused_kernel_stands_in_the_place_of_its_parts() -> None:
    assert FUSED.order == ("A0", "B0p", "B0f", KEYS, "B1f", QUERIES, "D1f", "D2", "E1")
    assert set(FUSED.edge) == {
        ("A0", "B0p"), ("A0", KEYS), ("B0p", "B0f"), (KEYS, "B1f"), ("B0f", QUERIES), (QUERIES, "D1f"), (KEYS, "D1f"),
        (QUERIES, "D2"), ("D1f", "E1"), ("B1f", "E1"),
    }  # fmt: skip
    assert FUSED.kernel[KEYS].stream == FUSED.kernel["B1f"].stream  # where the first part would be
    assert FUSED.kernel[QUERIES].stream == FUSED.kernel["D2"].stream
    assert FUSED.kernel[KEYS].gdc == FUSED.kernel[QUERIES].gdc == "prefetch"


def test_without_finalizer_kernels_the_fused_ones_take_their_edges() -> None:
    plan = plan_of(*BOTH, B1=MEMORY, D1=MEMORY)
    assert plan.order == ("A0", "B0p", "B0f", KEYS, QUERIES, "D2", "E1")
    assert {(KEYS, QUERIES), (KEYS, "E1"), (QUERIES, "E1")} < set(plan.edge)


def test_one_of_the_two_fusions_leaves_the_other_ops_their_kernels() -> None:
    assert kernel_names(GRAPH, configs(), (KEYS,)) == ("A0", "B0p", "B0f", KEYS, "B1f", "D0", "D1p", "D1f", "D2", "E1")
    assert kernel_ops(GRAPH, configs(), (KEYS,))[KEYS] == ("B1", "C0")
    assert (KEYS, "D1f") in kernel_edges(GRAPH, configs(), (KEYS,))


@pytest.mark.parametrize("mode", MODES)
def test_built_in_structures_of_fused_kernels_are_right(mode: str) -> None:
    for names in ((KEYS,), (QUERIES,), BOTH):
        for finalizer in ("kernel", "last_arriver"):
            plan = plan_of(*names, mode=mode, B1={"finalizer": finalizer}, D1={"finalizer": finalizer})
            assert check(plan, H200) == [], (names, finalizer)
            assert race(lower(plan, GRAPH, SHAPE)) is None


def test_built_in_plans_fuse_nothing_unless_asked() -> None:
    assert all(not fused_among(make_plan(WORKLOAD, None, SHAPE, H200.arch, mode).kernel) for mode in MODES)
    with pytest.raises(InputError, match=r"no launch C0\+B1p; there are B1p\+C0, D0\+D1p"):
        make_plan(WORKLOAD, None, SHAPE, H200.arch, "serial", fused=("C0+B1p",))
    with pytest.raises(InputError, match="there are none of these ops"):
        make_plan(WORKLOAD, ("A0", "B0"), SHAPE, H200.arch, "serial", fused=(KEYS,))


def test_it_does_what_its_parts_do() -> None:
    alone = {kernel.name: kernel for kernel in graph_facts(GRAPH, configs(), plan_of().kernel)}
    together = {kernel.name: kernel for kernel in graph_facts(GRAPH, configs(), FUSED.kernel)}
    for name, parts in ((KEYS, ("B1p", "C0")), (QUERIES, ("D0", "D1p"))):
        found = together[name]
        assert set(found.accesses) == {access for part in parts for access in alone[part].accesses}
        assert len(found.accesses) == len(set(found.accesses))
        assert found.op == "+".join(part[:2] for part in parts)
        assert (found.waits, found.trigger) == (True, "before_wait")
    again = {kernel.name: kernel for kernel in graph_facts(GRAPH, configs(), FUSED.kernel)}
    assert all(again[name] is together[name] for name in BOTH)  # the checks keep what they know of it


def test_it_waits_always_only_if_every_part_does_and_triggers_as_the_earliest() -> None:
    parts = [KernelFacts("a", "A", (), True, "after_wait"), KernelFacts("b", "B", (), False, "exit")]
    (found,) = fuse_facts(parts, ("a+b",))
    assert (found.name, found.op, found.waits, found.trigger) == ("a+b", "A+B", False, "after_wait")


def test_a_plan_that_fuses_is_the_same_read_back_and_another_than_one_that_does_not() -> None:
    assert Plan.from_json(FUSED.json) == FUSED
    assert FUSED.schema == plan_of().schema == 1
    ids = {plan_of(*names).plan_id for names in ((), (KEYS,), (QUERIES,), BOTH)}
    ids |= {lowered_id(plan, lower(plan, GRAPH, SHAPE)) for plan in (plan_of(*n) for n in ((), (KEYS,), BOTH))}
    assert len(ids) == 7


def test_ops_of_a_fused_kernel_run_at_its_place() -> None:
    assert op_order(lower(FUSED, GRAPH, SHAPE)) == ("A0", "B0", "C0", "B1", "D0", "D1", "D2", "E1")


# ---- what is refused


def refused(plan: Plan) -> list[str]:
    return [str(violation) for violation in check(plan, H200)]


def test_configs_that_cannot_share_a_launch_are_refused_in_one_line() -> None:
    assert refused(plan_of(KEYS, C0={"finalizer": "cluster"})) == [
        "fusion: B1p+C0: the CTAs of a cluster are a launch of their own: use finalizer last_arriver or kernel"
    ]
    (found,) = refused(plan_of(KEYS, B1={"finalizer": "cluster", "split_k": 4}))
    assert found.startswith("fusion: B1p+C0: the CTAs of a cluster")
    assert refused(plan_of(QUERIES, D0={"warps": 8})) == [
        "fusion: D0+D1p: 8 and 4 warps: the CTAs of a launch are of one size"
    ]


def test_only_tiles_of_our_own_can_stand_beside_others() -> None:
    """A provider's kernel, or whatever other implementation there may be, is a launch of its own."""
    assert apart([{"impl": "wgmma", "warps": 4}, {"impl": "mma_sync", "warps": 4}]) == ""
    assert apart([{"impl": "wgmma"}, {"impl": "deep_gemm"}]) == (
        "kernels of impl deep_gemm are launches of their own: use wgmma or mma_sync"
    )


def test_whether_ops_share_a_launch_hangs_on_the_common_fields_alone() -> None:
    """A space keeps what it offers by these fields of the other ops."""
    read: set[str] = set()

    class Seen(dict[str, int | str]):
        def __getitem__(self, name: str) -> int | str:
            read.add(name)
            return super().__getitem__(name)

        def __contains__(self, name: object) -> bool:
            read.add(str(name))
            return super().__contains__(name)

        def get(self, name: str, default: object = None) -> object:  # type: ignore[override]
            read.add(name)
            return super().get(name, default)

    for op, other in (("B1", "C0"), ("D0", "D1")):
        plans = configs()
        parts = [Seen(impl=plans[name].impl, **dict(plans[name].config)) for name in (op, other)]
        assert apart(parts) == ""
    assert read == set(COMMON)


def test_launches_that_do_not_exist_are_refused() -> None:
    def renamed(old: str, new: str) -> Plan:
        kernels = tuple((new if name == old else name, kernel) for name, kernel in FUSED.kernels)
        order = tuple(new if name == old else name for name in FUSED.order)
        edges = tuple((tuple(new if end == old else end for end in edge), kind) for edge, kind in FUSED.edges)
        return replace(FUSED, kernels=kernels, order=order, edges=edges)  # type: ignore[arg-type]

    known = "no such launch; known: B1p+C0, D0+D1p"
    assert f"fusion: C0+B1p: {known}" in refused(renamed(KEYS, "C0+B1p"))
    assert f"fusion: B1p+D0: {known}" in refused(renamed(KEYS, "B1p+D0"))
    both = replace(FUSED, kernels=(*FUSED.kernels, ("C0", KernelPlan())), order=(*FUSED.order, "C0"))
    assert refused(both) == ["kernels: glm52_attention_prefix: its configs make no C0"]
    with pytest.raises(PlanError, match="do not have the same kernels: 'C0'"):
        lower(renamed(KEYS, "B1p+XX"), GRAPH, SHAPE)


def declaring(fusions: dict[str, tuple[str, ...]]) -> JudgedGraph:
    """The workload as if it said that there are these."""
    judged = judged_graph(WORKLOAD.name, WORKLOAD.ops, SHAPE, H200, WORKLOAD.scale_format)
    return replace(judged, fusions=fusions, edges={}, fused={})


def test_what_would_wait_for_itself_is_refused() -> None:
    """No pair that the workload declares can: B0p and D0, which is two launches behind it, would."""
    judged = declaring({"B0p+D0": ("B0", "D0")})
    plan = plan_of(B0={"warps": 4}, D0={"warps": 4})
    facts = graph_facts(GRAPH, plan.op, plan.kernel)
    plan = replace(plan, kernels=(*plan.kernels, ("B0p+D0", KernelPlan())))
    (found,) = unfusable(plan, ("B0p+D0",), judged, facts)
    assert str(found) == "fusion: B0p+D0: it would wait for itself: B0p+D0 -> B0f -> B0p+D0"


def test_parts_that_would_race_within_their_launch_are_refused() -> None:
    judged = declaring({"D0+D2": ("D0", "D2")})
    plan = plan_of()
    facts = graph_facts(GRAPH, plan.op, plan.kernel)
    plan = replace(plan, kernels=(*plan.kernels, ("D0+D2", KernelPlan())))
    (found,) = unfusable(plan, ("D0+D2",), judged, facts)
    assert str(found) == "fusion: D0+D2: D2 uses q, which D0 writes: they must be two launches"


def test_a_part_that_the_configs_do_not_make_is_refused() -> None:
    """Ops whose kernels go by other names under another config: a file may declare them, and a plan name them."""
    judged = declaring({"B1f+C0": ("B1", "C0")})
    plan = plan_of(B1=MEMORY)
    facts = graph_facts(GRAPH, plan.op, plan.kernel)
    plan = replace(plan, kernels=(*plan.kernels, ("B1f+C0", KernelPlan())))
    assert [str(found) for found in unfusable(plan, ("B1f+C0",), judged, facts)] == [
        "fusion: B1f+C0: its configs make no B1f"
    ]


def test_a_cycle_is_found_behind_any_tails() -> None:
    assert cycle_among([("a", "b"), ("b", "c"), ("a", "c")]) == ()
    found = cycle_among([("r", "a"), ("a", "b"), ("b", "c"), ("c", "a"), ("c", "t")])
    assert {*found} == {"a", "b", "c"}
    assert fuse_edges([("a", "b"), ("b", "c"), ("a", "c")], ("a+b",)) == [("a+b", "c")]


def test_a_call_cannot_be_named_like_a_fused_kernel() -> None:
    graph, op = OpGraph("two"), AddRmsnormQuant()
    ports = {port: graph.runtime_arg(port, op.ports[port].dtype, op.ports[port].dims) for port in op.inputs}
    with pytest.raises(InputError, match="a call's name is letters, digits and _; '\\+'"):
        graph.call("A+B", op, **ports)


def test_weights_asked_into_l2_are_each_partss_own_up_to_the_larger_limit() -> None:
    limits = {op: GRAPH.calls[op].op.l2_limit(FUSED.op[op]) for op in ("D0", "D1")}
    assert limits["D1"] < limits["D0"]
    launch = dict(lower(placed(FUSED, QUERIES, l2_prefetch_bytes=65536), GRAPH, SHAPE, H200, launches=True).launches)
    asked = [launch[QUERIES].args[index].value for index in (8, 15)]  # type: ignore[union-attr]
    assert asked == [65536 // (128 * 128), limits["D1"] // (64 * 128)]
    assert refused(placed(FUSED, QUERIES, l2_prefetch_bytes=limits["D0"])) == []
    assert refused(placed(FUSED, QUERIES, l2_prefetch_bytes=limits["D0"] + 1))[0].startswith("l2_prefetch: D0+D1p")


def test_a_fused_plan_is_judged_by_the_closure_rule_like_any_other() -> None:
    """B1f reads what the fused kernel makes: without any wait in between that is a race, and named as such."""
    early = plan_of(KEYS, mode="serial")
    edges = {**early.edge, (KEYS, "B1f"): "launch_order"}
    assert check(replace(early, edges=tuple(edges.items())), H200) == []
    facts = {kernel.name: kernel for kernel in lower(early, GRAPH, SHAPE).kernels}
    assert Access("B1.partials", True, True) in facts[KEYS].accesses
    lost = lower(early, GRAPH, SHAPE)
    from mktune.validity.hazards import hazards

    cut = replace(lost, edges=tuple(edge for edge in lost.edges if (edge.source, edge.target) != (KEYS, "B1f")))
    assert any(violation.where == f"{KEYS}->B1f" for violation in hazards(cut))


# ---- who handles them


def test_loading_a_fused_plan_checks_its_configs() -> None:
    check_plan(placed(FUSED, QUERIES, l2_prefetch_bytes=65536), GRAPH, SHAPE, H200)
    wrong = replace(FUSED, ops=tuple({**FUSED.op, "D1": OpPlan.of("wgmma", {})}.items()))
    with pytest.raises(PlanError, match="D1: block_m is missing"):
        check_plan(wrong, GRAPH, SHAPE, H200)


def test_the_model_runs_fused_plans() -> None:
    with SimBackend().open(Problem(WORKLOAD.name, WORKLOAD.ops, SHAPE)) as bench:
        spans = {}
        for names in ((), (KEYS,), (QUERIES,), BOTH):
            plan = plan_of(*names, mode="serial", D0={"stages": 4})  # so that rings of D0 leave room for D1's tiles
            outcome = bench.measure(plan, None)
            assert outcome.status is Status.OK
            assert outcome.measurement is not None
            spans[names] = outcome.measurement.span_us
        assert spans[BOTH] < min(spans[KEYS,], spans[QUERIES,]) < max(spans[KEYS,], spans[QUERIES,]) < spans[()]
        trace = {kernel.name: kernel for kernel in bench.trace(plan_of(*BOTH)).kernels}
    works = {op: GRAPH.calls[op].op.work(configs()[op], SHAPE)[0] for op in ("B1", "C0", "D0", "D1")}
    assert trace[KEYS].grid == works["B1"].ctas + works["C0"].ctas
    assert trace[QUERIES].grid == works["D0"].ctas + works["D1"].ctas


def test_what_fusing_is_worth_is_a_group_of_its_own_only_where_a_plan_fuses() -> None:
    assert tuple(put_back(plan_of(), H200)) == GROUPS
    made = put_back(FUSED, H200)
    assert tuple(made) == (*GROUPS, "fusion")
    for group, back in made.items():
        assert check(back.plan, H200) == [], group
        assert bool(fused_among(back.plan.kernel)) == (group != "fusion")
    alone = made["fusion"].plan
    assert alone.order == ("A0", "B0p", "B0f", "B1p", "C0", "B1f", "D0", "D1p", "D1f", "D2", "E1")
    assert alone.op == FUSED.op
    assert alone.kernel["D1p"].stream == alone.kernel["D0"].stream
    assert made["tiles"].note == "not put back, it would be invalid: C0"


def test_putting_configs_back_may_change_which_kernels_stand_beside_a_fused_one() -> None:
    plan = plan_of(*BOTH, B1=MEMORY, D1=MEMORY)
    back = put_back(plan, H200)["tiles"].plan
    assert back.op["B1"] == WORKLOAD.default_ops(("B1",), H200.arch)["B1"]
    assert {KEYS, QUERIES, "B1f", "D1f"} < set(back.order)


def test_fused_kernels_are_sources_of_their_own() -> None:
    plain = kernels_fingerprint(WORKLOAD.name)
    assert kernels_fingerprint(*Sources.of(plan_of())) == plain
    found = [kernels_fingerprint(*Sources.of(plan_of(*names))) for names in ((KEYS,), (QUERIES,), BOTH)]
    assert [text.partition("+")[0] for text in found] == [plain] * 3
    assert set(found[2].split("+")) == set(found[0].split("+")) | set(found[1].split("+"))
    assert len(set(found)) == 3
    with pytest.raises(InputError, match="has no kernel B0p\\+D0"):
        kernels_fingerprint(WORKLOAD.name, fused=("B0p+D0",))


def test_builds_are_alike_where_one_has_no_other_kernels_than_the_other() -> None:
    assert built_alike("ops", "ops+keys")
    assert built_alike("ops+keys+queries", "ops+keys")
    assert built_alike("", "")
    assert not built_alike("ops+keys", "ops+other")
    assert not built_alike("ops", "others+keys")
    assert not built_alike("", "ops")


def test_of_two_winners_of_one_build_the_faster_one_is_served_whatever_it_fuses(tmp_path: Path) -> None:
    measured = [("ops", 10.0, 10.0), ("ops+keys", 11.0, 10.0), ("ops+keys", 9.0, 9.0), ("ops+other", 9.5, 9.5)]
    with Store.open(str(tmp_path / "plans.db")) as store:
        for kernels, span, served in measured:  # the last one is of other shared kernels: it is the newer
            won = make_winner(plan_of(KEYS) if "+" in kernels else plan_of(), kernels=kernels)
            store.put_winner(None, replace(won, measurement=replace(won.measurement, span_us=span)))
            assert store.winners()[0].measurement.span_us == served


def test_a_study_from_before_goes_on_and_one_of_other_shared_kernels_does_not(tmp_path: Path) -> None:
    problem = {"workload": WORKLOAD.name, "ops": WORKLOAD.ops, "shape": SHAPE, "device": H200, "contract": 1}
    search = {"backend": "sim", "sampler": "random", "seed": 0}
    with Store.open(str(tmp_path / "studies.db")) as store:
        store.study("old", **problem, **search, build="ops")
        store.study("old", **problem, **search, build="ops+keys+queries", resume=True)
        with pytest.raises(InputError, match=r"kernels of the build.*ops.*others"):
            store.study("old", **problem, **search, build="others+keys", resume=True)
        store.study("new", **problem, **search, build="ops+keys")
        with pytest.raises(InputError, match=r"kernels of the build.*ops\+keys.*ops\+changed"):
            store.study("new", **problem, **search, build="ops+changed", resume=True)


def test_the_build_of_a_study_has_all_that_its_ops_may_share(no_gpu: None) -> None:
    bench = SimpleNamespace(problem=Problem(WORKLOAD.name, WORKLOAD.ops, SHAPE), _workload=WORKLOAD, _device=H200)
    build = CudaBench.build.fget(bench)  # type: ignore[attr-defined]
    assert build == kernels_fingerprint(WORKLOAD.name, None, BOTH, scheduled=True, ahead=True)
    part = SimpleNamespace(problem=Problem(WORKLOAD.name, ("A0", "B0"), SHAPE), _workload=WORKLOAD, _device=H200)
    build = CudaBench.build.fget(part)  # type: ignore[attr-defined]
    assert build == kernels_fingerprint(WORKLOAD.name, ("A0", "B0"), scheduled=True)


def test_people_see_what_is_fused() -> None:
    assert structure(FUSED).startswith("9 kernels (B1p+C0, D0+D1p fused), 3 streams, ")
    assert structure(plan_of()).startswith("11 kernels, 4 streams, ")
    assert "B0p B1p+C0 D0+D1p prefetch/start" in does(FUSED)
    lines = draw(FUSED)
    assert max(map(len, lines)) <= 80
    assert any("D1f    ◀" in line and "B1p+C0 programmatic, D0+D1p programmatic" in line for line in lines)


def test_random_fused_plans_survive_everything_but_the_closure_rule() -> None:
    random = Random(4)
    for _ in range(40):
        plan = random_fused_plan(random, WORKLOAD.ops)
        rules = {violation.rule for violation in check(plan, H200)}
        assert rules <= {"read_after_write", "write_after_read", "write_after_write"}
        assert Plan.from_json(plan.json) == plan
        assert fused(plan_of(), KEYS).canonical().plan_id == fused(plan_of(), KEYS).plan_id


def test_only_this_workload_declares_pairs_that_have_a_launch() -> None:
    assert WORKLOAD.fusions == (("B1", "C0"), ("D0", "D1"))
    assert workload("glm52_attention_prefix").fused_kernels(("A0", "C0", "B1"), H200.arch) == {KEYS: ("B1", "C0")}
