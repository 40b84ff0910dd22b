"""The search loop: what it measures, counts, stores and survives. No GPU, no model: a scripted bench."""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from fake_bench import (
    POLICY,
    SPILLS,
    Answer,
    FakeBackend,
    failed,
    ok,
    raising,
    search,
    small_space_file,
    space_of,
    spans,
    study_of,
)
from waiting import LIMIT_S

from mktune.errors import InputError, MktuneError, NothingFoundError, SetupError
from mktune.graph.builtin import builtin_plans
from mktune.plan import Plan
from mktune.search import Budget, Observer, Progress, tune
from mktune.search.driver import FINALISTS, SWITCH_S
from mktune.search.proposals import DEEP, Proposal, Proposals
from mktune.search.result import PHASES
from mktune.search.samplers.base import mixed_seed
from mktune.store import Store
from mktune.trial import Outcome, Policy, Status, Trial


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.db") as opened:
        yield opened


class Clock:
    """The time of a search, in which nothing takes any but a measurement."""

    def __init__(self) -> None:
        self.now = 0.0
        self.perf_counter = self.monotonic = lambda: self.now

    def takes(self, seconds: float, answer: Answer = lambda plan: ok(spans(plan))) -> Answer:
        def later(plan: Plan) -> Outcome:
            self.now += seconds
            return answer(plan)

        return later


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in ("phases", "search.benches", "search.budget", "search.driver"):
        monkeypatch.setattr(f"mktune.{module}.time", made)
    return made


def builtin_ids() -> set[str]:
    space = space_of()
    return {plan.plan_id for plan in builtin_plans(space.workload, ("A0", "B0"), space.shape, "sm_90a").values()}


def is_builtin(plan: Plan) -> bool:
    return plan.plan_id in builtin_ids()


def test_built_in_plans_are_the_first_trials_and_every_trial_is_stored(store: Store) -> None:
    backend = FakeBackend()
    result = search(store, backend, 12)
    assert [trial.number for trial in result.trials] == list(range(12))
    # On two ops the branches are one stream: two of the four built-in plans are the same as the other two.
    assert [trial.source for trial in result.trials[:3]] == ["builtin:serial", "builtin:serial+pdl", "random"]
    stored = store.trials(store.find_study("s"))
    assert [trial.plan for trial in stored] == [trial.plan for trial in result.trials]
    assert [trial.outcome.measurement for trial in stored] == [trial.outcome.measurement for trial in result.trials]
    assert len({trial.plan.plan_id for trial in stored}) == 12
    assert backend.bench.closed == 1


def test_the_fastest_plans_are_promoted_and_the_winner_is_stored(store: Store) -> None:
    backend = FakeBackend()
    result = search(store, backend, 30)
    fastest = sorted(result.trials, key=lambda trial: spans(trial.plan))
    assert [plan.plan_id for plan in backend.bench.promoted[0]] == [trial.plan.plan_id for trial in fastest[:FINALISTS]]
    assert result.winner is not None
    assert result.winner.plan == fastest[0].plan
    assert [winner.plan for winner in store.winners(ops=("A0", "B0"))] == [fastest[0].plan]
    assert result.stored
    assert result.best is not None
    assert result.best.plan == fastest[0].plan


def test_a_stored_plan_whose_bits_do_not_repeat_gives_way_where_they_must(store: Store) -> None:
    """Though it is faster: nothing says of it that they do."""
    fast = search(store, FakeBackend(), 30).winner
    assert fast is not None
    others = FakeBackend(lambda plan: failed() if plan == fast.plan else ok(spans(plan)))
    for asked in (False, True):
        found = search(store, others, 30, name=f"again {asked}", deterministic=asked)
        assert found.winner is not None
        assert (found.stored, others.bench.deterministic) == (asked, asked)
        assert [winner.plan for winner in store.winners()] == [found.winner.plan if asked else fast.plan]


