"""A search space makes exactly the plans that it should: valid configs, canonical, and back to choices."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from fake_bench import H200, SHAPE, SHIPPED_SPACE, WORKLOAD, small_space_file, space_of
from hypothesis import given, settings
from hypothesis import strategies as st

from mktune.backends.models import known_gpu
from mktune.errors import SpaceError
from mktune.graph.builtin import builtin_plans
from mktune.lowering.graph import lower
from mktune.plan import Plan
from mktune.shape import Shape
from mktune.space import Choices, Question, SearchSpace, question_stem
from mktune.space.groups import Condition, Group, Rule
from mktune.validity import check

SHAPES = [Shape.from_m(m, kv) for m, kv in ((1, 64), (2, 8192), (7, 1000), (16, 8192), (48, 4096), (256, 131072))]
SUBSETS = [("A0",), ("A0", "B0"), ("B1",), ("D0", "D2"), ("A0", "B0", "C0", "B1"), None]


def at_random(space: SearchSpace, seed: int) -> tuple[Choices, Plan]:
    draw = random.Random(seed)
    return space.walk(lambda question: draw.choice(list(question.options)))


@given(seed=st.integers(0, 2**32), shape=st.sampled_from(SHAPES), ops=st.sampled_from(SUBSETS))
@settings(max_examples=60)
def test_plans_and_choices_are_two_forms_of_one_thing(seed: int, shape: Shape, ops: tuple[str, ...] | None) -> None:
    space = space_of(ops, shape=shape)
    choices, plan = at_random(space, seed)
    assert plan == plan.canonical()
    assert Plan.from_json(plan.json) == plan
    assert space.to_plan(choices) == plan
    assert space.to_choices(plan) == choices
    assert set(plan.op_names) == set(ops or WORKLOAD.ops)


@given(seed=st.integers(0, 2**32), shape=st.sampled_from(SHAPES), gpu=st.sampled_from(["h200", "b300"]))
@settings(max_examples=60)
def test_no_proposal_is_wasted(seed: int, shape: Shape, gpu: str) -> None:
    """On a config that does not exist, divide the problem or fit; or on a read before the wait that comes too early."""
    space = space_on(gpu, shape)
    _, plan = at_random(space, seed)
    lower(plan, space.graph, shape)
    assert check(plan, space.device) == []


@cache
def space_on(gpu: str, shape: Shape) -> SearchSpace:
    return SearchSpace.load(WORKLOAD, None, shape, known_gpu(gpu))


def test_a_tile_that_no_ring_and_finisher_complete_is_not_offered() -> None:
    shape = Shape.from_m(256, 131072)
    offered: dict[str, set[str]] = {}

    def pick(question: Question) -> str:
        offered[question_stem(question.name)] = set(question.options)
        return next(iter(question.options))

    SearchSpace.load(WORKLOAD, None, shape, H200).walk(pick)
    largest = {f"impl=wgmma block_m=128 block_n=128 warps={warps}" for warps in (4, 8)}
    assert offered["D1.tile"] >= largest
    assert offered["D1.tile"] - offered["B1.tile"] == largest  # its keys need registers that this tile leaves none of


def test_random_plans_of_the_whole_prefix_are_valid() -> None:
    space = space_of(None)
    refused = [plan for plan in (at_random(space, seed)[1] for seed in range(1000)) if check(plan, H200)]
    print(f"\n{100 - len(refused) / 10:.1f} % of 1000 random plans are valid")
    assert len(refused) <= 50


def test_pages_are_offered_before_the_wait_exactly_where_that_is_right() -> None:
    """E1 may read keys that B1 writes early where full edges say that they are there, directly or through others."""
    space = space_of(None)
    verdicts: Counter[tuple[bool, bool]] = Counter()
    for seed in range(600):
        plan = at_random(space, seed)[1]
        if plan.op["E1"].impl != "mktune":  # DeepGEMM's template reads nothing before its wait
            continue
        early = replace(plan.kernel["E1"], gdc="prefetch")
        forced = replace(plan, kernels=tuple({**plan.kernel, "E1": early}.items()))
        writer = next(name for name in ("B1f", "B1p", "B1p+C0") if name in plan.kernel)
        verdicts[check(forced, H200) == [], plan.edge[writer, "E1"] == "full"] += 1
        assert (space.to_choices(forced) is not None) == (check(forced, H200) == [])
    assert verdicts[False, True] == 0
    assert min(verdicts[False, False], verdicts[True, True], verdicts[True, False]) > 5


def test_every_value_of_every_knob_is_offered_somewhere() -> None:
    offered: dict[str, set[str]] = defaultdict(set)
    for shape in SHAPES:
        space = space_of(None, shape=shape)
        for name in WORKLOAD.graph.calls:
            alone = space.configs_of(name)
            for seed in range(300 if name in ("B1", "C0") else 60):  # few of their configs leave tiles for a schedule
                note_configs(alone, random.Random(seed), offered)
        for seed in range(60):
            _, plan = at_random(space, seed)
            for name, kernel in plan.kernels:
                for field in ("gdc", "trigger", "l2_prefetch_bytes", "chain", "stream", "priority"):
                    offered[f"{name}.{field}"].add(str(getattr(kernel, field)))
            for edge, kind in plan.edges:
                offered["->".join(edge)].add(kind)
    for name, call in WORKLOAD.graph.calls.items():
        for impl, fields in call.op.choices("sm_90a").items():
            assert (impl in offered[f"{name}.{impl}.impl"]) == (not call.op.missing(impl))
            if impl not in offered[f"{name}.{impl}.impl"]:
                continue
            for field in fields.keys() - {"stages"}:  # not every depth of a ring is worth a trial
                missing = {str(value) for value in fields[field]} - offered[f"{name}.{impl}.{field}"]
                unsearched = UNSEARCHED.get(f"{name}.{field}", set()) if impl != "deep_gemm" else set()
                assert missing == unsearched, f"{name}.{impl}.{field}"
    for kernel in ("B0p", "C0", "B1p", "D0", "D1p"):
        assert offered[f"{kernel}.gdc"] == {"entry", "prologue", "prefetch"}
        assert offered[f"{kernel}.trigger"] == {"exit", "start", "after_wait", "before_epilogue"}
        assert offered[f"{kernel}.l2_prefetch_bytes"] == {"0", "16384", "32768", "65536"}
    assert offered["E1.stream"] == {"0", "1", "2", "3"}
    assert offered["D0.priority"] == {"0", "1"}
    for edge in ("A0->B0p", "B0p->B0f", "B0p->D0", "B0f->D0", "C0->D1f", "C0->D1p", "D1p->E1", "B1f->E1"):
        assert offered[edge] == {"full", "programmatic", "launch_order"}


def note_configs(space: SearchSpace, draw: random.Random, offered: dict[str, set[str]]) -> None:
    """What an op alone is offered on the way to a random config, by op, implementation and field."""
    (op,) = space.graph.calls
    impl = ""

    def pick(question: Question) -> str:
        nonlocal impl
        for option in question.options.values():
            values = dict(option)
            for field, value in values.items():
                offered[f"{op}.{values.get('impl', impl)}.{field}"].add(str(value))
        label = draw.choice(list(question.options))
        impl = str(dict(question.options[label]).get("impl", impl))
        return label

    _, plan = space.walk(pick)
    for field, value in (("impl", plan.op[op].impl), *plan.op[op].config):
        offered[f"{op}.{plan.op[op].impl}.{field}"].add(str(value))


UNSEARCHED = {
    "B1.ctas": {"264"},
    "C0.ctas": {"132", "264"},
    "D0.split_k": {"16"},  # one step of K for each CTA: a ring has two stages at least
    "D1.split_k": {"16"},
    "D2.split_k": {"3"},
}


def test_wgmma_exists_on_hopper_only() -> None:
    for gpu, impls in (("h200", {"wgmma", "mma_sync"}), ("b300", {"mma_sync"})):
        space = SearchSpace.load(WORKLOAD, ("A0", "B0"), SHAPE, known_gpu(gpu))
        assert {at_random(space, seed)[1].op["B0"].impl for seed in range(60)} - {"deep_gemm"} == impls


def test_mma_sync_never_has_the_row_block_of_8() -> None:
    space = space_of(("B0",))
    plans = [at_random(space, seed)[1].op["B0"] for seed in range(200)]
    assert {dict(op.config)["block_m"] for op in plans if op.impl == "mma_sync"} == {16}
    assert {dict(op.config)["block_m"] for op in plans if op.impl == "wgmma"} == {8, 16}


@pytest.mark.parametrize("ops", SUBSETS)
def test_every_built_in_plan_can_be_learnt_from(ops: tuple[str, ...] | None) -> None:
    """A built-in plan may differ from its twin in the space only in what decides nothing, such as a root's wait."""
    space = space_of(ops)
    for mode, plan in builtin_plans(WORKLOAD, ops, SHAPE, H200.arch).items():
        choices = space.to_choices(plan)
        assert choices is not None, mode
        twin = space.to_plan(choices)
        assert (twin.ops, twin.order, twin.edges) == (plan.ops, plan.order, plan.edges)
        if "pdl" not in mode:
            assert twin == plan


