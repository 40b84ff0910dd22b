"""Leases: who holds a running trial, when it may be taken up, and that one process does so one time."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from stored_values import make_plan, make_study, make_trial
from waiting import LIMIT_S, until

from mktune.errors import StoreError
from mktune.plan import Plan
from mktune.store import PlanTaken, Store, Study, leases
from mktune.store.owner import this_process
from mktune.trial import Status


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "x.db") if request.param == "sqlite" else str(request.getfixturevalue("postgres"))


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that has expired is over: nobody watches it for a while first."""
    monkeypatch.setattr("mktune.store.leases.STILL_SECONDS", 0.0)


class Clock:
    """The monotonic clock of those who watch leases."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("mktune.store.leases.monotonic", made)
    return made


def set_clock(store: Store, seconds: float) -> None:
    """As if the clock of the database had been set by so many seconds: forward, or back where they are negative."""
    with store._database.write() as connection:
        connection.exec_driver_sql(f"UPDATE mktune_trials SET lease = lease - ({seconds}) WHERE status IS NULL")


def begun_elsewhere(store: Store, study: Study, plan: Plan, key: str, *, lease: float) -> int:
    """The number of a trial that a process of another host runs, or ran."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("mktune.store.trials.this_process", lambda: '["elsewhere", 1, "1"]')
        patched.setattr("mktune.store.leases.LEASE_SECONDS", lease)
        number = store.begin_trial(study, plan, "tpe", key=key)
    store._begun.clear()  # it is not this process that holds it
    return number


def lost(store: Store, study: Study) -> dict[int, str]:
    return {t.number: t.outcome.reason for t in store.trials(study, lost=True) if t.outcome.status is Status.LOST}


@pytest.mark.usefixtures("at_once")
def test_what_an_expired_lease_held_is_begun_again_under_a_new_number(url: str) -> None:
    with Store.open(url) as store:
        study = make_study(store)
        begun_elsewhere(store, study, make_plan(stages=0), "a", lease=-1.0)
        begun_elsewhere(store, study, make_plan(stages=1), "b", lease=3600.0)
        assert [trial.abandoned for trial in store.running(study)] == [True, False]
        taken = store.take_up(study)
        assert taken is not None
        assert (taken.number, taken.plan, taken.source, taken.key) == (2, make_plan(stages=0), "tpe", "a")
        assert store.take_up(study) is None
        with pytest.raises(PlanTaken):
            store.begin_trial(study, make_plan(stages=0), "tpe", key="a")
        store.add_trial(study, make_trial(2, make_plan(stages=0)))
        assert store.trial_counts(study) == {"lost": 1, "running": 1, "ok": 1}
        assert lost(store, study) == {0: "its process ended before it did: begun again as trial 2"}


@pytest.mark.usefixtures("at_once")
def test_a_plan_that_ended_two_processes_is_not_taken_up_by_a_third(url: str) -> None:
    with Store.open(url) as store:
        study = make_study(store)
        begun_elsewhere(store, study, make_plan(), "a", lease=-1.0)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("mktune.store.leases.LEASE_SECONDS", -1.0)
            assert store.take_up(study) is not None
        assert store.take_up(study) is None  # it is this process that holds it
        store._begun.clear()
        assert store.take_up(study) is None
        assert store.trial_counts(study) == {"lost": 2}
        assert "second time" in lost(store, study)[1]


@pytest.mark.usefixtures("at_once")
def test_of_many_that_ask_at_once_one_takes_a_trial_up(url: str) -> None:
    with Store.open(url) as store:
        study = make_study(store)
        for stages in range(5):
            begun_elsewhere(store, study, make_plan(stages=stages), str(stages), lease=-1.0)
    taken: list[str] = []
    together = threading.Barrier(6)

    def ask() -> None:
        with Store.open(url) as own:
            together.wait()
            while (found := own.take_up(study)) is not None:
                taken.append(str(found.key))
                own.add_trial(study, make_trial(found.number, found.plan))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list("01234")
    with Store.open(url) as store:
        assert store.trial_counts(study) == {"lost": 5, "ok": 5}
        assert sorted(t.number for t in store.trials(study)) == [5, 6, 7, 8, 9]


