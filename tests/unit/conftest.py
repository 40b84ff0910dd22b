"""Fixtures that tests of several rooms ask for by name."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import postgres_server as server
import pytest
from hypothesis import HealthCheck, settings

from mktune.errors import SetupError

# No example of a property is late: how long one takes, or is drawn, says how busy the machine is. Examples are the same
# in every run, so that a change fails for what it does; tests/benchmarks/fuzz.py draws others.
settings.register_profile("any machine", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU, whatever this one has."""

    def absent(index: int = 0) -> None:
        raise SetupError("no NVIDIA driver on this machine")

    monkeypatch.setattr("mktune.executors.discovery.find_device", absent)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], check=False)
    if done.returncode:
        pytest.skip("cannot mount a tmpfs here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:
    """All that is skipped for want of a server is one line of the summary, not one for each test."""
    report: pytest.TestReport = yield
    if report.skipped and isinstance(report.longrepr, tuple) and "PostgreSQL" in report.longrepr[2]:
        report.longrepr = (server.__file__, 0, report.longrepr[2])
    return report


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of a PostgreSQL server without databases of ours. Skips where none can be started, unless one is required."""
    try:
        with server.running() as url:
            yield url
    except server.NoServerError as error:
        if os.environ.get(server.REQUIRE) == "required":
            raise
        pytest.skip(str(error))


@pytest.fixture
def postgres(postgres_server: str) -> str:
    """URL of an empty PostgreSQL database."""
    import psycopg

    with psycopg.connect(f"{postgres_server}/postgres", autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS tuning WITH (FORCE)")
        connection.execute("CREATE DATABASE tuning")
    return f"{postgres_server}/tuning"