def with_branches(tmp_path: Path, branches: dict[str, str], at_most: int) -> SearchSpace:
    """The shipped space of the whole prefix with other branches, any of which may be raised."""
    head, _, _ = SHIPPED_SPACE.partition("streams:\n")
    listed = "".join(f"    {name}: [{members}]\n" for name, members in branches.items())
    path = tmp_path / "branches.yaml"
    path.write_text(f"{head}streams:\n  branches:\n{listed}  at_most: {at_most}\n  raised: [{', '.join(branches)}]\n")
    return SearchSpace.load(WORKLOAD, None, SHAPE, H200, path)


def test_every_kernel_may_have_a_stream_of_its_own(tmp_path: Path) -> None:
    names = ("A0", "B0p", "B0f", "C0", "B1p", "B1f", "D0", "D1p", "D1f", "D2", "E1")
    space = with_branches(tmp_path, {f"of_{name}": name for name in names}, at_most=3)
    together: set[tuple[str, str]] = set()
    for seed in range(200):
        plan = at_random(space, seed)[1]
        assert check(plan, H200) == []
        choices = space.to_choices(plan)
        assert choices is not None
        assert space.to_plan(choices) == plan
        streams = {name: kernel.stream for name, kernel in plan.kernels if name in names}
        together |= {(one, other) for one in streams for other in streams if streams[one] == streams[other]}
    assert len(together) == len(names) ** 2
    assert {kernel.priority for seed in range(50) for _, kernel in at_random(space, seed)[1].kernels} == {0, 1}


