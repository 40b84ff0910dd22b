"""The store on PostgreSQL: the same behaviour, on a server started for the test (skipped where there is none)."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from stored_values import WORKLOAD, make_plan, make_study, make_trial, make_winner
from test_store_migrations import open_at_once

from mktune.errors import InputError, StoreError
from mktune.runtime import PlanBook
from mktune.store import Store
from mktune.trial import Outcome, Status

if importlib.util.find_spec("psycopg") is None:
    pytest.skip("psycopg is not installed", allow_module_level=True)


def _bin() -> Path | None:
    if tool := shutil.which("pg_config"):
        found = subprocess.run([tool, "--bindir"], capture_output=True, text=True, check=True).stdout.strip()
        if (Path(found) / "initdb").exists():
            return Path(found)
    return None


def _as_postgres(*command: str | Path) -> None:
    prefix = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    subprocess.run([*prefix, *map(str, command)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """URL of a server without databases of ours; the folder is outside tmp_path, which the server cannot enter."""
    tools = _bin()
    if tools is None:
        pytest.skip("no PostgreSQL server is installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="mktune-pg-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
        _as_postgres(tools / "initdb", "-D", folder / "d", "-A", "trust", "-U", "postgres", "--no-sync")
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        _as_postgres(tools / "pg_ctl", "-D", folder / "d", "-o", options, "-l", folder / "log", "-w", "start")
    except (subprocess.CalledProcessError, LookupError, OSError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"PostgreSQL does not start here: {error}")
    yield f"postgresql://postgres@127.0.0.1:{port}"
    _as_postgres(tools / "pg_ctl", "-D", folder / "d", "-m", "immediate", "stop")
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def url(server: str) -> str:
    """An empty database."""
    import psycopg

    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS tuning WITH (FORCE)")
        connection.execute("CREATE DATABASE tuning")
    return f"{server}/tuning"


def test_the_whole_round(url: str) -> None:
    failed = replace(make_trial(1), outcome=Outcome(Status.COMPILE_ERROR, "\0\udcff" + "x" * 200_000))
    with Store.open(url) as store:
        study = make_study(store, "x'; DROP TABLE mktune_plans;-- 🚀", seed=2**40)
        assert store.begin_trial(study, make_plan(stages=0), "tpe") == 0
        store.add_trial(study, make_trial(0))
        store.add_trial(study, failed)
        store.add_counts(study, invalid=2)
        assert store.put_winner(study, make_winner())
        assert not store.put_winner(study, make_winner(make_plan(stages=9), 99.0))
    with Store.open(url, write=False) as store:
        assert store.trials(study)[0] == make_trial(0)
        assert "[cut, " in store.trials(study)[1].outcome.reason
        assert store.find_study(study.name).invalid == 2
        assert store.winners() == [make_winner()]
        assert [row.span_us for row in store.leaderboard(study=study.name)] == [10.0, 10.0]  # a trial, and the winner
        assert store.find_plan(make_plan().plan_id[:12]) == make_plan()
    book = PlanBook.open(url, any_build=True)
    assert book.get(WORKLOAD, m=16, kv=8192, gpu="h200").winner == make_winner()


def test_what_a_watcher_asks(url: str) -> None:
    with Store.open(url) as store:
        assert store.activity() == []
        study = make_study(store)
        store.add_trial(study, make_trial(0))
        number = store.begin_trial(study, make_plan(stages=9), "tpe")
        (active,) = store.activity()
        assert (active.study.name, active.counts, active.ended) == ("s", {"ok": 1, "running": 1}, 1)
        store.add_trial(study, make_trial(number, make_plan(stages=9)))
        assert store.activity()[0].counts == {"ok": 2}
        assert store.damage() == ""


def test_imported_winners_are_one_transaction(url: str) -> None:
    faster = make_winner(make_plan(m=8), 9.0)
    with Store.open(url) as store:
        unserved = make_winner(make_plan(m=32), validated="")
        with pytest.raises(InputError, match="not validated"):
            store.merge_winners([make_winner(), unserved], lambda winner: False)
        assert store.winners() == []
        store.merge_winners([make_winner(make_plan(m=8)), faster, make_winner()], lambda winner: False)
        assert sorted(winner.measurement.span_us for winner in store.winners(history=True)) == [9.0, 10.0]


def test_several_processes_open_an_empty_database_at_once(url: str) -> None:
    open_at_once(url, 4)
    with Store.open(url) as store:
        assert [len(store.trials(study)) for study in store.studies()] == [5, 5, 5, 5]
        assert [winner.measurement.span_us for winner in store.winners()] == [11.0]
        assert len(store.winners(history=True)) == 4


def test_workers_of_one_study_never_share_a_trial_number(url: str) -> None:
    numbers: list[int] = []
    with Store.open(url) as store:
        study = make_study(store)

    def work() -> None:
        with Store.open(url) as store:
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


def test_a_dropped_connection_costs_no_trial(url: str) -> None:
    import psycopg

    with Store.open(url) as store:
        study = make_study(store)
        number = store.begin_trial(study, make_plan(), "tpe")
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        store.add_trial(study, make_trial(number))
        assert [trial.number for trial in store.trials(study)] == [number]


def test_a_newer_schema_is_refused(url: str) -> None:
    import psycopg

    Store.open(url).close()
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("UPDATE mktune_alembic_version SET version_num = '0099'")
    with pytest.raises(StoreError, match="newer"):
        Store.open(url)
    assert len(PlanBook.open(url)) == 0


def test_a_locked_or_unwritable_database_says_so(url: str) -> None:
    import psycopg

    with Store.open(url, timeout_s=0.2) as store:
        study = make_study(store)
        with psycopg.connect(url) as other:
            other.execute("LOCK TABLE mktune_trials IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(StoreError, match="locked"):
                store.begin_trial(study, make_plan(), "tpe")
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("CREATE ROLE reader LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    try:
        with (
            Store.open(url.replace("postgres@", "reader@")) as store,
            pytest.raises(InputError, match="cannot write the store"),
        ):
            make_study(store, "t")
    finally:
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("DROP OWNED BY reader; DROP ROLE reader")


def test_a_database_that_is_not_there(server: str) -> None:
    with pytest.raises(StoreError, match='database "nope" does not exist'):
        Store.open(f"{server}/nope")
