"""Stores that are locked, full, damaged, newer, unwritable or on a network: one line, and nothing is spoilt."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import run
from stored_values import WORKLOAD, make_study, make_trial, make_winner
from waiting import LIMIT_S

from mktune.errors import InputError, MktuneError, NothingFoundError, StoreError
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
        assert 0.1 < time.monotonic() - start < 60
        _message(caught)
        assert len(store.trials(study)) == 1  # reading goes on
        holder.execute("ROLLBACK")
        holder.close()
        store.add_trial(study, make_trial(1))
        assert len(store.trials(study)) == 2


FOREIGN = [b"not a database" * 500, b'{"kind": "mktune-plans", "x": "mktune_plans"}', b"\x80\x04\x95pickle\0" * 99]


@pytest.mark.parametrize("content", FOREIGN)
def test_what_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(content)
    for write in (True, False):
        with pytest.raises(StoreError, match="not an SQLite database") as caught:
            Store.open(path, write=write)
        _message(caught)
    assert path.read_bytes() == content
    assert [found.name for found in tmp_path.iterdir()] == ["x.db"]


def _overwritten(path: Path, pages: range) -> bytes:
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[16:18], "big")  # as the header of the file says
    assert len(content) >= size * pages.stop
    for page in pages:
        content[size * page : size * (page + 1)] = b"\xa5" * size
    path.write_bytes(content)
    return bytes(content)


DAMAGES: dict[str, Callable[[Path], bytes]] = {
    "pages overwritten": lambda path: _overwritten(path, range(1, 12)),
    "first page overwritten": lambda path: _overwritten(path, range(1)),
    "one page overwritten": lambda path: _overwritten(path, range(5, 6)),
    "cut": lambda path: _written(path, path.read_bytes()[: path.stat().st_size * 6 // 10]),
    "NUL bytes": lambda path: _written(path, b"\0" * 4096),
}


def _written(path: Path, content: bytes) -> bytes:
    path.write_bytes(content)
    return content


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_store_is_set_aside_whole_and_a_new_one_begins(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = _filled(tmp_path / "a b%#.db")
    content = DAMAGES[damage](path)
    with caplog.at_level(logging.WARNING), Store.open(path) as store:
        assert store.put_winner(make_study(store), make_winner())
    (record,) = caplog.records
    (aside,) = [found for found in tmp_path.iterdir() if found != path]
    assert re.fullmatch(r"a b%#\.db\.corrupt-[0-9TZ]+", aside.name)
    assert aside.read_bytes() == content
    assert f"{path} is damaged (" in record.message
    assert f"set aside as {aside.name}" in record.message
    assert len(PlanBook.open(path)) == 1
    caplog.clear()
    Store.open(path).close()
    assert not caplog.records


@pytest.mark.parametrize("damage", DAMAGES)
def test_reading_never_moves_a_damaged_store(tmp_path: Path, damage: str) -> None:
    path = _filled(tmp_path / "x.db")
    content = DAMAGES[damage](path)

    def look() -> None:
        with Store.open(path, write=False) as store:
            assert store.damage()
            raise StoreError("damaged")

    with pytest.raises(StoreError, match=r"damaged|not an SQLite database") as caught:
        look()
    _message(caught)
    PlanBook.open(path)
    assert path.read_bytes() == content
    assert [found.name for found in tmp_path.iterdir()] == ["x.db"]


def test_a_damaged_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "x.db")
    connection.executescript("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (zeroblob(50000))")
    connection.close()
    content = _overwritten(tmp_path / "x.db", range(1))
    with pytest.raises(StoreError):
        Store.open(tmp_path / "x.db")
    assert (tmp_path / "x.db").read_bytes() == content
    assert [found.name for found in tmp_path.iterdir()] == ["x.db"]


def test_the_log_of_a_damaged_store_goes_with_it_and_a_link_stays(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    path = _filled(tmp_path / "real" / "x.db")
    (tmp_path / "x.db").symlink_to(path)
    code = f"import os; from mktune.store import Store; s = Store.open({str(path)!r}); s.study; os._exit(9)"
    subprocess.run([sys.executable, "-c", code], check=False)
    log = (tmp_path / "real" / "x.db-wal").read_bytes()
    _overwritten(path, range(1))
    with Store.open(tmp_path / "x.db") as store:
        assert store.studies() == []
    assert (tmp_path / "x.db").is_symlink()
    (aside,) = (tmp_path / "real").glob("x.db.corrupt-*Z")
    assert aside.with_name(f"{aside.name}-wal").read_bytes() == log


def test_of_processes_that_find_the_damage_at_once_one_sets_it_aside(tmp_path: Path) -> None:
    path = _filled(tmp_path / "x.db")
    _overwritten(path, range(1, 12))
    code = f"""
import sys
from mktune.store import Store
sys.stdin.readline()
with Store.open({str(path)!r}) as store:
    store.studies()