def test_an_incumbent_is_given_to_candidates_and_never_to_built_in_plans(store: Store) -> None:
    backend = FakeBackend()
    result = search(store, backend, 8)
    assert backend.bench.incumbents[:2] == [None, None]
    best = min(spans(trial.plan) for trial in result.trials[:2])
    assert backend.bench.incumbents[2] == best


def test_plans_are_prepared_before_they_are_measured(store: Store) -> None:
    backend = FakeBackend()
    result = search(store, backend, 20)
    first = {plan_id: index for index, plan_id in reversed(list(enumerate(backend.bench.prepared)))}
    assert all(trial.plan.plan_id in first for trial in result.trials)


def test_a_kernel_that_takes_long_to_compile_holds_nobody_up(store: Store) -> None:
    backend = FakeBackend()
    slow = set[str]()

    def compiled(plan: Plan) -> bool:
        slow.update([plan.plan_id] if len(slow) < 3 else [])
        return plan.plan_id not in slow or len(backend.bench.measured) >= 20

    backend.bench.is_ready = compiled
    result = search(store, backend, 24)
    order = [trial.plan.plan_id for trial in result.trials]
    assert len(slow) == 3
    assert all(order.index(plan_id) >= 20 for plan_id in slow)
    assert [trial.source for trial in result.trials[:2]] == ["builtin:serial", "builtin:serial+pdl"]


def test_while_compilers_are_busy_what_needs_none_is_measured_beside_the_queue(store: Store) -> None:
    backend = FakeBackend()
    bench = backend.bench
    bench.is_ready = lambda plan: not is_slow(plan) or not 50 <= len(bench.measured) < 150
    result = search(store, backend, 200, space=space_of(None), sampler="local")
    order = [trial.plan.plan_id for trial in result.trials]
    assert len(set(order)) == len(order) == 200
    first, meanwhile, last = ([trial.plan for trial in result.trials[a:b]] for a, b in ((0, 50), (50, 150), (150, 200)))
    assert any(map(is_slow, first))
    assert not any(map(is_slow, meanwhile))
    assert set(bench.begun) <= set(order)  # others were withdrawn before anybody compiled them
    assert sum(map(is_slow, last)) >= DEEP / 2


def is_slow(plan: Plan) -> bool:
    """Four of five, to compile."""
    return int(plan.plan_id[:4], 16) % 5 > 0


def test_nothing_is_lost_where_every_kernel_takes_long_to_compile(store: Store, tmp_path: Path) -> None:
    backend = FakeBackend()
    asked: dict[str, int] = {}

    def compiled(plan: Plan) -> bool:
        asked[plan.plan_id] = asked.get(plan.plan_id, 0) + 1
        return asked[plan.plan_id] > 20

    backend.bench.is_ready = compiled
    space = space_of(path=small_space_file(tmp_path))
    result = search(store, backend, 100, space=space)
    assert result.exhausted == "every valid plan of the space was measured"
    assert len({trial.plan.plan_id for trial in result.trials}) == len(result.trials) >= 6


@pytest.mark.parametrize("status", [s for s in Status if s not in (Status.OK, Status.LOST)])
def test_a_candidate_that_fails_is_a_trial_with_its_status(store: Store, status: Status) -> None:
    backend = FakeBackend(lambda plan: ok(spans(plan)) if is_builtin(plan) else failed(status, "why\nit failed"))
    result = search(store, backend, 8)
    assert [trial.outcome.status for trial in result.trials] == [Status.OK] * 2 + [status] * 6
    assert [trial.outcome.status for trial in store.trials(store.find_study("s"))][2:] == [status] * 6
    assert result.winner is not None
    assert result.winner.kept_baseline


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (RuntimeError("boom"), Status.CRASH, "RuntimeError: boom"),
        (AssertionError("no"), Status.CRASH, "AssertionError: no"),
        (SystemExit(1), Status.CRASH, "SystemExit: 1"),
        (MemoryError(), Status.CRASH, "MemoryError: "),
        (SPILLS, Status.COMPILE_ERROR, "ptxas: too many registers"),
    ],
)
def test_whatever_a_candidate_raises_costs_one_trial(
    store: Store, error: BaseException, status: Status, reason: str
) -> None:
    def answer(plan: Plan) -> Outcome:
        return ok(spans(plan)) if is_builtin(plan) or plan.op["A0"].config[0][1] != 192 else raising(error)(plan)

    result = search(store, FakeBackend(answer), 20)
    bad = [trial for trial in result.trials if trial.outcome.status != Status.OK]
    assert bad
    assert {(trial.outcome.status, trial.outcome.reason) for trial in bad} == {(status, reason)}
    assert len(result.trials) == 20
    assert result.winner is not None


