"""Ops alone before the search: measured once, kept, and used by every later search of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_bench import H200, POLICY, SHAPE, WORKLOAD, FakeBackend, FakeBench, ok, search, space_of, spans

from mktune.graph.builtin import make_plan
from mktune.plan import Plan
from mktune.search import budget
from mktune.search.op_stage import SHARE, TRIALS, TURNS, is_same_work
from mktune.shape import Shape
from mktune.store import Store
from mktune.trial import ALONE, Outcome, Policy
from mktune.validity import check

ALL = WORKLOAD.ops
LONGER = Shape.from_m(16, 65536)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.db") as opened:
        yield opened


def by_config(plan: Plan) -> Outcome:
    """A span that depends on the configs alone, each op for itself: what is best alone is best together."""
    return ok(sum(1.0 + int(hashlib.sha256(repr(op).encode()).hexdigest()[:4], 16) / 2**16 for op in plan.ops))


def staged(store: Store, backend: FakeBackend, name: str, seed: int = 0, shape: Shape = SHAPE, trials: int = 12):
    return search(store, backend, trials, space=space_of(None, None, shape), sampler="staged", name=name, seed=seed)


def parts_of(backend: FakeBackend) -> dict[str, FakeBench]:
    return {ops[0]: bench for ops, bench in backend.bench.parts.items()}


def test_every_op_is_measured_alone_and_stored_as_a_study_of_its_own(store: Store) -> None:
    backend = FakeBackend()
    result = staged(store, backend, "whole")
    assert set(parts_of(backend)) == set(ALL)
    alone = {study.problem.ops[0]: study for study in store.studies() if study.sampler == ALONE}
    assert set(alone) == set(ALL)
    for op, bench in parts_of(backend).items():
        trials = store.trials(alone[op])
        assert [trial.plan for trial in trials] == bench.measured
        assert trials[0].source == "builtin:serial"
        assert {trial.source for trial in trials[1:]} <= {ALONE, "random", "enumeration"}
        assert all(kind == "full" for trial in trials for _, kind in trial.plan.edges)
    assert len(parts_of(backend)["D0"].measured) == TRIALS
    assert len(result.trials) == 12  # the study's own


def test_what_every_op_begins_with_is_compiled_before_the_first_is_measured(store: Store) -> None:
    prepared: list[dict[str, int]] = []

    def answer(plan: Plan) -> Outcome:
        prepared.append({op: len(bench.prepared) for op, bench in parts_of(backend).items()})
        return ok(spans(plan))

    backend = FakeBackend(answer)
    staged(store, backend, "first")
    assert set(prepared[0]) == set(ALL)
    assert min(prepared[0].values()) >= 1 < prepared[0]["E1"]
    prepared.clear()
    backend = FakeBackend(answer)
    staged(store, backend, "second", seed=1)
    known = parts_of(backend)["D0"]
    assert known.measured == known.prepared == []


def test_what_an_op_proposes_next_is_compiled_while_others_are_measured(store: Store) -> None:
    turns: list[str] = []
    compiled: list[int] = []  # of B0, and not measured yet, when a turn of D0 begins

    def answer(plan: Plan) -> Outcome:
        if len(plan.op) == 1 and turns[-1:] != [*plan.op]:
            turns.extend(plan.op)
            if turns[-1] == "D0":
                bench = parts_of(backend)["B0"]
                compiled.append(len(set(bench.prepared) - {measured.plan_id for measured in bench.measured}))
        return ok(spans(plan))

    backend = FakeBackend(answer)
    staged(store, backend, "whole")
    first, *others = WORKLOAD.graph.calls  # A0 has few configs: one turn
    assert turns == [first, *TURNS * others]
    assert compiled[0] > 0 == compiled[-1]


def test_what_was_measured_of_an_op_serves_every_later_search(store: Store) -> None:
    staged(store, FakeBackend(), "first")
    again = FakeBackend()
    staged(store, again, "second", seed=1)
    assert [op for op, bench in parts_of(again).items() if bench.measured and len(bench.measured) == TRIALS] == []
    longer = FakeBackend()
    staged(store, longer, "longer", shape=LONGER)
    assert {op for op, bench in parts_of(longer).items() if len(bench.measured) == TRIALS} == {"E1"}


def test_spans_of_another_policy_do_not_serve(store: Store) -> None:
    staged(store, FakeBackend(), "first")
    other = FakeBackend(lambda plan: ok(spans(plan), Policy("fake", layers=9)), policy=Policy("fake", layers=9))
    staged(store, other, "second")
    assert other.bench.policy != POLICY
    assert parts_of(other)["D0"].measured


def test_the_search_starts_from_the_built_in_structures_with_the_best_configs(store: Store) -> None:
    backend = FakeBackend(by_config)
    result = staged(store, backend, "whole", trials=16)
    best = {
        op: min(bench.measured, key=lambda plan: by_config(plan).measurement.span_us).op[op]
        for op, bench in parts_of(backend).items()
    }
    measured = {trial.plan.plan_id for trial in result.trials if trial.source == "staged"}
    for mode in ("serial", "branches"):
        assert make_plan(WORKLOAD, None, SHAPE, "sm_90a", mode, best).plan_id in measured
    assert result.best is not None
    assert result.best.plan.op == best


def test_where_rows_are_many_configs_of_larger_blocks_come_first(store: Store) -> None:
    many = FakeBackend(by_config)
    staged(store, many, "many", shape=Shape.from_m(64, 8192))
    for op, bench in parts_of(many).items():
        tiles = [dict(plan.op[op].config).get("block_m") for plan in bench.measured[:5]]
        if op in ("B0", "D0", "D2"):
            assert tiles == [16, 32, 32, 64, 64], op
    few = FakeBackend(by_config)
    staged(store, few, "few", shape=SHAPE)
    assert WORKLOAD.graph.calls["D0"].op.starts("sm_90a", SHAPE) == ()


@pytest.mark.parametrize(("m", "kv"), [(1, 65536), (16, 8192), (16, 65536), (64, 65536), (256, 64)])
def test_scores_begin_with_a_wave_or_two_of_ctas(m: int, kv: int) -> None:
    shape = Shape.from_m(m, kv)
    op, found = WORKLOAD.graph.calls["E1"].op, []
    for config in op.starts("sm_90a", shape):
        plan = make_plan(WORKLOAD, ("E1",), shape, "sm_90a", "serial", {"E1": config})
        if not check(plan, H200):
            found.append(config)
            ctas = op.work(config, shape)[0].ctas
            assert ctas <= 2 * 132
    assert len({dict(config.config).get("ahead", "none") for config in found}) >= 2
    assert {dict(config.config)["q_block"] for config in found} <= {shape.tokens_per_request, 4}


def test_ops_take_only_their_share_of_the_seconds(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def takes_a_second(plan: Plan) -> Outcome:
        now[0] += 1.0
        return ok(spans(plan))

    backend = FakeBackend(takes_a_second)
    result = search(store, backend, None, space=space_of(None), sampler="staged", seconds=100.0)
    alone = sum(len(bench.measured) for bench in parts_of(backend).values())
    assert len(ALL) <= alone <= 100 * SHARE + len(ALL)
    assert len(result.trials) == 100 - alone


def test_only_the_scores_depend_on_the_context_length() -> None:
    depends = {name for name, call in WORKLOAD.graph.calls.items() if not is_same_work(call.op, SHAPE, LONGER)}
    assert depends == {"E1"}
    assert not any(is_same_work(call.op, SHAPE, Shape.from_m(32, 8192)) for call in WORKLOAD.graph.calls.values())