def test_an_op_in_a_branch_stands_for_the_kernels_that_no_branch_names(tmp_path: Path) -> None:
    space = with_branches(tmp_path, {"all": "A0, B0, C0, B1, D0, D1, D2, E1", "late": "B1f"}, at_most=2)
    streams = set()
    for seed in range(60):
        plan = at_random(space, seed)[1]
        if "B1f" in plan.kernel:
            streams.add(plan.kernel["B1f"].stream)
        assert {kernel.stream for name, kernel in plan.kernels if name != "B1f"} == {0}
        assert space.to_choices(plan) is not None
    assert streams == {0, 1}
    with pytest.raises(SpaceError, match="no branch has B1p, B1f"):
        with_branches(tmp_path, {"all": "A0, B0, C0, D0, D1, D2, E1"}, at_most=1)


def test_a_plan_outside_the_space_has_no_choices() -> None:
    space = space_of()
    assert space_of(shape=Shape.from_m(8, 8192)).to_choices(space.default()) is None
    assert space_of(("A0",)).to_choices(space.default()) is None


def test_what_decides_nothing_is_not_asked() -> None:
    names: list[str] = []

    def first_of(question: Question, wanted: tuple[str, ...] = ("full", "full full")) -> str:
        names.append(question.name)
        return next((label for label in question.options if label in wanted), next(iter(question.options)))

    space_of(None).walk(first_of)
    assert not [name for name in names if ".wait" in name or ".trigger" in name]  # every edge and chain was full
    serial = [name for name in names if name.startswith("priority")]
    assert serial == []  # the first split of the branches is one stream


def test_an_early_kernel_is_asked_where_it_waits_and_its_producer_where_it_triggers() -> None:
    names: list[str] = []

    def pick(question: Question) -> str:
        names.append(question.name)
        ours = (label for label in question.options if "impl=deep_gemm" not in label)  # that knows one wait only
        return "programmatic" if question.name == "A0->B0p" else next(ours)

    space_of().walk(pick)
    late = [name.split("~")[0] for name in names if ".wait" in name or ".trigger" in name]
    assert sorted(late) == ["A0.trigger", "B0p.wait"]


def test_the_same_question_always_offers_the_same_options() -> None:
    space, offers = space_of(None), {}

    def pick(question: Question) -> str:
        assert offers.setdefault(question.name, tuple(question.options)) == tuple(question.options)
        return draw.choice(list(question.options))

    for seed in range(300):
        draw = random.Random(seed)
        space.walk(pick)