def test_a_machine_that_fails_ends_the_search_with_what_was_measured_kept(store: Store) -> None:
    calls = []

    def answer(plan: Plan) -> Outcome:
        calls.append(plan)
        if len(calls) == 6:
            raise SetupError("the GPU fell off the bus")
        return ok(spans(plan))

    backend = FakeBackend(answer)
    with pytest.raises(SetupError, match="fell off"):
        search(store, backend, 20)
    assert len(store.trials(store.find_study("s"))) == 5
    assert backend.bench.closed == 1


@pytest.mark.parametrize("span", [math.nan, math.inf, 0.0, -3.0])
def test_an_impossible_span_is_a_failure(store: Store, span: float) -> None:
    result = search(store, FakeBackend(lambda plan: ok(spans(plan) if is_builtin(plan) else span)), 5)
    assert [trial.outcome.status for trial in result.trials][2:] == [Status.CRASH] * 3
    json.dumps(result.to_dict(), allow_nan=False)


def test_no_success_at_all_is_its_own_error_and_stores_no_plan(store: Store) -> None:
    with pytest.raises(NothingFoundError, match="no built-in plan could be run: serial: compile_error: error: no inst"):
        search(store, FakeBackend(lambda plan: failed()), 50)
    assert len(store.trials(store.find_study("s"))) == 2  # it stopped there
    assert store.winners(history=True) == []


def test_a_wrong_built_in_plan_ends_the_search(store: Store) -> None:
    backend = FakeBackend(lambda plan: failed(Status.WRONG_RESULT, "h_q differs") if is_builtin(plan) else ok(5.0))
    with pytest.raises(MktuneError, match="baseline wrong: built-in plan serial: h_q differs"):
        search(store, backend, 50)
    assert store.winners(history=True) == []


def test_a_budget_of_seconds_ends_the_search(store: Store, clock: Clock) -> None:
    result = search(store, FakeBackend(clock.takes(20.0)), None, seconds=300.0)
    assert len(result.trials) == 15
    assert result.winner is not None


@pytest.mark.parametrize(("trials", "seconds"), [(0, None), (-1, None), (None, 0.0), (None, math.nan), (True, None)])
def test_a_budget_must_be_positive(trials: int | None, seconds: float | None) -> None:
    with pytest.raises(InputError):
        Budget(trials, seconds)


@pytest.mark.parametrize("sampler", ["random", "tpe", "local"])
def test_a_small_space_is_measured_once_each_and_is_then_exhausted(store: Store, tmp_path: Path, sampler: str) -> None:
    space = space_of(("A0", "B0"), small_space_file(tmp_path, kinds="[full, programmatic]"))
    assert space.size().exact
    backend = FakeBackend()
    result = search(store, backend, 500, space=space, sampler=sampler)
    assert result.exhausted == "every valid plan of the space was measured"
    assert len({plan.plan_id for plan in backend.bench.measured}) == len(backend.bench.measured)
    inside = {space.to_plan(c).plan_id for t in result.trials if (c := space.to_choices(t.plan)) is not None}
    assert inside == {plan.plan_id for _, plan in space}
    assert result.winner is not None
    assert not result.stopped


