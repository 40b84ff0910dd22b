"""Winners of neighbouring shapes are tried first, made to fit; cells of a grid share what is costly to start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_bench import H200, WORKLOAD, FakeBackend

from mktune import backends
from mktune.backends.base import Problem
from mktune.backends.cuda import CudaBackend
from mktune.device import Device
from mktune.graph.builtin import make_plan
from mktune.graph.workload import workload
from mktune.runtime.sources import bundled_winners
from mktune.search import Budget, TuneResult, tune
from mktune.search.neighbours import adapt, distance, known_plans, neighbour_plans
from mktune.shape import Shape
from mktune.space import SearchSpace
from mktune.store import Store
from mktune.trial import NEIGHBOUR, SHIPPED
from mktune.validity import check

SIM = backends.get("sim")
WHOLE = workload("glm52_attention_prefix")
OPS = ("A0", "B0")


def space_at(m: int, kv: int = 8192) -> SearchSpace:
    return SearchSpace.load(WORKLOAD, OPS, Shape.from_m(m, kv), SIM.device)


def search(store: Store, space: SearchSpace, trials: int = 12, neighbours: int = 3) -> TuneResult:
    study = store.study(
        f"study {space.shape}",
        workload=WORKLOAD.name,
        ops=OPS,
        shape=space.shape,
        device=SIM.device,
        backend=SIM.name,
        sampler="local",
        seed=0,
        contract=WORKLOAD.contract,
    )
    return tune(space, SIM, store, study, Budget(trials), neighbours=neighbours)


def test_the_winner_of_the_cell_beside_is_tried_right_after_the_builtin_plans(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.db") as store:
        won = search(store, space_at(16), trials=120).winner
        assert won is not None
        assert not won.kept_baseline
        result = search(store, space_at(32))
    sources = [trial.source for trial in result.trials]
    first = sources.index(NEIGHBOUR)
    assert all(source.startswith("builtin:") for source in sources[:first])
    assert sources.count(NEIGHBOUR) == 1
    assert result.trials[first].plan.shape == space_at(32).shape
    assert result.trials[first].plan.kernel.keys() == won.plan.kernel.keys()


def test_no_neighbours_where_none_are_wanted(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.db") as store:
        search(store, space_at(16))
        result = search(store, space_at(8), neighbours=0)
    assert NEIGHBOUR not in {trial.source for trial in result.trials}


def test_the_nearest_come_first_and_no_more_than_asked_for(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.db") as store:
        for m in (1, 8, 64):
            search(store, space_at(m), trials=8)
        plans = neighbour_plans(store, space_at(16), SIM, most=2)
        nearest = [w.plan for w in store.winners(workload=WORKLOAD.name) if w.plan.shape.m == 8]
    assert len(plans) <= 2
    assert plans[0] == adapt(nearest[0], space_at(16))


def measuring(device: Device = H200) -> FakeBackend:
    """A back end that measures, by default on the GPU that the shipped plans are of."""
    backend = FakeBackend()
    backend.device = device
    return backend


def test_what_ships_for_the_shape_comes_first_then_what_ships_for_others(tmp_path: Path) -> None:
    for shape, ships in ((Shape.from_m(16, 8192), 1), (Shape.from_m(64, 8192), 1), (Shape.from_m(32, 8192), 0)):
        space = SearchSpace.load(WHOLE, None, shape, H200)
        with Store.open(tmp_path / "store.db") as store:
            found = known_plans(store, space, measuring(), 2, bundled_winners())
        own = [winner.plan for winner in bundled_winners() if winner.plan.shape == shape]
        assert found[: len(own)] == [(SHIPPED, plan) for plan in own]
        assert len(own) == ships
        rest = found[len(own) :]
        assert 0 < len(rest) <= 2
        assert {source for source, _ in rest} == {NEIGHBOUR}
        for _, plan in found:
            assert plan.shape == shape
            assert not check(plan, H200)


def test_nothing_that_ships_is_known_to_a_model_to_other_ops_or_to_another_gpu(tmp_path: Path) -> None:
    whole = SearchSpace.load(WHOLE, None, Shape.from_m(16, 8192), SIM.device)
    other = replace(H200, name="NVIDIA H100")
    with Store.open(tmp_path / "store.db") as store:
        shipped = bundled_winners()
        assert known_plans(store, whole, SIM, shipped=shipped) == []
        assert known_plans(store, space_at(16), measuring(), shipped=shipped) == []
        space = SearchSpace.load(WHOLE, None, Shape.from_m(16, 8192), other)
        assert known_plans(store, space, measuring(other), shipped=shipped) == []


@pytest.mark.parametrize("m", [1, 4, 16, 64, 128])
def test_an_adapted_plan_lies_in_the_space_and_is_valid(m: int) -> None:
    for mode in ("serial", "branches+pdl"):
        plan = adapt(make_plan(WORKLOAD, OPS, Shape.from_m(16, 8192), "sm_90a", mode), space_at(m, 65536))
        assert plan is not None
        assert plan.shape == Shape.from_m(m, 65536)
        assert space_at(m, 65536).to_choices(plan) is not None
        assert not check(plan, SIM.device)


def test_a_plan_at_its_own_shape_stays_what_it_is() -> None:
    plan = space_at(16).default()
    assert adapt(plan, space_at(16)) == plan


def test_distance_counts_doublings() -> None:
    assert distance(Shape.from_m(16, 8192), Shape.from_m(32, 8192)) == 1.0
    assert distance(Shape(2, 8, 8192), Shape(2, 8, 65536)) == 3.0


def test_benches_of_kept_cells_share_compilers_and_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mktune.executors.discovery.find_device", lambda index: SIM.device)
    backend = CudaBackend()
    problems = [Problem(WORKLOAD.name, OPS, Shape.from_m(m, 8192)) for m in (16, 32)]
    with backend.kept():
        first, second = (backend.open(problem) for problem in problems)
        assert first._worker is second._worker
        assert first._compiler is second._compiler
        assert (first.problem, second.problem) == tuple(problems)
        other_seed = backend.open(Problem(WORKLOAD.name, OPS, Shape.from_m(16, 8192), seed=1))
        assert other_seed._worker is not first._worker
        other_seed.close()
    with backend.open(problems[0]) as alone:
        assert alone._worker is not first._worker
