"""Migrations: up from nothing gives exactly the models' tables, several processes may do it at once, down undoes it."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from stored_values import WORKLOAD, make_plan, make_study, make_trial, make_winner
from waiting import LIMIT_S

from mktune import resources
from mktune.errors import StoreError
from mktune.location import SCHEMA, VERSION_TABLE
from mktune.runtime import PlanBook
from mktune.runtime.versions import CHECKED
from mktune.store import Store
from mktune.store.models import Base


def _alembic(path: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "alembic", "-c", str(resources.migrations().parent / "alembic.ini")]
    done = subprocess.run([*command, "-x", f"store={path}", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_schema_constant_is_the_newest_migration() -> None:
    names = sorted(path.name for path in (resources.migrations() / "versions").glob("*.py"))
    assert names[-1].startswith(f"{SCHEMA}_")
    assert [name[:4] for name in names] == [f"{number:04}" for number in range(1, len(names) + 1)]


def test_an_empty_database_gets_exactly_the_tables_of_the_models(tmp_path: Path) -> None:
    Store.open(tmp_path / "x.db").close()
    connection = sqlite3.connect(tmp_path / "x.db")
    found = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert found == {*Base.metadata.tables, VERSION_TABLE}
    assert all(name.startswith("mktune_") for name in found)
    assert connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchall() == [(SCHEMA,)]
    connection.close()


def test_models_and_migrations_agree(tmp_path: Path) -> None:
    Store.open(tmp_path / "x.db").close()
    assert "No new upgrade operations detected" in _alembic(tmp_path / "x.db", "check")


def test_down_to_nothing_and_up_again(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.db") as store:
        make_study(store)
    _alembic(tmp_path / "x.db", "downgrade", "base")
    connection = sqlite3.connect(tmp_path / "x.db")
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    connection.close()
    assert tables == {VERSION_TABLE}
    with Store.open(tmp_path / "x.db") as store:
        assert store.studies() == []
        make_study(store)


def test_tables_of_others_stay(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "x.db")
    connection.executescript(
        "CREATE TABLE alembic_version (version_num TEXT); INSERT INTO alembic_version VALUES ('theirs')"
    )
    connection.close()
    Store.open(tmp_path / "x.db").close()
    connection = sqlite3.connect(tmp_path / "x.db")
    assert connection.execute("SELECT * FROM alembic_version").fetchall() == [("theirs",)]
    connection.close()


def test_migrations_are_found_in_a_folder_with_an_odd_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a b 100%s#?" / "migrations"
    shutil.copytree(resources.migrations(), folder)
    monkeypatch.setattr(resources, "migrations", lambda: folder)
    with Store.open(tmp_path / "x.db") as store:
        assert store.put_winner(None, make_winner())


RELEASED = sorted((Path(__file__).parent / "stores").glob("schema_*.sql"))


def restored(dump: Path, path: Path) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript(dump.read_text())
    connection.close()
    return path


def test_there_is_a_filled_store_of_every_schema() -> None:
    assert [dump.stem for dump in RELEASED] == [f"schema_{number:04}" for number in range(1, int(SCHEMA) + 1)]


@pytest.mark.parametrize("dump", RELEASED, ids=lambda dump: dump.stem)
def test_a_store_of_every_schema_goes_up_with_all_it_holds(tmp_path: Path, dump: Path) -> None:
    path = restored(dump, tmp_path / "x.db")
    with Store.open(path) as store:
        study = store.find_study("a study")
        assert (study.invalid, study.duplicate, study.problem.ops) == (3, 1, ("A0", "B0"))
        trials = store.trials(study)
        assert [trial.outcome.status for trial in trials] == ["ok", "ok", "hang"]
        assert [trial.outcome.measurement.span_us for trial in trials if trial.outcome.measurement] == [10.0, 11.0]
        (winner,) = store.winners()
        assert (winner.plan, winner.measurement.span_us) == (make_plan(stages=2), 10.0)
        assert len(store.winners(history=True)) == 2
        assert [row.winner for row in store.leaderboard()] == [True, False]
        store.add_trial(study, make_trial(3))
    connection = sqlite3.connect(path)
    assert connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchall() == [(SCHEMA,)]
    connection.close()
    assert "No new upgrade operations detected" in _alembic(path, "check")


@pytest.mark.parametrize("dump", RELEASED, ids=lambda dump: dump.stem)
def test_reading_never_upgrades(tmp_path: Path, dump: Path) -> None:
    path = restored(dump, tmp_path / "x.db")
    before = path.read_bytes()
    book = PlanBook.open(path)
    assert [winner.plan for winner in book.winners] == [make_plan(stages=2)]
    if dump.stem == f"schema_{SCHEMA}":
        Store.open(path, write=False).close()
    else:
        with pytest.raises(StoreError, match=rf"has schema {dump.stem[-4:]}; any `mktune tune` with it upgrades it"):
            Store.open(path, write=False)
    assert path.read_bytes() == before


@pytest.mark.parametrize("dump", RELEASED, ids=lambda dump: dump.stem)
def test_a_plan_of_every_schema_is_served_in_its_range(tmp_path: Path, dump: Path) -> None:
    book = PlanBook.open(restored(dump, tmp_path / "x.db"), accept=CHECKED)
    found = [book.lookup(WORKLOAD, m=m, kv=kv, gpu="NVIDIA H200") for m, kv in ((16, 8192), (8, 8192), (16, 8193))]
    assert [found[0].plan.plan_id, *(miss.reason for miss in found[1:])] == [
        make_plan(stages=2).plan_id,
        "shape",
        "shape",
    ]


_DAMAGED = (
    "'[]'",
    "'{'",
    "X'ff00'",
    'replace(document, \'"m_range":[16,\', \'"m_range":["a",\')',
    "''",
    "5",
    "CAST(X'ff' || document AS TEXT)",
)


@pytest.mark.parametrize("dump", RELEASED[:4], ids=lambda dump: dump.stem)
def test_damaged_winners_stay_damaged_through_all_migrations_and_cost_no_other(tmp_path: Path, dump: Path) -> None:
    path = restored(dump, tmp_path / "x.db")
    connection = sqlite3.connect(path)
    columns = [row[1] for row in connection.execute("PRAGMA table_info(mktune_plans)") if row[1] not in ("id", "kv")]
    kept = ", ".join(name for name in columns if name != "document")
    for number, damage in enumerate(_DAMAGED):
        connection.execute(
            f"INSERT INTO mktune_plans ({kept}, kv, document) SELECT {kept}, {number}, {damage} FROM mktune_plans "
            "WHERE replaced IS NULL AND kv = 8192"
        )
    connection.commit()
    connection.close()
    for _ in range(2):
        book = PlanBook.open(path, accept=CHECKED)
        assert len(book) == 1 + len(_DAMAGED)
        assert [winner.plan for winner in book.winners] == [make_plan(stages=2)]
        Store.open(path).close()
    with Store.open(path) as store, pytest.raises(StoreError, match="damaged"):
        store.winners()
    _alembic(path, "downgrade", "0004")
    assert [winner.plan for winner in PlanBook.open(path).winners] == [make_plan(stages=2)]


@pytest.mark.parametrize("found", ["0000", "", "00", "0001a", "-1", "'"])
def test_a_schema_that_nobody_made_is_refused(tmp_path: Path, found: str) -> None:
    path = restored(RELEASED[0], tmp_path / "x.db")
    connection = sqlite3.connect(path)
    connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = ?", (found,))
    connection.commit()
    connection.close()
    for write in (True, False):
        with pytest.raises(StoreError, match=re.escape(f"schema {found}")) as caught:
            Store.open(path, write=write)
        assert "\n" not in str(caught.value)


_OPEN = """
import sys
sys.path.insert(0, {tests!r})
from stored_values import *
sys.stdin.readline()
with Store.open({path!r}, timeout_s=240.0) as store:
    study = make_study(store, {name!r})
    for number in range(5):
        assert store.begin_trial(study, make_plan(stages=number), "tpe") == number
        store.add_trial(study, make_trial(number))
    store.put_winner(study, make_winner(make_plan(stages={stages}), 10.0 + {stages}))
