"""Where a book reads: locked, damaged, missing or newer stores never raise, write nothing and warn once."""

from __future__ import annotations

import json
import logging
import os
import pickle
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from stored_values import WORKLOAD, make_plan, make_study, make_winner, with_packing
from test_book import ask, plan_of, reason, served

from mktune import packed, resources
from mktune.errors import InputError, StoreError
from mktune.jit.fingerprint import Sources, kernels_fingerprint
from mktune.location import SCHEMA
from mktune.runtime import Hit, PlanBook, log, sources, sqlite_rows
from mktune.store import Store, write_bundle
from mktune.trial import SIMULATED, Winner


@pytest.fixture(autouse=True)
def _fresh_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_said", set())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "store"
    with Store.open(place / "x.db") as store:
        store.put_winner(make_study(store), served())
    return place / "x.db"


def _files(folder: Path) -> dict[str, bytes]:
    return {found.name: found.read_bytes() for found in sorted(folder.iterdir())}


def test_store_url_path_and_bundle_give_the_same_book(path: Path, tmp_path: Path) -> None:
    write_bundle(tmp_path / "plans.json", [served()])
    for place in (path, str(path), f"sqlite:///{path}", tmp_path / "plans.json"):
        book = PlanBook.open(place)
        assert book.winners == (served(),)
        assert plan_of(ask(book)) == make_plan()


@pytest.mark.parametrize("backend", SIMULATED)
def test_a_bundle_and_a_store_mark_what_nobody_measured(tmp_path: Path, backend: str) -> None:
    winner = served(backend=backend)
    write_bundle(tmp_path / "plans.json", [winner])
    with Store.open(tmp_path / "x.db") as store:
        store.put_winner(None, winner)
    for place in (tmp_path / "plans.json", tmp_path / "x.db"):
        book = PlanBook.open(place)
        assert reason(ask(book)) == "simulated"
        found = ask(book, allow_simulated=True)
        assert isinstance(found, Hit)
        assert found.simulated


def test_reading_changes_no_file_and_makes_none(path: Path) -> None:
    before = _files(path.parent)
    assert ask(PlanBook.open(path))
    assert _files(path.parent) == before


def test_a_quiet_store_in_wal_mode_is_read_without_making_files(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.close()
    before = _files(path.parent)
    assert list(before) == ["x.db"]
    assert ask(PlanBook.open(path))
    assert _files(path.parent) == before


def test_what_a_writer_has_only_in_its_log_is_seen(path: Path) -> None:
    with Store.open(path) as store:
        store.put_winner(None, served(make_plan(m=8)))
        assert len(PlanBook.open(path)) == 2


@contextmanager
def _waiting_is_seen() -> Iterator[None]:
    """Whoever waits for a lock inside waits so long that no machine is as slow."""
    start = time.monotonic()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sqlite_rows, "_LOCK_TIMEOUT_S", 120.0)
        yield
    assert time.monotonic() - start < 90.0


def test_a_writer_that_holds_the_lock_does_not_delay_a_look_up(path: Path) -> None:
    with Store.open(path):
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        holder.execute("UPDATE mktune_plans SET workload = 'half written'")
        with _waiting_is_seen():
            assert plan_of(ask(PlanBook.open(path))) == make_plan()
        holder.execute("ROLLBACK")
        holder.close()


