"""Fusion as a choice of the search space: what it offers, what follows from it, and how samplers change it."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from mktune.access import KernelFacts
from mktune.backends.base import Problem
from mktune.backends.sim import SimBackend
from mktune.cli.boundary import run
from mktune.errors import InputError, SpaceError
from mktune.graph.builtin import MODES, builtin_plans, make_plan
from mktune.graph.fused import fused_among, kernel_ops
from mktune.ops.head_gate import HeadGate
from mktune.plan import KernelPlan, OpPlan, Plan
from mktune.resources import search_space
from mktune.search.neighbours import adapt
from mktune.search.samplers.local import LocalSampler
from mktune.search.samplers.staged import StagedSampler
from mktune.search.samplers.trace_guided import TraceGuidedSampler
from mktune.shape import Shape
from mktune.space import Choices, Question, SearchSpace, SubSpace, choose_free, question_stem
from mktune.store import Store
from mktune.trace import CriticalPath, PathStep
from mktune.trial import Status
from mktune.validity import check
from tests.oracle.plans import H200, SHAPE, WORKLOAD

LABELS = ("none", "B1+C0", "D0+D1", "B1+C0 D0+D1")
FUSED = {"none": (), "B1+C0": ("B1p+C0",), "D0+D1": ("D0+D1p",), "B1+C0 D0+D1": ("B1p+C0", "D0+D1p")}


def space_of(ops: tuple[str, ...] | None = None, shape: Shape = SHAPE, path: Path | None = None) -> SearchSpace:
    return SearchSpace.load(WORKLOAD, ops, shape, H200, path)


def drawn(space: SearchSpace, label: str, seed: int) -> tuple[Choices, Plan]:
    draw = random.Random(seed)
    return space.walk(lambda question: label if question.name == "fusion" else draw.choice(list(question.options)))


def test_every_way_to_fuse_is_offered_first_and_nothing_is_fused_by_default() -> None:
    asked: list[Question] = []

    def pick(question: Question) -> str:
        asked.append(question)
        return next(iter(question.options))

    space_of().walk(pick)
    assert (asked[0].name, tuple(asked[0].options)) == ("fusion", LABELS)
    assert space_of().fusions == LABELS[1:]
    assert fused_among(space_of().default().kernel) == ()


@pytest.mark.parametrize("label", LABELS)
def test_plans_of_each_choice_are_right_and_read_back(label: str) -> None:
    space, rules = space_of(), Counter[str]()
    for seed in range(120):
        choices, plan = drawn(space, label, seed)
        assert set(fused_among(plan.kernel)) == set(FUSED[label])
        rules.update(violation.rule for violation in check(plan, H200))
        assert space.to_plan(choices) == plan
        back = space.to_choices(plan)
        assert back is not None
        assert back["fusion"] == label
        assert space.to_plan(back) == plan
    assert set(rules) <= {"read_after_write", "write_after_read", "write_after_write"}


def test_questions_of_parts_and_of_the_fused_kernel_are_asked_only_where_they_apply() -> None:
    space = space_of()
    asked: dict[str, set[str]] = defaultdict(set)
    for label in LABELS:
        for seed in range(60):
            asked[label].update(map(question_stem, drawn(space, label, seed)[0]))
    about = {
        label: {stem for stem in stems if stem.startswith("B1p+C0.") or stem.endswith("->B1p+C0")}
        for label, stems in asked.items()
    }
    assert about["none"] == about["D0+D1"] == set()
    assert about["B1+C0"] == {"A0->B1p+C0", "B1p+C0.wait", "B1p+C0.trigger", "B1p+C0.chain"}
    for label, part in (("B1+C0", "C0"), ("B1+C0", "B1p"), ("D0+D1", "D0"), ("D0+D1", "D1p")):
        gone = {stem for stem in asked[label] if stem in (f"{part}.wait", f"{part}.trigger", f"{part}.chain")}
        assert gone == set(), label
        assert f"{part}.wait" in asked["none"]
    assert {"B1+C0->B1f", "D0+D1->D2", "B1+C0+D0+D1->D1f"} <= asked["B1+C0 D0+D1"]


def test_the_branch_of_a_fused_op_is_no_branch_any_more() -> None:
    offered: dict[str, set[str]] = defaultdict(set)

    def ask(label: str) -> None:
        def pick(question: Question) -> str:
            if question_stem(question.name) == "streams":
                offered[label].update(question.options)
            return label if question.name == "fusion" else next(iter(question.options))

        space_of().walk(pick)

    for label in ("none", "B1+C0", "D0+D1"):
        ask(label)
    assert len(offered["none"]) == len(offered["D0+D1"]) == 51  # five branches on at most four streams
    assert len(offered["B1+C0"]) == 15
    assert not any("gate" in option for option in offered["B1+C0"])


def test_only_configs_that_go_together_are_offered() -> None:
    space = space_of()
    for seed in range(80):
        choices, plan = drawn(space, "B1+C0 D0+D1", seed)
        for one, other in (("B1", "C0"), ("D0", "D1")):
            fields = [dict(plan.op[op].config) for op in (one, other)]
            assert fields[0]["warps"] == fields[1]["warps"]
            assert "cluster" not in {each.get("finalizer") for each in fields}
        assert "C0.finish" not in map(question_stem, choices)  # one value is left, and one value is no choice
    assert {dict(drawn(space, "none", seed)[1].op["C0"].config).get("finalizer") for seed in range(40)} - {None} == {
        "last_arriver",
        "cluster",
    }


def renamed(monkeypatch: pytest.MonkeyPatch, field: str, value: int | str) -> None:
    """C0's kernel is called C0x where its config has that value."""
    facts = HeadGate.facts

    def name(plan: OpPlan) -> str:
        return "x" if dict(plan.config).get(field) == value else ""

    def with_name(self: HeadGate, plan: OpPlan, kernels: tuple[KernelPlan, ...]) -> tuple[KernelFacts, ...]:
        return tuple(replace(kernel, name=name(plan)) for kernel in facts(self, plan, kernels))

    monkeypatch.setattr(HeadGate, "kernels", lambda self, plan: (name(plan),))
    monkeypatch.setattr(HeadGate, "facts", with_name)


