"""The core install needs neither torch nor GPU packages, and the runtime nothing that only tuning needs."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import mktune

GPU_PACKAGES = ("torch", "cuda", "deep_gemm", "tvm_ffi", "pynvml")
TUNING_PACKAGES = ("optuna", "numpy", "typer", "rich", "yaml")
STORE_PACKAGES = ("sqlalchemy", "alembic", "psycopg")

EVERY_MODULE = tuple(found.name for found in pkgutil.walk_packages(mktune.__path__, "mktune."))

BLOCKED_IMPORT = """
import importlib, sys
blocked, modules = sys.argv[1].split(","), sys.argv[2].split(",")
for name in blocked:
    sys.modules[name] = None  # an import of it, or of anything below it, raises ImportError
for name in modules:
    importlib.import_module(name)
"""


@pytest.mark.parametrize(
    ("blocked", "modules"),
    [
        (GPU_PACKAGES, [name for name in EVERY_MODULE if name != "mktune.__main__"]),
        (GPU_PACKAGES + TUNING_PACKAGES + STORE_PACKAGES, ["mktune", "mktune.runtime", "mktune.runtime.sources"]),
        (GPU_PACKAGES + TUNING_PACKAGES + STORE_PACKAGES, ["mktune.runtime.replay"]),
    ],
    ids=["core install", "looking up", "loading"],
)
def test_imports_without(blocked: tuple[str, ...], modules: list[str]) -> None:
    command = [sys.executable, "-c", BLOCKED_IMPORT, ",".join(blocked), ",".join(modules)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr


def test_every_module_is_looked_at() -> None:
    assert {"mktune.plan", "mktune.cli.app", "mktune.measure.host", "mktune.executors.cuda_graph"} <= set(EVERY_MODULE)


def test_help_loads_no_heavy_package() -> None:
    code = """
import sys
from mktune.cli.boundary import run
assert run(["--help"]) == 0
heavy = {"torch", "optuna", "sqlalchemy", "alembic", "cuda", "numpy", "yaml"} & set(sys.modules)
assert not heavy, heavy
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
