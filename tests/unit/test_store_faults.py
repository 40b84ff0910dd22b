"""Stores that are locked, full, damaged, newer, unwritable or on a network: one line, and nothing is spoilt."""

from __future__ import annotations

import logging
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from stored_values import WORKLOAD, make_study, make_trial, make_winner

from mktune.errors import InputError, MktuneError, StoreError
from mktune.runtime import PlanBook
from mktune.store import Store, filesystem

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user or to mount")


def _filled(path: Path) -> Path:
    with Store.open(path) as store:
        store.add_trial(make_study(store), make_trial(0))
        store.put_winner(None, make_winner())
    return path


def _message(error: pytest.ExceptionInfo[MktuneError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert "sqlalche.me" not in text
    return text


def test_a_locked_store_is_a_store_error_after_the_wait(tmp_path: Path) -> None:
    path = _filled(tmp_path / "x.db")
    with Store.open(path, timeout_s=0.2) as store:
        study = store.find_study("s")
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        start = time.monotonic()
        with pytest.raises(StoreError, match="locked by another process") as caught:
            store.add_trial(study, make_trial(1))
        assert 0.1 < time.monotonic() - start < 5
        _message(caught)
        assert len(store.trials(study)) == 1  # reading goes on
        holder.execute("ROLLBACK")
        holder.close()
        store.add_trial(study, make_trial(1))
        assert len(store.trials(study)) == 2


@pytest.mark.parametrize("content", [b"\0" * 4096, b"not a database" * 500, b'{"kind": "mktune-plans"}'])
def test_what_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(content)
    for write in (True, False):
        with pytest.raises(StoreError, match="not an SQLite database") as caught:
            Store.open(path, write=write)
        _message(caught)
    assert path.read_bytes() == content
    assert [found.name for found in tmp_path.iterdir()] == ["x.db"]


def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    path = _filled(tmp_path / "x.db")
    content = bytearray(path.read_bytes())
    content[4096 : 4096 * 12] = b"\xa5" * (4096 * 11)
    path.write_bytes(content)

    def use() -> None:
        with Store.open(path) as store:
            make_study(store, "t")
            store.leaderboard()

    with pytest.raises(StoreError, match="damaged") as caught:
        use()
    _message(caught)


def test_a_database_of_another_program_is_not_a_store_for_reading(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "x.db")
    connection.execute("CREATE TABLE studies (id INTEGER)")
    connection.close()
    with pytest.raises(StoreError, match="not a store of mktune"):
        Store.open(tmp_path / "x.db", write=False)


def test_a_newer_schema_is_refused_with_both_versions_and_not_written(tmp_path: Path) -> None:
    path = _filled(tmp_path / "x.db")
    connection = sqlite3.connect(path)
    connection.execute("UPDATE mktune_alembic_version SET version_num = '0099'")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    for write in (True, False):
        with pytest.raises(StoreError, match=r"newer mktune \(schema 0099; this mktune knows up to 0001\)") as caught:
            Store.open(path, write=write)
        _message(caught)
    assert path.read_bytes()[100:] == before[100:]  # the header's counter may move, tables not
    assert len(PlanBook.open(path)) == 0


_AS_NOBODY = """
import os, sys
sys.path.insert(0, {tests!r})
from stored_values import *
os.setgid(65534); os.setuid(65534)
os.environ.update(HOME="/", MKTUNE_HOME={home!r})
from mktune.errors import InputError
from mktune.runtime import PlanBook
book = PlanBook.open({path!r})
print(len(book), len(PlanBook.open()))
with Store.open({path!r}, write=False) as store:
    print(len(store.leaderboard()))
for place in ({path!r}, None):
    try:
        Store.open(place)
    except InputError as error:
        print(error)
"""


@root_only
@pytest.mark.parametrize("killed", [False, True])
def test_another_user_can_read_and_is_told_what_to_set(tmp_path: Path, killed: bool) -> None:
    place = Path("/tmp") / f"mktune-test-{os.getpid()}-{killed}"
    place.mkdir(mode=0o755)
    try:
        path = _filled(place / "x.db")
        if killed:
            code = f"import os; from mktune.store import Store; s = Store.open({str(path)!r}); s.studies(); os._exit(9)"
            subprocess.run([sys.executable, "-c", code], check=False)
            assert (place / "x.db-wal").exists()
        before = sorted(found.name for found in place.iterdir())
        code = _AS_NOBODY.format(tests=str(Path(__file__).parent), path=str(path), home=str(place / "home"))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/", check=False)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert lines[:2] == ["1 0", "2"]  # a trial, and the winner
        for line in lines[2:]:
            assert line.startswith("cannot write the store")
            assert "MKTUNE_HOME" in line
        assert len(lines) == 4
        assert sorted(found.name for found in place.iterdir()) == before
    finally:
        for found in place.iterdir():
            found.unlink()
        place.rmdir()


def test_a_folder_that_cannot_be_made_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="MKTUNE_HOME"):
        Store.open(tmp_path / "file" / "x.db")
    with pytest.raises(InputError, match="cannot write"):
        Store.open("/proc/nowhere/x.db")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], check=False)
    if done.returncode:
        pytest.skip("cannot mount a tmpfs here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@root_only
def test_a_full_disk_stops_with_a_message_and_keeps_what_was_stored(small_disk: Path) -> None:
    path = _filled(small_disk / "x.db")
    stored = 1
    with Store.open(path) as store:
        study = store.find_study("s")

        def fill() -> None:
            nonlocal stored
            while stored < 2000:
                store.add_trial(study, make_trial(stored))
                stored += 1

        with pytest.raises(StoreError, match="disk is full") as caught:
            fill()
        _message(caught)
        assert stored > 20
        assert len(store.trials(study)) == stored
    assert PlanBook.open(path).winners == (make_winner(),)
    with Store.open(path, write=False) as store:
        assert len(store.trials(study)) == stored


def test_on_a_network_file_system_there_is_no_wal_and_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(filesystem, "filesystem_type", lambda path: "nfs4")
    with caplog.at_level(logging.WARNING), Store.open(tmp_path / "x.db") as store:
        store.add_trial(make_study(store), make_trial(0))
        assert sorted(found.name for found in tmp_path.iterdir()) == ["x.db"]
        assert PlanBook.open(tmp_path / "x.db").lookup(WORKLOAD, m=16, kv=8192, gpu="H200").reason == "store"
    (record,) = caplog.records
    assert "network file system" in record.message
    assert "postgresql://" in record.message
    assert "mktune export" in record.message


def test_a_local_store_is_in_wal_mode_while_open_and_one_file_at_rest(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.db"):
        assert (tmp_path / "x.db-wal").exists()
        connection = sqlite3.connect(tmp_path / "x.db")
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        connection.close()
    assert [found.name for found in tmp_path.iterdir()] == ["x.db"]


def test_the_type_of_a_file_system_is_that_of_the_innermost_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/a rw\n"
        f"2 1 0:1 / {tmp_path} rw shared:1 - nfs4 host:/a rw\n"
        f"3 1 0:1 / {tmp_path}/with\\040blank rw - xfs /dev/b rw\n"
    )
    monkeypatch.setattr(filesystem, "_MOUNTS", mounts)
    assert filesystem.filesystem_type(Path("/etc")) == "ext4"
    assert filesystem.is_network(tmp_path / "a" / "x.db")
    assert filesystem.filesystem_type(tmp_path / "with blank" / "x.db") == "xfs"
    monkeypatch.setattr(filesystem, "_MOUNTS", tmp_path / "none")
    assert filesystem.filesystem_type(tmp_path) == ""


@pytest.mark.parametrize("statement", ["DELETE FROM mktune_alembic_version", "DROP TABLE mktune_alembic_version"])
def test_tables_of_an_unknown_version_are_left_alone(tmp_path: Path, statement: str) -> None:
    path = _filled(tmp_path / "x.db")
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match="holds a table mktune_devices, but is not a store of mktune") as caught:
        Store.open(path)
    _message(caught)


@pytest.mark.parametrize(
    "damage", ["plan = '{'", "status = 'nonsense'", "seconds = 'x'", "seconds = '[1, 2]'", "plan = ''"]
)
def test_a_damaged_trial_is_the_fault_of_the_store(tmp_path: Path, damage: str) -> None:
    path = _filled(tmp_path / "x.db")
    connection = sqlite3.connect(path)
    connection.execute(f"UPDATE mktune_trials SET {damage}")
    connection.commit()
    connection.close()
    with Store.open(path, write=False) as store:
        study = store.find_study("s")
        with pytest.raises(StoreError, match="damaged trial") as caught:
            store.trials(study)
        _message(caught)
        if damage.startswith("plan"):
            with pytest.raises(StoreError, match="damaged plan"):
                store.leaderboard()


def test_a_seed_that_no_column_holds_is_an_input_error(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.db") as store, pytest.raises(InputError, match="does not fit 64 bits"):
        make_study(store, seed=2**63)