def picker(fusion: str, word: str) -> Callable[[Question], str]:
    """Takes that fusion, and of C0 the option with that word; else the first."""

    def pick(question: Question) -> str:
        if question.name == "fusion":
            return fusion
        words = {word, "impl=wgmma"} if question.name.startswith("C0.") else set()
        asked = [label for label in question.options if words.intersection(label.split())]
        return asked[0] if asked else next(iter(question.options))

    return pick


def test_an_op_whose_first_kernel_has_other_names_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    space, pick = space_of(), picker("B1+C0", "split_k=4")
    plan = space.walk(pick)[1]
    assert dict(plan.op["C0"].config)["split_k"] == 4
    renamed(monkeypatch, "split_k", 4)
    one_name = "the first kernel of an op that shares a launch has one name under every config"
    with pytest.raises(InputError) as caught:
        space.walk(pick)
    assert str(caught.value) == f"B1p+C0: C0 makes no C0 under this config, but C0x; {one_name}"
    with pytest.raises(InputError, match="B1p\\+C0: C0 makes no C0 under this config, but C0x"):
        make_plan(WORKLOAD, None, SHAPE, "sm_90a", "serial", plan.op, ("B1p+C0",))
    assert space.to_choices(plan) is None
    unasked = replace(H200, name="another")  # nothing is known of what its configs were
    assert "kernels: C0: its config asks for 'C0x', which the plan does not have" in map(str, check(plan, unasked))


def test_a_kernel_that_no_file_was_asked_about_is_named_with_its_op(monkeypatch: pytest.MonkeyPatch) -> None:
    space = space_of()
    renamed(monkeypatch, "split_k", 4)
    with pytest.raises(SpaceError, match="the space knows no kernel C0x of C0: an op's first values"):
        space.walk(picker("none", "split_k=4"))
    assert "C0" in space.walk(picker("none", "split_k=8"))[1].kernel


def test_a_fused_kernel_of_ops_that_are_not_there_is_named() -> None:
    with pytest.raises(InputError, match="Y9\\+Z9: no op here has a kernel Y9"):
        kernel_ops(WORKLOAD.graph, space_of().default().op, ("Y9+Z9",))


def test_parts_of_the_workload_offer_what_they_can() -> None:
    assert space_of(("A0", "C0", "B1")).fusions == ("B1+C0",)
    assert space_of(("B0", "D0", "D1")).fusions == ("D0+D1",)
    assert space_of(("A0", "B0", "D0")).fusions == ()
    assert "fusion" not in space_of(("A0", "B0")).walk(lambda question: next(iter(question.options)))[0]
    assert space_of().configs_of("D0").fusions == ()


