"""The store on PostgreSQL: the same behaviour, on a server started for the test (`postgres_server`)."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest
from stored_values import WORKLOAD, make_plan, make_study, make_trial, make_winner
from test_store_migrations import open_at_once
from waiting import LIMIT_S

from mktune.errors import InputError, StoreError
from mktune.records import winner_to_dict
from mktune.runtime import PlanBook
from mktune.store import Store
from mktune.trial import Outcome, Status, Winner


def test_the_whole_round(postgres: str) -> None:
    failed = replace(make_trial(1), outcome=Outcome(Status.COMPILE_ERROR, "\0\udcff" + "x" * 200_000))
    with Store.open(postgres) as store:
        study = make_study(store, "x'; DROP TABLE mktune_plans;-- 🚀", seed=2**40)
        assert store.begin_trial(study, make_plan(stages=0), "tpe") == 0
        store.add_trial(study, make_trial(0))
        store.add_trial(study, failed)
        store.add_counts(study, invalid=2)
        assert store.put_winner(study, make_winner())
        assert not store.put_winner(study, make_winner(make_plan(stages=9), 99.0))
    with Store.open(postgres, write=False) as store:
        assert store.trials(study)[0] == make_trial(0)
        assert "[cut, " in store.trials(study)[1].outcome.reason
        assert store.find_study(study.name).invalid == 2
        assert store.winners() == [make_winner()]
        assert [row.span_us for row in store.leaderboard(study=study.name)] == [10.0, 10.0]  # a trial, and the winner
        assert store.find_plan(make_plan().plan_id[:12]) == make_plan()
    book = PlanBook.open(postgres, any_build=True)
    assert book.get(WORKLOAD, m=16, kv=8192, gpu="h200").winner == make_winner()


def test_what_a_watcher_asks(postgres: str) -> None:
    with Store.open(postgres) as store:
        assert store.activity() == []
        study = make_study(store)
        store.add_trial(study, make_trial(0))
        number = store.begin_trial(study, make_plan(stages=9), "tpe")
        (active,) = store.activity()
        assert (active.study.name, active.counts, active.ended) == ("s", {"ok": 1, "running": 1}, 1)
        store.add_trial(study, make_trial(number, make_plan(stages=9)))
        assert store.activity()[0].counts == {"ok": 2}
        assert store.damage() == ""


@pytest.mark.parametrize("import_", [False, True], ids=["put", "import"])
def test_of_winners_that_are_stored_at_once_for_one_key_the_fastest_is_served(postgres: str, import_: bool) -> None:
    with Store.open(postgres) as store:
        study = make_study(store)
    found = [make_winner(make_plan(stages=number), 10.0 + number) for number in range(8)]
    together, errors = threading.Barrier(len(found)), []

    def put(winner: Winner) -> None:
        try:
            with Store.open(postgres) as own:
                together.wait(LIMIT_S)
                if import_:
                    own.merge_winners([winner], lambda each: True)
                else:
                    own.put_winner(study, winner)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=put, args=(winner,)) for winner in reversed(found)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with Store.open(postgres, write=False) as store:
        assert store.winners() == [found[0]]
        assert len(store.winners(history=True)) == len(found)


@pytest.mark.parametrize("scale_format", ["fp32", "ue8m0"])
def test_a_server_of_before_answers_look_ups_and_is_upgraded(postgres: str, scale_format: str) -> None:
    """As schema 0003 left it; winners had a scale format before studies did."""
    plan = replace(make_plan(), scale_format=scale_format)
    with Store.open(postgres) as store:
        study, empty = make_study(store), make_study(store, "without a trial")
        store.add_trial(study, make_trial(0, plan))
        store.put_winner(None, make_winner(plan))
        with store._database.write() as connection:
            document = json.dumps(winner_to_dict(make_winner(plan)), sort_keys=True, separators=(",", ":"))
            connection.exec_driver_sql("ALTER TABLE mktune_studies DROP COLUMN scale_format")
            for column in ("m_low", "m_high", "kv_low", "kv_high", "document"):
                connection.exec_driver_sql(f"ALTER TABLE mktune_plans DROP COLUMN {column}")
            connection.exec_driver_sql("ALTER TABLE mktune_plans ADD COLUMN document TEXT")
            connection.exec_driver_sql("UPDATE mktune_plans SET document = %s", (document,))
            connection.exec_driver_sql("ALTER TABLE mktune_plans ALTER COLUMN document SET NOT NULL")
            connection.exec_driver_sql("UPDATE mktune_alembic_version SET version_num = '0003'")
    with pytest.raises(StoreError, match="has schema 0003"):
        Store.open(postgres, write=False)
    assert [winner.plan for winner in PlanBook.open(postgres).winners] == [plan]  # look-ups need no newer tables
    with Store.open(postgres) as store:
        assert store.find_study(study.name).problem.scale_format == scale_format
        assert store.find_study(empty.name).problem.scale_format == "fp32"
        assert [winner.plan for winner in store.winners(scale_format=scale_format)] == [plan]
        assert make_study(store, resume=True, scale_format=scale_format).id == study.id


def test_imported_winners_are_one_transaction(postgres: str) -> None:
    faster = make_winner(make_plan(m=8), 9.0)
    with Store.open(postgres) as store:
        unserved = make_winner(make_plan(m=32), validated="")
        with pytest.raises(InputError, match="not validated"):
            store.merge_winners([make_winner(), unserved], lambda winner: False)
        assert store.winners() == []
        store.merge_winners([make_winner(make_plan(m=8)), faster, make_winner()], lambda winner: False)
        assert sorted(winner.measurement.span_us for winner in store.winners(history=True)) == [9.0, 10.0]


def test_several_processes_open_an_empty_database_at_once(postgres: str) -> None:
    open_at_once(postgres, 4)
    with Store.open(postgres) as store:
        assert [len(store.trials(study)) for study in store.studies()] == [5, 5, 5, 5]
        assert [winner.measurement.span_us for winner in store.winners()] == [11.0]
        assert len(store.winners(history=True)) == 4


def test_workers_of_one_study_never_share_a_trial_number(postgres: str) -> None:
    numbers: list[int] = []
    with Store.open(postgres) as store:
        study = make_study(store)

    def work() -> None:
        with Store.open(postgres) as store:
            for _ in range(10):
                number = store.begin_trial(study, make_plan(), "tpe")
                numbers.append(number)
                store.add_trial(study, make_trial(number))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(30))


def test_a_dropped_connection_costs_no_trial(postgres: str) -> None:
    import psycopg

    with Store.open(postgres) as store:
        study = make_study(store)
        number = store.begin_trial(study, make_plan(), "tpe")
        with psycopg.connect(postgres, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        store.add_trial(study, make_trial(number))
        assert [trial.number for trial in store.trials(study)] == [number]


def test_a_newer_schema_is_refused(postgres: str) -> None:
    import psycopg

    Store.open(postgres).close()
    with psycopg.connect(postgres, autocommit=True) as other:
        other.execute("UPDATE mktune_alembic_version SET version_num = '0099'")
    with pytest.raises(StoreError, match="newer"):
        Store.open(postgres)
    assert len(PlanBook.open(postgres)) == 0


def test_a_locked_or_unwritable_database_says_so(postgres: str) -> None:
    import psycopg

    with Store.open(postgres, timeout_s=0.2) as store:
        study = make_study(store)
        with psycopg.connect(postgres) as other:
            other.execute("LOCK TABLE mktune_trials IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(StoreError, match="locked"):
                store.begin_trial(study, make_plan(), "tpe")
        with psycopg.connect(postgres, autocommit=True) as other:
            other.execute("CREATE ROLE reader LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    try:
        with (
            Store.open(postgres.replace("postgres@", "reader@")) as store,
            pytest.raises(InputError, match="cannot write the store"),
        ):
            make_study(store, "t")
    finally:
        with psycopg.connect(postgres, autocommit=True) as other:
            other.execute("DROP OWNED BY reader; DROP ROLE reader")


def test_a_database_that_is_not_there(postgres_server: str) -> None:
    with pytest.raises(StoreError, match='database "nope" does not exist'):
        Store.open(f"{postgres_server}/nope")
