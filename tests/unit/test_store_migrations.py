"""Migrations: up from nothing gives exactly the models' tables, several processes may do it at once, down undoes it."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from stored_values import make_study, make_winner

from mktune import resources
from mktune.location import SCHEMA, VERSION_TABLE
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


_OPEN = """
import sys
sys.path.insert(0, {tests!r})
from stored_values import *
sys.stdin.readline()
with Store.open({path!r}) as store:
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
        out, error = worker.communicate(timeout=60)
        assert out == "done\n", error
        assert not re.search("Traceback|Warning", error), error


def test_several_processes_open_an_empty_database_at_once(tmp_path: Path) -> None:
    open_at_once(str(tmp_path / "x.db"), 4)
    with Store.open(tmp_path / "x.db") as store:
        assert sorted(study.name for study in store.studies()) == ["s0", "s1", "s2", "s3"]
        assert [len(store.trials(study)) for study in store.studies()] == [5, 5, 5, 5]
        (winner,) = store.winners()  # one key: the fastest of the four, whoever was last
        assert winner.measurement.span_us == 11.0
        assert len(store.winners(history=True)) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["x.db"]
