"""Where a store is: paths land exactly where they were written, and no password is ever shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from stored_values import make_study, make_trial, make_winner

from mktune import knobs
from mktune.errors import InputError, NothingFoundError, SetupError, StoreError
from mktune.location import StoreLocation
from mktune.runtime import PlanBook
from mktune.store import Store

ODD = ["a b", "ü-测试", "100%#?x", "100%25", "a&mode=ro", "x;y", "q'\"", "dir.with.dots", "-rf"]


@pytest.mark.parametrize("scheme", ["", "sqlite:///", "sqlite+pysqlite:///", "SQLITE:///"])
@pytest.mark.parametrize("name", ODD)
def test_odd_paths_land_exactly_there(tmp_path: Path, name: str, scheme: str) -> None:
    path = tmp_path / name / f"{name}.db"
    with Store.open(f"{scheme}{path}") as store:
        store.add_trial(make_study(store), make_trial(0))
        store.put_winner(None, make_winner())
    assert [found for found in tmp_path.rglob("*") if found.is_file()] == [path]
    assert len(PlanBook.open(f"{scheme}{path}")) == 1
    with Store.open(path, write=False) as store:
        assert len(store.leaderboard()) == 2


def test_the_default_is_in_mktune_home_and_its_folder_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "a b" / "ü-测试" / "100%#?x"
    monkeypatch.setenv("MKTUNE_HOME", str(home))
    with Store.open() as store:
        assert str(store.location) == str(home / "mktune.db")
    assert [path.name for path in home.iterdir()] == ["mktune.db"]


def test_mktune_store_names_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKTUNE_STORE", f"sqlite:///{tmp_path / 'y.db'}")
    Store.open().close()
    assert (tmp_path / "y.db").exists()
    assert not (tmp_path / "home").exists()


def test_relative_and_home_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert StoreLocation.parse("x.db").path == tmp_path / "x.db"
    assert StoreLocation.parse("sqlite:///x.db").path == tmp_path / "x.db"
    assert StoreLocation.parse("~/x.db").path == tmp_path / "me" / "x.db"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sqlite://",
        "sqlite:///",
        "sqlite://x.db",
        "sqlite:///:memory:",
        "mysql://h/d",
        "http://h",
        "a\0b",
        "/",
        ".",
        "\ud800",
    ],
)
def test_what_is_no_store_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        StoreLocation.parse(text)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cr3t@host/db",
        "postgresql+psycopg://me:s3cr3t@host/db?sslmode=require",
        "postgresql://host/db?user=me&password=s3cr3t",
    ],
)
def test_passwords_are_hidden(url: str) -> None:
    location = StoreLocation.parse(url)
    for text in (str(location), repr(location)):
        assert "s3c" not in text
        assert "r3t" not in text
    assert "host" in str(location)
    assert location.url.endswith(url.partition("://")[2])


def test_a_server_that_is_not_there_is_a_store_error_without_the_password() -> None:
    with pytest.raises((StoreError, SetupError)) as caught:
        Store.open("postgresql://me:s3cr3t@127.0.0.1:9/db", timeout_s=1)
    assert "s3cr3t" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_reading_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(NothingFoundError, match="no store at"):
        Store.open(tmp_path / "new" / "x.db", write=False)
    assert list(tmp_path.iterdir()) == []


def test_a_store_for_reading_cannot_be_written(tmp_path: Path) -> None:
    Store.open(tmp_path / "x.db").close()
    with Store.open(tmp_path / "x.db", write=False) as store, pytest.raises(StoreError, match="reading only"):
        make_study(store)


def test_a_url_that_can_be_cut_in_two_ways_is_refused_without_showing_any_of_it() -> None:
    with pytest.raises(InputError, match="%40") as caught:
        StoreLocation.parse("postgres://me:s3c@r3t@host/db")
    assert not re.search("me|s3c|r3t|host", str(caught.value).replace("name", ""))


def test_a_path_too_long_for_any_file_system_is_no_crash(tmp_path: Path) -> None:
    place = StoreLocation.parse(str(tmp_path / ("x" * 300))).path
    assert place is not None
    with pytest.raises(StoreError, match="File name too long"):
        Store.open(place, write=False)
    with pytest.raises(InputError, match="cannot write the store"):
        Store.open(place)


@pytest.mark.parametrize("variable", ["MKTUNE_HOME", "MKTUNE_CACHE_DIR"])
def test_a_home_that_nobody_has_names_the_variable_to_set(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "~nobody-of-that-name/x")
    with pytest.raises(InputError, match=variable):
        knobs.home() if variable == "MKTUNE_HOME" else knobs.cache_dir()


def test_relative_folders_of_the_desktop_are_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MKTUNE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", "here")
    assert knobs.home() == tmp_path / ".local/share/mktune"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert knobs.home() == tmp_path / "data" / "mktune"