def changed_file(tmp_path: Path, *changes: tuple[str, str]) -> Path:
    text = search_space(WORKLOAD.name).read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "space.yaml").write_text(text)
    return tmp_path / "space.yaml"


def test_a_space_that_names_no_fusion_has_none(tmp_path: Path) -> None:
    """As files were before there was any."""
    path = changed_file(tmp_path, ("fusion: [B1+C0, D0+D1]\n", ""), (", B1p+C0, D0+D1p]", "]"))
    space = space_of(path=path)
    assert space.fusions == ()
    old = space.walk(lambda question: next(iter(question.options)))[1]
    assert space_of().to_choices(old) is not None  # and its plans lie in today's


def test_a_space_with_one_of_them_wants_the_groups_of_its_kernel(tmp_path: Path) -> None:
    one = changed_file(tmp_path, ("fusion: [B1+C0, D0+D1]\n", "fusion: [D0+D1]\n"), (", B1p+C0, D0+D1p]", ", D0+D1p]"))
    assert space_of(path=one).fusions == ("D0+D1",)
    kinds = "]\n    kinds: [full, programmatic]\n"
    missing = changed_file(tmp_path, (f", B1p+C0, D0+D1p{kinds}", kinds))
    with pytest.raises(SpaceError, match=r"no entry for B1p\+C0, D0\+D1p"):
        space_of(path=missing)
    wrong = changed_file(tmp_path, ("fusion: [B1+C0, D0+D1]\n", "fusion: [B1+D0]\n"))
    with pytest.raises(SpaceError, match=r"space.yaml:\d+: 'B1\+D0' is not one of: B1\+C0, D0\+D1"):
        space_of(path=wrong)


def test_a_space_without_configs_that_go_together_leaves_the_check_to_say_so(tmp_path: Path) -> None:
    path = changed_file(tmp_path, ("      finalizer: [last_arriver, cluster]\n", "      finalizer: [cluster]\n"))
    plan = drawn(space_of(path=path), "B1+C0", 0)[1]
    assert [violation.rule for violation in check(plan, H200)] == ["fusion"]


def test_part_spaces_keep_what_is_fused() -> None:
    space = space_of()
    base = drawn(space, "B1+C0 D0+D1", 3)[1]
    free = choose_free(space, base, 200)
    assert "fusion" not in free
    part = SubSpace(space, base, free)
    assert part.to_choices(base) is not None
    draw = random.Random(0)
    for _ in range(30):
        plan = part.walk(lambda question: draw.choice(list(question.options)))[1]
        assert fused_among(plan.kernel) == fused_among(base.kernel)
    both = SubSpace(space, base, {**free, "fusion": ("none", "B1+C0 D0+D1")})
    found = {fused_among(both.walk(lambda q: draw.choice(list(q.options)))[1].kernel) for _ in range(30)}
    assert found == {(), ("B1p+C0", "D0+D1p")}


def test_a_winner_that_fuses_is_adapted_to_another_shape() -> None:
    plan = drawn(space_of(), "B1+C0 D0+D1", 5)[1]
    for shape in (Shape.from_m(1, 8192), Shape.from_m(64, 65536)):
        fitted = adapt(plan, space_of(shape=shape))
        assert fitted is not None
        assert fused_among(fitted.kernel) == fused_among(plan.kernel)
        assert {violation.rule for violation in check(fitted, H200)} <= {"read_after_write", "write_after_read"}


# ---- samplers


def test_fusing_and_parting_change_nothing_that_need_not_change() -> None:
    """From a good plan to the same one fused, and back: edges, waits, triggers and streams are taken over."""
    space = space_of()
    sampler = LocalSampler(space, 0)
    base = space.to_choices(make_plan(WORKLOAD, None, SHAPE, H200.arch, "branches+pdl"))
    assert base is not None
    choices, plan = sampler._changed(base, {"fusion": "B1+C0 D0+D1"})
    assert check(plan, H200) == []
    assert set(plan.edge.values()) == {"programmatic"}
    for name in ("B1p+C0", "D0+D1p"):
        assert (plan.kernel[name].gdc, plan.kernel[name].trigger) == ("prefetch", "start")
    assert len({kernel.stream for _, kernel in plan.kernels}) == 3
    before = space.to_plan(base)
    assert all(plan.op[op] == before.op[op] for op in plan.op if op != "C0")
    _, again = sampler._changed(choices, {"fusion": "none"})
    assert set(again.edge.values()) == {"programmatic"}
    assert {again.kernel[name].gdc for name in ("B1p", "C0", "D0", "D1p")} == {"prefetch"}