def test_only_reads_reach_the_database(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statements: list[str] = []
    connect = sqlite3.connect

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        assert "mode=ro" in arguments[0]
        connection = connect(*arguments, **options)
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    assert ask(PlanBook.open(path))
    assert statements
    own = {"PRAGMA cache_size=16"}  # of this connection, and of nothing that is stored
    assert {statement.split()[0] for statement in set(statements) - own} <= {"SELECT", "BEGIN"}


def _locked(path: Path) -> sqlite3.Connection:
    """A connection that lets nobody else read."""
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("PRAGMA journal_mode=DELETE")
    holder.execute("BEGIN EXCLUSIVE")
    return holder


def test_a_store_that_is_locked_whole_still_answers(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    holder = _locked(path)
    with _waiting_is_seen():
        assert plan_of(ask(PlanBook.open(path))) == make_plan()
    assert caplog.records == []
    holder.close()


def test_a_store_that_is_half_written_is_a_miss_and_one_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    holder = _locked(path)
    holder.execute("UPDATE mktune_plans SET document = 'half written'")
    assert path.with_name("x.db-journal").exists()
    books = [PlanBook.open(path), PlanBook.open(path)]
    for book in books:
        found = ask(book)
        assert reason(found) == "store"
        assert "locked" in found.message
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1
    holder.execute("ROLLBACK")
    holder.close()
    assert plan_of(ask(books[0].refresh())) == make_plan()


def _page(number: int) -> slice:
    return slice(4096 * number, 4096 * (number + 1))


def test_a_database_with_any_page_overwritten_never_raises(path: Path) -> None:
    content = path.read_bytes()
    for page in range(len(content) // 4096):
        damaged = bytearray(content)
        damaged[_page(page)] = b"\xa5" * 4096
        path.write_bytes(damaged)
        found = ask(PlanBook.open(path))
        assert isinstance(found, Hit) or reason(found) == "store"


@pytest.mark.parametrize("cut", [0, 1, 50, 100, 4096, 0.6])
def test_a_cut_database_never_raises(path: Path, cut: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(cut * len(content)) if isinstance(cut, float) else cut])
    assert reason(ask(PlanBook.open(path))) == "store"


def test_one_damaged_row_costs_only_its_plan(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Store.open(path) as store:
        store.put_winner(None, served(make_plan(m=8)))
    connection = with_packing(sqlite3.connect(path))
    connection.execute(
        "UPDATE mktune_plans SET document = pack(replace(unpack(document), '192', '384')) WHERE requests = 1"
    )
    connection.commit()
    connection.close()
    book = PlanBook.open(path)
    assert plan_of(ask(book)) == make_plan()
    assert reason(ask(book, m=8)) == "store"
    assert "changed after it was stored" in caplog.text


@pytest.mark.parametrize(
    "damage",
    ["CAST(X'ff' || document AS TEXT)", "unpack(document)", "substr(document, 1, 99)", "document || X'00'", "7", "''"],
    ids=repr,
)
def test_a_document_that_is_not_packed_whole_costs_only_its_plan(path: Path, damage: str) -> None:
    with Store.open(path) as store:
        store.put_winner(None, served(make_plan(m=8)))
    connection = with_packing(sqlite3.connect(path))
    connection.execute(f"UPDATE mktune_plans SET document = {damage} WHERE requests = 1")
    connection.commit()
    connection.close()
    book = PlanBook.open(path)
    assert plan_of(ask(book)) == make_plan()
    assert not ask(book, m=8)
    assert PlanBook.open(path, pin=make_plan().short_id).winners[0].plan == make_plan()


def test_a_new_store_has_pages_that_hold_several_plans_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    old = sqlite3.connect(tmp_path / "old.db")
    old.execute("PRAGMA page_size=4096")
    old.execute("VACUUM")
    old.close()
    for name, size in (("old.db", 4096), ("new.db", 16384)):
        with Store.open(tmp_path / name) as store:
            store.put_winner(None, served())
        assert plan_of(ask(PlanBook.open(tmp_path / name))) == make_plan()
        connection = sqlite3.connect(tmp_path / name)
        assert connection.execute("PRAGMA page_size").fetchone() == (size,)
        connection.close()


@pytest.mark.parametrize(
    "change",
    [
        "gpu = 'NVIDIA B300'",
        "kv = 4096",
        "sms = 1",
        "ops = 'A0'",
        "ops = x'00ff'",
        "workload = NULL",
        "gpu = 5",
        "requests = 'two'",
        "tokens_per_request = 1.5",
        "kv = 9223372036854775807",
        "document = NULL",
        "document = 5",
        "document = '[]'",
        "document = pack(replace(unpack(document), '\"m_range\":[16,', '\"m_range\":[1,'))",
        "m_low = 1",
        "kv_high = 9999",
        "m_low = NULL",
        "kv_low = 'one'",
        "document = pack(hex(zeroblob(3000)))",
    ],
)
def test_a_row_that_is_not_what_its_document_says_is_never_served(path: Path, change: str) -> None:
    connection = with_packing(sqlite3.connect(path))
    connection.execute("PRAGMA ignore_check_constraints=ON")
    connection.execute("DROP INDEX uq_mktune_plans_key")
    connection.execute("CREATE TABLE loose AS SELECT * FROM mktune_plans")
    connection.execute("DROP TABLE mktune_plans")
    connection.execute("ALTER TABLE loose RENAME TO mktune_plans")
    connection.execute(f"UPDATE mktune_plans SET {change}")
    connection.commit()
    connection.close()
    book = PlanBook.open(path)
    for asked in ({}, {"gpu": "B300"}, {"kv": 4096}, {"ops": ("A0",)}, {"m": 1, "tokens_per_request": 1}):
        assert reason(ask(book, **asked))


def test_opening_unpacks_nothing_and_a_look_up_only_what_it_comes_to(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(path) as store:
        for m in (8, 24, 32):
            store.put_winner(None, served(make_plan(m=m)))
    unpacked: list[bytes] = []
    unpack = packed.unpack
    monkeypatch.setattr(packed, "unpack", lambda stored, where: unpacked.append(stored) or unpack(stored, where))
    book = PlanBook.open(path).refresh()
    assert len(book) == 4
    assert unpacked == []
    for _ in range(2):
        assert plan_of(ask(book)) == make_plan()
        assert reason(ask(book, m=2048)) == "shape"
    assert len(unpacked) == 1


def test_an_open_book_needs_its_file_no_more(path: Path) -> None:
    book = PlanBook.open(path)
    path.unlink()
    assert plan_of(ask(book)) == make_plan()
    assert reason(ask(book.refresh())) == "store"


def test_a_book_changes_only_when_it_is_refreshed(path: Path) -> None:
    book = PlanBook.open(path)
    before = ask(book)
    with Store.open(path) as store:
        store.put_winner(None, served(make_plan(stages=9), 1.0))
    assert ask(book) is before
    assert book.refresh() is book
    assert plan_of(ask(book)) == make_plan(stages=9)
    assert before.plan == make_plan()


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0" + b"\xff" * 5000, b"{", b"\0" * 4096], ids=repr)
def test_a_refresh_that_cannot_read_keeps_the_plans(
    path: Path, tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    write_bundle(tmp_path / "plans.json", [served()])
    for place in (path, tmp_path / "plans.json"):
        book = PlanBook.open(place)
        place.write_bytes(content)
        for _ in range(3):
            assert plan_of(ask(book.refresh())) == make_plan()
    assert caplog.records
    assert len({record.message for record in caplog.records}) == len(caplog.records)


def test_a_book_of_given_winners_stays_as_it_is() -> None:
    book = PlanBook.of([served()])
    assert plan_of(ask(book.refresh())) == make_plan()


def test_a_file_in_any_layout_gives_the_same_book(tmp_path: Path) -> None:
    winners = [served(), served(make_plan(m=8)), served(make_plan(m=24, m_range=(17, 24)))]
    document = json.loads(_bundle_of(winners))
    layouts = {
        "as written": _bundle_of(winners),
        "compact": json.dumps(document, separators=(",", ":")),
        "backwards": json.dumps(dict(reversed(document.items())), indent=8),
        "older": json.dumps(document | {"schema": 1}),
    }
    for name, text in layouts.items():
        (tmp_path / "plans.json").write_text(text)
        book = PlanBook.open(tmp_path / "plans.json")
        assert set(book.winners) == set(winners), name
        for m in (8, 16, 24):
            assert plan_of(ask(book, m=m)).shape.m == m
        assert reason(ask(book, m=40)) == "shape"


def test_one_wrong_plan_of_a_file_costs_only_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for wrong in ("10.1", '"noise_floor"'):
        text = _bundle_of([served(), served(make_plan(m=8))]).replace(wrong, '"many"', 1)
        (tmp_path / "plans.json").write_text(text)
        book = PlanBook.open(tmp_path / "plans.json")
        assert sorted([bool(ask(book, m=8)), bool(ask(book))]) == [False, True]
    assert all("this plan is not used" in record.message for record in caplog.records)
    assert caplog.records


def _bundle_of(winners: list[Winner]) -> str:
    from mktune.store import bundle_text

    return bundle_text(winners)


def _bundle() -> str:
    from mktune.store import bundle_text

    return bundle_text([served()])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 4096,
        _bundle()[: len(_bundle()) * 6 // 10].encode(),
        (_bundle() * 2).encode(),
        f"<<<<<<< HEAD\n{_bundle()}".encode(),
        _bundle().replace("0.004", "NaN").encode(),
        json.dumps(json.loads(_bundle()) | {"schema": 99}).encode(),
        b"\xff\xfe",
        b"[" * 100_000,
        pickle.dumps({"plans": []}),
    ],
    ids=lambda content: repr(content[:8]),
)
@pytest.mark.parametrize("name", ["plans.json", "plans.db", "best.pkl"])
def test_a_file_that_is_no_bundle_never_raises_and_warns(
    tmp_path: Path, content: bytes, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / name).write_bytes(content)
    assert reason(ask(PlanBook.open(tmp_path / name))) == "store"
    assert len(caplog.records) == 1
    assert (tmp_path / name).read_bytes() == content


def test_a_file_without_an_end_is_a_miss() -> None:
    assert reason(ask(PlanBook.open("/dev/zero"))) == "store"


class _Planted:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["mktune.db", "plans.json", "best.pkl"])
def test_a_planted_pickle_is_never_run(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / name).write_bytes(pickle.dumps(_Planted(tmp_path / "pwned")))
    assert not ask(PlanBook.open(home / name))
    ask(PlanBook.open(None))  # what ships with mktune may answer
    with pytest.raises(StoreError, match="not an SQLite database"):
        Store.open(home / name)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("version", ["0099", "0000"])
def test_another_schema_is_a_miss_and_a_warning(path: Path, version: str, caplog: pytest.LogCaptureFixture) -> None:
    connection = sqlite3.connect(path)
    connection.execute("UPDATE mktune_alembic_version SET version_num = ?", (version,))
    connection.commit()
    connection.close()
    before = _files(path.parent)
    found = ask(PlanBook.open(path))
    assert reason(found) == "store"
    assert f"schema {version}; this one reads {SCHEMA}" in caplog.text
    assert ("newer" if version == "0099" else "older") in found.message
    assert _files(path.parent) == before


def test_a_missing_store_is_an_empty_book_without_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = ask(PlanBook.open(tmp_path / "no" / "x.db"))
    assert reason(found) == "store"
    assert "there is no store at" in found.message
    assert caplog.records == []
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_one_is_the_callers_error() -> None:
    for place in ("", "mysql://h/d", "/"):
        with pytest.raises(InputError):
            PlanBook.open(place)


@pytest.fixture
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "plans"
    monkeypatch.setattr(resources, "bundled_plans", lambda: folder)
    write_bundle(folder / "h200" / f"{WORKLOAD}.json", [served(), served(make_plan(m=8))])
    return folder


def test_the_default_book_is_the_store_and_the_bundle_with_the_store_first(bundled: Path) -> None:
    book = PlanBook.open()
    assert len(book) == 2
    found = ask(book)
    assert isinstance(found, Hit)
    assert found.source == "bundle"
    with Store.open() as store:
        store.put_winner(None, served(make_plan(stages=9), 99.0))
    book = PlanBook.open()
    found = ask(book)
    assert isinstance(found, Hit)
    assert (found.source, found.plan) == ("store", make_plan(stages=9))
    assert ask(book, m=8).source == "bundle"


def test_a_damaged_store_leaves_the_bundle(bundled: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "mktune.db").write_bytes(b"\0" * 4096)
    assert ask(PlanBook.open()).source == "bundle"


def test_a_store_measured_on_other_kernels_leaves_the_bundle(bundled: Path) -> None:
    with Store.open() as store:
        store.put_winner(None, make_winner(make_plan(stages=9), kernels="f" * 64))
    assert ask(PlanBook.open()).source == "bundle"


def test_without_bundled_plans_the_message_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "bundled_plans", lambda: tmp_path / "none")
    found = ask(PlanBook.open())
    assert reason(found) == "store"
    assert "no plans are bundled" in found.message


def test_plans_that_ship_are_for_these_kernels() -> None:
    shipped = sources.bundled_winners()
    assert [record for record in shipped if record.measurement.policy.simulated] == []
    for winner in shipped:
        assert winner.validated
        own = kernels_fingerprint(*Sources.of(winner.plan))
        assert winner.fingerprint.kernels == own, "tune again, or do not ship this plan"