def test_a_resumed_study_goes_on_and_repeats_nothing(store: Store) -> None:
    whole = search(store, FakeBackend(), 24, name="whole")
    first = FakeBackend()
    search(store, first, 10)
    second = FakeBackend()
    result = search(store, second, 24, resume=True)
    assert (len(result.trials), result.resumed, len(second.bench.measured)) == (24, 10, 14)
    assert [trial.number for trial in result.trials] == list(range(24))
    ids = [plan.plan_id for plan in (*first.bench.measured, *second.bench.measured)]
    assert len(set(ids)) == 24
    assert [trial.plan for trial in whole.trials[:10]] == [trial.plan for trial in result.trials[:10]]
    # The baselines are measured again beside the finalists, not as trials.
    assert len(second.bench.promoted) == 1


def test_a_finished_study_resumed_only_promotes(store: Store) -> None:
    search(store, FakeBackend(), 10)
    again = FakeBackend()
    result = search(store, again, 10, resume=True)
    assert again.bench.measured == []
    assert result.winner is not None
    assert result.resumed == len(result.trials) == 10


def test_one_more_choice_keeps_the_old_trials_and_is_searched(store: Store, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir(), (tmp_path / "two").mkdir(), (tmp_path / "three").mkdir()
    narrow = space_of(("A0", "B0"), small_space_file(tmp_path / "one", block_n="[128]"))
    search(store, FakeBackend(), 100, space=narrow)
    wide = space_of(("A0", "B0"), small_space_file(tmp_path / "two", block_n="[64, 128]"))
    second = FakeBackend()
    result = search(store, second, 100, space=wide, resume=True)
    assert {dict(plan.op["B0"].config)["block_n"] for plan in second.bench.measured} == {64}
    assert result.resumed + len(second.bench.measured) == len(result.trials)
    turned = space_of(("A0", "B0"), small_space_file(tmp_path / "three", block_n="[128, 64]"))
    third = FakeBackend()
    result = search(store, third, 100, space=turned, resume=True)
    assert third.bench.measured == []
    assert result.exhausted


def test_adding_one_candidate_measures_one(store: Store, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir(), (tmp_path / "two").mkdir()
    few = space_of(("A0", "B0"), small_space_file(tmp_path / "one", threads="[192, 384]", block_n="[128]"))
    search(store, FakeBackend(), 100, space=few)
    more = space_of(("A0", "B0"), small_space_file(tmp_path / "two", threads="[192, 384, 768]", block_n="[128]"))
    second = FakeBackend()
    search(store, second, 100, space=more, resume=True)
    assert [dict(plan.op["A0"].config)["threads"] for plan in second.bench.measured] == [768]


def test_spans_of_another_policy_are_not_promoted(store: Store) -> None:
    search(store, FakeBackend(lambda plan: ok(1.0)), 10)
    warm = Policy(backend="fake", layers=8, cold=False)
    backend = FakeBackend(lambda plan: ok(spans(plan), warm), policy=warm)
    result = search(store, backend, 14, resume=True)
    promoted = {plan.plan_id for plan in backend.bench.promoted[0]}
    assert promoted <= {trial.plan.plan_id for trial in result.trials[10:]}
    assert warm != POLICY


@pytest.mark.parametrize("sampler", ["random", "tpe", "local"])
def test_one_process_with_a_seed_is_reproducible_however_fast_it_runs(store: Store, sampler: str) -> None:
    ids = []
    for name, takes in (("fast", 0.0), ("slow", 0.004)):
        result = search(store, FakeBackend(takes_s=takes), 30, sampler=sampler, seed=7, name=name)
        ids.append([trial.plan.plan_id for trial in result.trials])
        counts = store.find_study(name)
        assert (counts.invalid, counts.duplicate) == (result.invalid, result.duplicate)
    assert ids[0] == ids[1]
    other = search(store, FakeBackend(), 30, sampler=sampler, seed=8, name="other")
    assert [trial.plan.plan_id for trial in other.trials] != ids[0]


def test_processes_of_one_seed_measure_different_plans(tmp_path: Path) -> None:
    measured = []
    for process in range(3):
        with Store.open(tmp_path / f"{process}.db") as store:
            result = search(store, FakeBackend(), 10, seed=7, process=process)
            measured += [trial.plan.plan_id for trial in result.trials if not trial.source.startswith("builtin")]
    assert len(set(measured)) == len(measured) == 24
    assert len({mixed_seed(seed, process) for seed in range(50) for process in range(50)}) == 2500


def test_near_ties_end_in_the_same_plan_whatever_the_seed(tmp_path: Path) -> None:
    """Plans within 0.2 %, and a baseline among them: the baseline is kept, each time."""
    kept = set()
    for seed in range(5):
        with Store.open(tmp_path / f"{seed}.db") as store:
            backend = FakeBackend(lambda plan: ok(10.0 if is_builtin(plan) else 9.98 + spans(plan) * 1e-3))
            result = search(store, backend, 8, seed=seed)
            assert result.winner is not None
            assert result.winner.kept_baseline
            kept.add(result.winner.plan.plan_id)
    assert len(kept) == 1


class Recorder(Observer):
    def __init__(self) -> None:
        self.seen: list[tuple[Trial, Progress]] = []
        self.phases: list[str] = []

    def progress(self, progress: Progress) -> None:
        self.phases.append(progress.phase)

    def trial(self, trial: Trial, progress: Progress) -> None:
        self.seen.append((trial, progress))
        self.phases.append(progress.phase)


def test_an_observer_sees_every_trial_and_phase(store: Store) -> None:
    observer = Recorder()
    search(store, FakeBackend(lambda p: ok(spans(p)) if is_builtin(p) else failed()), 6, observer=observer)
    assert [progress.trials for _, progress in observer.seen] == [1, 2, 3, 4, 5, 6]
    assert [progress.failed for _, progress in observer.seen] == [0, 0, 1, 2, 3, 4]
    assert observer.phases == ["builtins"] * 2 + ["search"] * 4 + ["promote"]
    assert observer.seen[-1][1].of == 6


def test_the_result_says_where_the_time_went(store: Store, clock: Clock) -> None:
    result = search(store, FakeBackend(clock.takes(0.25)), 20)
    data = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert data["trials"] == 20
    assert data["statuses"] == {"ok": 20}
    assert data["winner"]["plan"]["workload"] == "glm52_attention_prefix"
    assert {*PHASES, "total"} == set(data["seconds"])
    assert set(data["within"]) == {"measure", "alone"}
    assert data["seconds"]["measure"] == 20 * 0.25
    assert data["seconds"]["promote"] > 0
    assert data["seconds"]["total"] == data["seconds"]["measure"] + data["seconds"]["promote"]
    spent = dict(result.trials[-1].seconds)
    assert {"ask", "check", "lower", "measure"} == set(spent)


def test_the_time_of_a_search_is_told_by_phase_and_by_what_the_bench_did(store: Store, clock: Clock) -> None:
    inside = (("queue", 0.001), ("build", 0.002), ("verify", 0.003), ("settle", 0.004), ("compile", 0.0005))

    def answer(plan: Plan) -> Outcome:
        return replace(ok(spans(plan)), seconds=(*inside, ("total", 0.0105)))

    backend = FakeBackend(clock.takes(0.012, answer))
    space = space_of()
    result = tune(space, backend, store, study_of(store, space, sampler="staged"), Budget(15))
    data = result.to_dict()
    measured = data["within"]["measure"]
    assert measured == pytest.approx({"queue": 0.015, "build": 0.03, "verify": 0.045, "settle": 0.06})
    seconds, alone = data["seconds"], data["within"]["alone"]
    assert seconds["compile"] == pytest.approx(15 * 0.0005)
    assert seconds["measure"] == pytest.approx(15 * (0.012 - 0.0005))
    asked_alone = sum(len(part.measured) for part in backend.bench.parts.values())
    assert asked_alone > 15
    assert seconds["alone"] == pytest.approx(asked_alone * 0.012)  # the two ops, before
    assert alone["measure"] == pytest.approx(asked_alone * (0.012 - 0.0005))
    serial = ("wait", "prepare", "compile", "measure", "store", "promote", "alone")  # one after the other
    assert sum(seconds[phase] for phase in serial) == pytest.approx(seconds["total"])
    assert data["measuring_seconds"] == pytest.approx(
        seconds["measure"] + seconds["promote"] + alone["measure"], abs=1e-5
    )


@pytest.mark.parametrize("fails", [False, True])
def test_threads_hand_over_sooner_during_a_search_and_as_before_after_it(store: Store, fails: bool) -> None:
    before, during = sys.getswitchinterval(), set[float]()

    def answer(plan: Plan) -> Outcome:
        during.add(sys.getswitchinterval())
        if fails:
            raise SetupError("the GPU fell off the bus")
        return ok(spans(plan))

    with pytest.raises(SetupError) if fails else nullcontext():
        search(store, FakeBackend(answer), 4)
    assert during == {SWITCH_S}
    assert during != {before}
    assert sys.getswitchinterval() == before


def test_asking_overlaps_measuring(store: Store) -> None:
    """A proposal is only made while something is measured, and that only ends when one has been made."""
    measuring, made = threading.Event(), threading.Semaphore(0)
    late: list[str] = []

    class Overlapping(Proposals):
        def _next(self) -> Proposal | None:
            proposal = super()._next()
            if proposal is not None and not proposal.given and not late:
                late.extend([] if measuring.wait(LIMIT_S) else ["nothing is measured meanwhile"])
                made.release()
            return proposal

    def answer(plan: Plan) -> Outcome:
        if len(backend.bench.measured) <= 28 and not late:  # so many are proposed: two are built-in
            measuring.set()
            late.extend([] if made.acquire(timeout=LIMIT_S) else ["nothing is proposed meanwhile"])
            measuring.clear()
        return ok(spans(plan))

    backend = FakeBackend(answer)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("mktune.search.driver.Proposals", Overlapping)
        result = search(store, backend, 30)
    assert late == []
    assert len(result.trials) == 30


def test_whole_workload_space_is_searched_too(store: Store) -> None:
    space = space_of(None)
    study = study_of(store, space, sampler="local")
    result = tune(space, FakeBackend(), store, study, Budget(25))
    assert [trial.source for trial in result.trials[:4]] == [
        "builtin:serial",
        "builtin:serial+pdl",
        "builtin:branches",
        "builtin:branches+pdl",
    ]
    assert len(result.trials) == 25


def test_counts_are_whole_when_seconds_end_the_search(store: Store, clock: Clock) -> None:
    """Proposals that are being made when time is up are finished before anything is counted."""
    backend = FakeBackend(clock.takes(1.0))
    result = search(store, backend, None, seconds=20.0, sampler="tpe", space=space_of(None))
    study = store.find_study("s")
    assert (study.invalid, study.duplicate) == (result.invalid, result.duplicate)
    assert result.winner is not None


def test_a_plan_of_an_older_space_is_kept_and_never_proposed(store: Store) -> None:
    space = space_of()
    search(store, FakeBackend(), 3)
    old = store.trials(store.find_study("s"))[0].plan
    data = json.loads(old.json)
    del data["ops"]["B0"]["config"]["stages"]
    assert space.to_choices(Plan.from_json(json.dumps(data))) is None
    number = store.begin_trial(store.find_study("s"), Plan.from_json(json.dumps(data)), "random")
    store.add_trial(store.find_study("s"), Trial(number, Plan.from_json(json.dumps(data)), failed(), "random"))
    result = search(store, FakeBackend(), 8, resume=True)
    assert len(result.trials) == 8