def first_of_ours(question: Question) -> str:
    """Kernels of other implementations are launches of their own."""
    return next(label for label in question.options if "impl=deep_gemm" not in label)


def test_a_staged_search_starts_from_what_can_be_fused_too() -> None:
    space = space_of()
    sampler = StagedSampler(space, 0)
    for op in space.graph.calls:
        config = space.configs_of(op)
        sampler.know_op(op, config.walk(first_of_ours)[0], 1.0)
    starts = [fused_among(sampler.ask()[1].kernel) for _ in range(len(MODES) + 3)]
    assert sorted(starts) == sorted([()] * len(MODES) + [FUSED[label] for label in LABELS[1:]])


def test_a_traced_fused_kernel_is_about_both_its_ops() -> None:
    space = space_of()
    choices, _ = drawn(space, "D0+D1", 1)
    sampler = TraceGuidedSampler(space, 0)
    steps = (PathStep("D0+D1p", None, "layer", "begin", "", 0.0, 5.0),)
    sampler.know_path(choices, CriticalPath(steps, 5.0, ()))
    weighed = {question_stem(name) for name in sampler._weights(choices)}
    assert {"D0.tile", "D1.tile", "fusion"} <= weighed
    assert not {"B0.tile", "E1.tile"} & weighed


OPS = ("A0", "C0", "B1")


@cache
def searched() -> dict[tuple[str, ...], list[tuple[float, Plan]]]:
    """What is fused → span and plan of 1,000 proposals in the model of three ops, in order."""
    space = space_of(OPS)
    sampler = LocalSampler(space, 1)
    found: dict[tuple[str, ...], list[tuple[float, Plan]]] = defaultdict(list)
    with SimBackend().open(Problem(WORKLOAD.name, OPS, SHAPE)) as part:
        for _ in range(1000):
            choices, plan = sampler.ask()
            if check(plan, H200):
                sampler.reject(choices, True)
                continue
            measurement = part.measure(plan, None).measurement
            assert measurement is not None
            sampler.tell(choices, measurement.span_us)
            found[fused_among(plan.kernel)].append((measurement.span_us, plan))
    return found


@pytest.mark.parametrize("fused", [(), ("B1p+C0",)])
def test_a_search_goes_on_with_and_without_fusion(fused: tuple[str, ...]) -> None:
    spans = [span for span, _ in searched()[fused]]
    assert len(spans) > 30
    assert min(spans[20:]) < min(spans[:20])


def test_a_winner_that_fuses_is_stored_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builtins = builtin_plans(WORKLOAD, OPS, SHAPE, H200.arch)
    with SimBackend().open(Problem(WORKLOAD.name, OPS, SHAPE)) as bench:
        fastest = min(searched()["B1p+C0",], key=lambda pair: pair[0])[1]
        winner = bench.promote([fastest], builtins)
    assert fused_among(winner.plan.kernel) == ("B1p+C0",)
    assert dict(winner.attribution)["fusion"].note == ""
    path = str(tmp_path / "tuned.db")
    with Store.open(path) as store:
        store.put_winner(None, winner)
        assert store.winners(simulated=True)[0] == winner
    assert run(["show", winner.plan.short_id, "--store", path]) == 0
    shown = capsys.readouterr().out
    assert "(B1p+C0 fused)" in shown
    assert "every kernel a launch of its own" in shown
    assert run(["lookup", WORKLOAD.name, "--m", "16", "--kv", "8192", "--gpu", "NVIDIA H200", "--ops", ",".join(OPS),
                "--allow-simulated", "--store", path]) == 0  # fmt: skip
    assert "(B1p+C0 fused)" in capsys.readouterr().out


def test_tuning_tries_what_can_be_fused_and_goes_on_from_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "tuned.db")
    asked = ["tune", WORKLOAD.name, "--ops", ",".join(OPS), "--m", "16", "--kv", "8192", "--backend", "sim"]
    for trials in ("40", "50"):
        assert run([*asked, "--trials", trials, "--seed", "2", "--store", path, "--resume"]) == 0
    capsys.readouterr()
    with Store.open(path, write=False) as store:
        whole = [study for study in store.studies() if len(study.problem.ops) == len(OPS)]
        tried = [trial for study in whole for trial in store.trials(study)]
    assert len(tried) == 50
    assert {trial.outcome.status for trial in tried} == {Status.OK}
    assert sum(bool(fused_among(trial.plan.kernel)) for trial in tried) > 5