"""
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    workers = [subprocess.Popen([sys.executable, "-c", code], text=True, **pipes) for _ in range(6)]
    errors = [worker.communicate("go\n", timeout=LIMIT_S)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 6, errors
    assert len(list(tmp_path.glob("x.db.corrupt-*"))) == 1
    assert not PlanBook.open(path).winners


def test_a_database_of_another_program_is_not_a_store_for_reading(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "x.db")
    connection.execute("CREATE TABLE studies (id INTEGER)")
    connection.close()
    with pytest.raises(StoreError, match="not a store of mktune"):
        Store.open(tmp_path / "x.db", write=False)


@pytest.mark.parametrize("tables", ["", "CREATE TABLE x (y); DROP TABLE x"])
def test_a_store_without_tables_yet_holds_nothing(tmp_path: Path, tables: str) -> None:
    connection = sqlite3.connect(tmp_path / "x.db")
    connection.executescript(tables)
    connection.close()
    (tmp_path / "x.db").touch()
    with pytest.raises(NothingFoundError, match="nothing is stored yet") as caught:
        Store.open(tmp_path / "x.db", write=False)
    _message(caught)
    with Store.open(tmp_path / "x.db") as store:
        assert store.studies() == []


def test_a_newer_schema_is_refused_with_both_versions_and_not_written(tmp_path: Path) -> None:
    path = _filled(tmp_path / "x.db")
    connection = sqlite3.connect(path)
    connection.execute("UPDATE mktune_alembic_version SET version_num = '0099'")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    for write in (True, False):
        with pytest.raises(StoreError, match=r"newer mktune \(schema 0099; this mktune knows up to 0005\)") as caught:
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
        assert lines[:2] == [f"1 {len(PlanBook.open())}", "2"]  # what ships with mktune; a trial, and the winner
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
        assert stored > 5  # the log takes a page of 16 KiB for each that a trial touches
        assert len(store.trials(study)) == stored
    assert PlanBook.open(path).winners == (make_winner(),)
    with Store.open(path, write=False) as store:
        assert len(store.trials(study)) == stored


@root_only
@pytest.mark.usefixtures("no_gpu")
def test_a_search_on_a_full_disk_ends_with_its_code_and_goes_on_elsewhere(
    small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = small_disk / "x.db"
    question = ["tune", WORKLOAD, "--ops", "A0,B0", "--m", "16", "--kv", "8192", "--backend", "sim"]
    question += ["--sampler", "random", "--study", "s", "--trials"]
    out, err = run(capsys, *question, "2000", "--store", str(place), code=4)
    assert out == ""
    assert err.splitlines()[-1].startswith(f"mktune: error: the store {place}: the disk is full: free some space")
    assert "Traceback" not in err
    copy = tmp_path / "copy.db"
    for found in small_disk.glob("x.db*"):  # the log stays beside it: there was no room to write it back
        shutil.copy(found, f"{copy}{found.name.removeprefix('x.db')}")
    with Store.open(place, write=False) as store:
        kept = len(store.trials(store.find_study("s")))
    assert kept > 3
    out, _ = run(capsys, *question, str(kept + 2), "--resume", "--store", str(copy), "--json")
    assert json.loads(out)["cells"][0]["resumed"] == kept


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


def test_a_file_that_comes_in_wal_mode_to_a_network_file_system_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _filled(tmp_path / "x.db")
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    monkeypatch.setattr(filesystem, "filesystem_type", lambda path: "fuse.somebodys-own")
    connection.execute("SELECT * FROM mktune_plans").fetchall()
    with pytest.raises(StoreError, match="network file system and open elsewhere in WAL mode") as caught:
        Store.open(path)
    _message(caught)
    assert len(PlanBook.open(path)) == 1  # reading goes on
    connection.close()
    with Store.open(path) as store:
        assert len(store.trials(store.find_study("s"))) == 1
        look = sqlite3.connect(path)
        assert look.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        look.close()


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "lustre", "gpfs", "cifs", "fuse.sshfs", "fuse.unknown", "fuse"])
def test_kinds_of_network_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(filesystem, "filesystem_type", lambda path: kind)
    assert filesystem.is_network(tmp_path)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "overlay", "tmpfs", "zfs", "fuse.fuse-overlayfs", "fuseblk"])
def test_kinds_of_local_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(filesystem, "filesystem_type", lambda path: kind)
    assert not filesystem.is_network(tmp_path)


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
    "damage",
    [
        "plan = '{'",
        "status = 'nonsense'",
        "seconds = 'x'",
        "seconds = '[1, 2]'",
        "plan = ''",
        "seconds = '[false, {}]'",
    ],
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


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("studies", "kv = 'many'"),
        ("studies", "ops = x'ff'"),
        ("measurements", "span_us = 'fast'"),
        ("plans", "requests = ''"),
        ("plans", "tokens_per_request = 1.5"),
        ("devices", "name = x'07'"),
    ],
)
def test_a_value_of_another_kind_is_the_fault_of_the_store(tmp_path: Path, table: str, change: str) -> None:
    path = _filled(tmp_path / "x.db")
    connection = sqlite3.connect(path)
    connection.execute(f"UPDATE mktune_{table} SET {change}")
    connection.commit()
    connection.close()
    with Store.open(path, write=False) as store, pytest.raises(StoreError, match="damaged row") as caught:
        _ = store.leaderboard(), store.winners()
    _message(caught)
    with sqlite3.connect(path) as writer:  # although the error is at hand, nothing of it holds a lock
        writer.execute("DELETE FROM mktune_plans")


def test_a_seed_that_no_column_holds_is_an_input_error(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.db") as store, pytest.raises(InputError, match="does not fit 64 bits"):
        make_study(store, seed=2**63)
