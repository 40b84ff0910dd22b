"""What every test gets: its own store folder, one shared cubin cache per run, and one thread for torch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Two test processes share the machine: more threads each only make them wait for one another. Set before torch loads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Every test meets a second workload, of a package that mktune does not ship. Read when a module is collected.
os.environ["MKTUNE_PATH"] = str(Path(__file__).parent / "gemm_rmsnorm")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from grouping import scheduler  # where there is no xdist, nobody asks

    return scheduler(config, log)


@pytest.fixture(scope="session", autouse=True)
def _cache_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compiled kernels of one test run are shared by its processes and never taken from the user's cache."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    os.environ["MKTUNE_CACHE_DIR"] = str(shared / "cubins")


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's store."""
    monkeypatch.setenv("MKTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MKTUNE_STORE", raising=False)
