"""Whole searches of noisy plans: near ties end in the same plan whatever the seed, and no winner is slower.

The bench of the GPU runs with a worker that only pretends (`fake_host`), in this process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_bench import SHAPE, WORKLOAD, small_space_file, space_of, study_of
from fake_device import FakeDevice
from fake_host import SETTINGS, FakeHost

from mktune.backends.base import Problem
from mktune.graph.builtin import builtin_plans
from mktune.measure.cuda_bench import PROCESSES, ROUNDS, CudaBench
from mktune.measure.promotion import simplicity
from mktune.search import Budget, TuneResult, driver, tune
from mktune.search.driver import choose_finalists
from mktune.store import Store
from mktune.trial import Measurement, Outcome, Policy, Status, Trial

BUILTINS = [plan.json for plan in builtin_plans(WORKLOAD, ("A0", "B0"), SHAPE, "sm_90a").values()]
NOISE = 0.01


class WorkerHere:
    """A worker that is no process."""

    starts = 1

    def __init__(self) -> None:
        self._host = FakeHost()

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        return self._host.handle(dict(request))

    def start(self) -> None: ...

    def restart(self) -> None: ...

    def close(self) -> None: ...


class DeviceHere(FakeDevice):
    def open(self, problem: Problem) -> CudaBench:
        bench = super().open(problem)
        bench._worker = WorkerHere()  # type: ignore[assignment]
        return bench


@contextmanager
def tuned(folder: Path, spans: Mapping[str, float], seed: int, space: Path) -> Iterator[tuple[TuneResult, Store]]:
    """A search of all of `space`, in which plans take these spans with noise."""
    settings = {"salt": "", "fates": False, "noise": NOISE, "spans": dict(spans), "other": 101.0, "seed": seed}
    with pytest.MonkeyPatch.context() as patched, Store.open(folder / f"{seed}.db") as store:
        patched.setenv(SETTINGS, json.dumps(settings))
        searched = space_of(path=space)
        study = study_of(store, searched, seed=seed)
        yield tune(searched, DeviceHere(), store, study, Budget(100)), store


def test_five_plans_within_a_fifth_of_a_percent_end_in_the_same_winner_for_20_of_20_seeds(tmp_path: Path) -> None:
    space = small_space_file(tmp_path)
    plans = [plan for _, plan in space_of(path=space) if plan.json not in BUILTINS]
    near, far = plans[:5], plans[5:]
    spans = {plan.json: 20.0 * (1.0 + 0.0005 * place) for place, plan in enumerate(near)}
    spans |= {plan.json: 24.0 for plan in far} | dict.fromkeys(BUILTINS, 30.0)
    assert len(near) == 5
    winners = set()
    for seed in range(20):
        with tuned(tmp_path, spans, seed, space) as (result, store):
            assert result.winner is not None
            assert not result.winner.kept_baseline
            (served,) = store.winners()
            assert served.plan == result.winner.plan
            winners.add(served.plan.plan_id)
            evidence = dict(served.extra)
            assert evidence["pairs"] == str(PROCESSES * ROUNDS * 2) == str(len(served.measurement.samples_us))
            assert served.plan.short_id in evidence["ties"]
            assert {f"over {name}" for name, _ in served.builtins} <= evidence.keys()
            assert 0.0 < served.noise_floor < 2 * NOISE
    assert winners == {min(near, key=simplicity).plan_id}


def test_a_candidate_that_is_slower_than_the_baseline_is_not_stored_in_its_place(tmp_path: Path) -> None:
    space = small_space_file(tmp_path)
    spans = {plan.json: 101.0 for _, plan in space_of(path=space)} | dict.fromkeys(BUILTINS, 100.0)
    for seed in range(5):
        with tuned(tmp_path, spans, seed, space) as (result, store):
            assert result.winner is not None
            assert result.winner.kept_baseline
            (served,) = store.winners()
            assert served.plan.json in BUILTINS
            assert served.kept_baseline
            assert served.ratio == 1.0 or served.ratio_high >= 1.0 - 0.01
            (row,) = [row for row in store.leaderboard() if row.winner]
            assert row.evidence == served  # a reader of the leaderboard sees that the default was kept


def trial(number: int, plan: Any, span: float, width: float) -> Trial:
    measured = Measurement(span, span * (1 - width), span * (1 + width), (span,), Policy("cuda"))
    return Trial(number, plan, Outcome(Status.OK, "", measured), "random")


def test_the_simplest_of_the_fastest_and_what_ships_are_finalists_whatever_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "FINALISTS", 4)
    plans = sorted((plan for _, plan in space_of(path=small_space_file(tmp_path))), key=simplicity)
    assert len(plans) >= 6
    behind = [trial(i, plan, 20.0 + 0.001 * (len(plans) - i), 0.002) for i, plan in enumerate(plans)]
    chosen = choose_finalists(behind, Policy("cuda"))
    assert len(chosen) == 4
    assert chosen[:-1] == list(reversed(plans))[:3]  # the fastest
    assert chosen[-1] == plans[0]
    apart = [trial(i, plan, 20.0 + 1.0 * (len(plans) - i), 0.002) for i, plan in enumerate(plans)]
    assert choose_finalists(apart, Policy("cuda")) == list(reversed(plans))[:4]  # nothing ties with the fastest
    ships = [plan.plan_id for plan in plans[1:5]]
    assert choose_finalists(behind, Policy("cuda"), ships[:1]) == [*list(reversed(plans))[:2], plans[1], plans[0]]
    assert choose_finalists(behind, Policy("cuda"), ships)[0] == plans[-1]  # the fastest in any case
    assert choose_finalists(apart, Policy("cuda"), ships[:1]) == list(reversed(plans))[:4]  # clearly slower here
    assert choose_finalists([], Policy("cuda")) == []
    assert choose_finalists(behind, Policy("cuda", cold=False)) == []