print("done")
"""


def open_at_once(place: str, count: int) -> None:
    """`count` processes open an empty store in the same moment, and each fills a study and puts a winner."""
    tests = str(Path(__file__).parent)
    codes = [_OPEN.format(tests=tests, path=place, name=f"s{i}", stages=i + 1) for i in range(count)]
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for code in codes
    ]
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        out, error = worker.communicate(timeout=LIMIT_S)
        assert out == "done\n", error
        assert not re.search("Traceback|Warning", error), error


_FORK = """
import os, sys, time
sys.path.insert(0, {tests!r})
from stored_values import make_study, make_trial
from mktune.store import Store
begins = time.monotonic() + 0.5
children = []
for number in range({count}):
    child = os.fork()
    if child == 0:
        try:
            time.sleep(max(0.0, begins - time.monotonic()))
            with Store.open({path!r}, timeout_s=240.0) as store:
                study = make_study(store, f"s{{number}}")
                store.add_trial(study, make_trial(0))
            os._exit(0)
        except BaseException as error:
            print(type(error).__name__, error, flush=True)
            os._exit(1)
    children.append(child)
sys.exit(sum(os.waitpid(child, 0)[1] != 0 for child in children))
"""


def test_thirty_two_processes_that_begin_on_one_empty_file_in_the_same_moment_all_store_their_trial(
    tmp_path: Path,
) -> None:
    code = _FORK.format(tests=str(Path(__file__).parent), path=str(tmp_path / "x.db"), count=32)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with Store.open(tmp_path / "x.db") as store:
        assert sorted(study.name for study in store.studies()) == sorted(f"s{number}" for number in range(32))
        assert [len(store.trials(study)) for study in store.studies()] == [1] * 32


def test_several_processes_open_an_empty_database_at_once(tmp_path: Path) -> None:
    open_at_once(str(tmp_path / "x.db"), 4)
    with Store.open(tmp_path / "x.db") as store:
        assert sorted(study.name for study in store.studies()) == ["s0", "s1", "s2", "s3"]
        assert [len(store.trials(study)) for study in store.studies()] == [5, 5, 5, 5]
        (winner,) = store.winners()  # one key: the fastest of the four, whoever was last
        assert winner.measurement.span_us == 11.0
        assert len(store.winners(history=True)) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["x.db"]