@pytest.mark.usefixtures("at_once")
def test_a_heartbeat_keeps_a_lease_for_as_long_as_the_trial_runs(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every lease is over, or a minute long: how fast this process comes to its beats is no part of the question."""
    monkeypatch.setattr("mktune.store.leases.BEAT_SECONDS", 0.05)
    monkeypatch.setattr("mktune.store.leases.LEASE_SECONDS", -1.0)
    with Store.open(url) as store, Store.open(url) as other:
        study = make_study(store)
        number = store.begin_trial(study, make_plan(), "tpe", key="a")
        for _ in range(2):  # and it is not the first beat alone that renews it
            monkeypatch.setattr("mktune.store.leases.LEASE_SECONDS", -1.0)
            until(lambda: other.running(study)[0].abandoned)
            monkeypatch.setattr("mktune.store.leases.LEASE_SECONDS", 3600.0)
            until(lambda: not other.running(study)[0].abandoned)
        assert other.take_up(study) is None
        store._heartbeat.stop()  # as a process does that is stopped, or cut off
        monkeypatch.setattr("mktune.store.leases.LEASE_SECONDS", -1.0)
        store.renew_leases()  # its last lease has run out
        taken = other.take_up(study)
        assert taken is not None
        assert taken.number == number + 1


@pytest.mark.usefixtures("at_once")
def test_a_result_that_comes_after_its_plan_was_taken_up_is_dropped(url: str) -> None:
    with Store.open(url) as store, Store.open(url) as other:
        study = make_study(store)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("mktune.store.leases.LEASE_SECONDS", -1.0)
            store.begin_trial(study, make_plan(), "tpe", key="a")
        taken = other.take_up(study)
        assert taken is not None
        with pytest.raises(PlanTaken, match="trial 1"):
            store.add_trial(study, make_trial(0, make_plan()))
        other.add_trial(study, make_trial(taken.number, make_plan()))
        assert other.trial_counts(study) == {"lost": 1, "ok": 1}


@pytest.mark.usefixtures("at_once")
def test_a_result_whose_lease_expired_counts_where_nobody_took_it_up(url: str) -> None:
    with Store.open(url) as store:
        study = make_study(store)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("mktune.store.leases.LEASE_SECONDS", -1.0)
            number = store.begin_trial(study, make_plan(), "tpe", key="a")
        assert store.lose_abandoned(study) == 1  # as another process does
        assert store.trial_counts(study) == {"lost": 1}
        store.add_trial(study, make_trial(number, make_plan()))
        assert store.trial_counts(study) == {"ok": 1}
        with pytest.raises(PlanTaken):
            store.begin_trial(study, make_plan(), "tpe", key="a")


def test_a_trial_of_a_process_of_this_host_that_is_gone_needs_no_waiting(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.db") as store:
        study = make_study(store)
        host, _, birth = json.loads(this_process())
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("mktune.store.trials.this_process", lambda: json.dumps([host, 2**22 + 1, birth]))
            store.begin_trial(study, make_plan(), "tpe", key="a")
        store._begun.clear()
        assert store.take_up(study) is not None


def test_leases_end_by_the_clock_of_the_database(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(url) as store:
        study = make_study(store)
        monkeypatch.setattr(time, "time", lambda: 0.0)
        store.begin_trial(study, make_plan(), "tpe", key="a")
        monkeypatch.undo()
        assert [trial.abandoned for trial in store.running(study)] == [False]


def test_the_clock_of_the_database_set_back_keeps_nothing_for_longer_than_a_lease(url: str, clock: Clock) -> None:
    with Store.open(url) as store:
        study = make_study(store)
        begun_elsewhere(store, study, make_plan(), "a", lease=leases.LEASE_SECONDS)
        set_clock(store, -3600.0)
        assert store.take_up(study) is None
        clock.now += leases.LEASE_SECONDS - 1
        assert store.take_up(study) is None
        assert [trial.abandoned for trial in store.running(study)] == [False]
        clock.now += 1
        assert [trial.abandoned for trial in store.running(study)] == [True]
        taken = store.take_up(study)
        assert taken is not None
        assert taken.key == "a"


def test_the_clock_of_the_database_set_forward_takes_nothing_from_who_lives(url: str, clock: Clock) -> None:
    with Store.open(url) as owner, Store.open(url) as other:
        study = make_study(owner)
        number = owner.begin_trial(study, make_plan(), "tpe", key="a")
        for _ in range(5):
            set_clock(owner, 3600.0)
            assert other.take_up(study) is None
            clock.now += leases.STILL_SECONDS - 1  # the owner's next beat comes before that
            assert other.take_up(study) is None
            owner.renew_leases()
            clock.now += 1
            assert other.take_up(study) is None
        make_study(other, resume=True)  # which ends what is known to be dead, and nothing else
        owner.add_trial(study, make_trial(number, make_plan()))
        assert owner.trial_counts(study) == {"ok": 1}


def test_an_expired_lease_is_over_once_it_was_seen_to_stand_still(url: str, clock: Clock) -> None:
    with Store.open(url) as store:
        study = make_study(store)
        begun_elsewhere(store, study, make_plan(), "a", lease=-1.0)
        assert store.take_up(study) is None
        clock.now += leases.STILL_SECONDS
        assert store.lose_abandoned(study) == 1
        assert store.trial_counts(study) == {"lost": 1}


def test_a_heartbeat_outlives_a_locked_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mktune.store.leases.BEAT_SECONDS", 0.02)
    with Store.open(tmp_path / "x.db") as store:
        study = make_study(store)
        failed = threading.Event()
        renew = store.renew_leases

        def once() -> None:
            if not failed.is_set():
                failed.set()
                raise StoreError("is locked")
            renew()
            renewed.set()

        renewed = threading.Event()
        store._heartbeat._beat = once
        store.begin_trial(study, make_plan(), "tpe", key="a")
        assert renewed.wait(LIMIT_S)
        assert failed.is_set()


def test_trials_say_which_gpu_measured_them_and_only_new_ones_are_read(url: str) -> None:
    with Store.open(url) as store:
        study = make_study(store)
        for number in range(3):
            store.add_trial(study, replace(make_trial(number), gpu=f"GPU-{number % 2}"))
        assert [trial.gpu for trial in store.trials(study)] == ["GPU-0", "GPU-1", "GPU-0"]
        assert [trial.number for trial in store.trials(study, but={0, 2})] == [1]
        assert store.trials(study, but={0, 1, 2}) == []
        assert store.find_study("s").max_trials == 0
        store.limit_trials(study, 40)
        assert store.find_study("s").max_trials == 40
