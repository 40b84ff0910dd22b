"""The core install needs neither torch nor GPU packages, and the runtime nothing that only tuning needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

GPU_PACKAGES = ("torch", "numpy", "cuda", "deep_gemm", "tvm_ffi")
TUNING_PACKAGES = ("optuna", "typer", "rich")

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
        (GPU_PACKAGES, ("mktune", "mktune.cli.app", "mktune.runtime", "mktune.store", "mktune.search")),
        (GPU_PACKAGES + TUNING_PACKAGES, ("mktune", "mktune.runtime")),
    ],
    ids=["core install", "runtime"],
)
def test_imports_without(blocked: tuple[str, ...], modules: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", BLOCKED_IMPORT, ",".join(blocked), ",".join(modules)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_help_loads_no_heavy_package() -> None:
    code = """
import sys
from mktune.cli.boundary import run
assert run(["--help"]) == 0
heavy = {"torch", "optuna", "sqlalchemy", "alembic", "cuda", "numpy", "yaml"} & set(sys.modules)
assert not heavy, heavy
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