def test_a_small_space_is_counted_and_gone_through(tmp_path: Path) -> None:
    space = space_of(("A0", "B0"), small_space_file(tmp_path))
    assert (space.size().count, space.size().exact) == (6, True)
    plans = [plan for _, plan in space]
    assert len({plan.plan_id for plan in plans}) == 6
    assert all(space.to_choices(plan) == choices for choices, plan in space)


def test_a_large_space_is_estimated() -> None:
    size = space_of(None).size()
    assert not size.exact
    assert size.count > 10**20


def test_choices_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    space = space_of(("A0", "B0"), small_space_file(tmp_path))
    choices, _ = next(iter(space))
    with pytest.raises(SpaceError, match=r"no option 'threads=7' for A0\.tile; options: impl=mktune threads=192"):
        space.to_plan({**choices, "A0.tile": "threads=7"})
    with pytest.raises(SpaceError, match=r"no choice for B0\.tile"):
        space.to_plan({"A0.tile": choices["A0.tile"]})


def test_a_choice_without_options_is_refused_when_the_space_is_loaded(tmp_path: Path) -> None:
    text = SHIPPED_SPACE.replace("impl: [wgmma, mma_sync, deep_gemm]", "impl: [wgmma]")
    path = tmp_path / "hopper.yaml"
    path.write_text(text)
    assert SearchSpace.load(WORKLOAD, ("B0",), SHAPE, H200, path).default().op["B0"].impl == "wgmma"
    with pytest.raises(SpaceError, match=r"B0\.tile.* has no option at M = 16 on sm_103a"):
        SearchSpace.load(WORKLOAD, ("B0",), SHAPE, known_gpu("b300"), path)


def test_rules_look_at_facts_earlier_fields_and_their_own_group() -> None:
    group = Group(
        "ring",
        (("split", (1, 2)), ("stages", (2, 4, 8))),
        (
            Rule((Condition("split", (2,)),), (Condition("stages", span=(None, 4)),)),
            Rule((Condition("block", (128,)), Condition("m", span=(33, None))), (Condition("stages", (2,)),)),
            Rule((), (Condition("stages", span=(2, 8)),)),
        ),
    )
    assert len(group.options({"m": 16, "block": 128})) == 5
    assert list(group.options({"m": 64, "block": 128})) == ["split=1 stages=2", "split=2 stages=2"]
    assert len(group.options({"m": 64, "block": 64})) == 5
    assert len(group.options({})) == 5


def test_a_field_that_an_implementation_lacks_is_left_out_and_rules_about_it_hold() -> None:
    group = Group(
        "ring",
        (("split", (1, 2)), ("stages", (2, 4)), ("ctas", (64, 132))),
        (
            Rule((), (Condition("split", (2,)),)),
            Rule((Condition("split", (2,)),), (Condition("stages", (4,)),)),
            Rule((Condition("m", span=(1, 16)),), (Condition("ctas", (132,)),)),
        ),
        lacks=(("own", frozenset({"ctas"})), ("theirs", frozenset({"split"}))),
    )
    assert list(group.options({"impl": "own", "m": 16})) == ["split=2 stages=4"]
    theirs = group.options({"impl": "theirs", "m": 16})
    assert list(theirs) == ["stages=2 ctas=132", "stages=4 ctas=132"]
    assert theirs["stages=2 ctas=132"] == (("ctas", 132), ("stages", 2))
    assert len(group.options({"impl": "theirs", "m": 17})) == 4
    alone = Group("finish", (("finalizer", ("kernel", "cluster")),), lacks=(("theirs", frozenset({"finalizer"})),))
    assert alone.options({"impl": "theirs"}) == {"": ()}


def test_where_nothing_is_right_the_check_says_what_is_wrong(tmp_path: Path) -> None:
    """A last group whose every option the op refuses still makes a plan: an invalid one, with the op's own reason."""
    text = SHIPPED_SPACE.replace(
        "      split_k: [1]\n      stages: [2, 3, 4, 5, 6, 8, 12]", "      split_k: [3]\n      stages: [2, 3]"
    )
    text = text.replace("impl: [wgmma, mma_sync, deep_gemm]", "impl: [wgmma, mma_sync]")
    path = tmp_path / "deep.yaml"
    path.write_text(text)
    space = SearchSpace.load(WORKLOAD, ("D2",), SHAPE, H200, path)
    _, plan = at_random(space, 0)
    assert {violation.rule for violation in check(plan, H200)} == {"stages"}
