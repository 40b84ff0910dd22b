"""The wheel and the sdist hold what a user needs, and an installed wheel works away from the checkout."""

from __future__ import annotations

import email
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packaging")]

CHECKOUT = Path(__file__).resolve().parents[2]
SHIPPED = ("kernels", "search_spaces", "db")


def shipped_files() -> set[str]:
    """Every file of the shipped folders, relative to the checkout."""
    paths = (path for folder in SHIPPED for path in (CHECKOUT / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(CHECKOUT)) for path in paths if path.suffix != ".pyc" and path.name != ".gitkeep"}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and with the wheel built from that sdist."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(CHECKOUT)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return out


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean environment's bin folder: the wheel is installed, its dependencies are this environment's."""
    root = tmp_path_factory.mktemp("clean")
    venv.create(root, with_pip=False)
    python = root / "bin" / "python"
    (wheel,) = dist.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*pip, str(wheel)], check=True)
    # A folder named in a .pth is searched, but its own .pth files are not read: the editable checkout stays out.
    purelib = subprocess.check_output(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    )
    (Path(purelib.strip()) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return root / "bin"


def run(command: list[str | Path], home: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MKTUNE_", "PYTHON"))}
    environment |= {"HOME": str(home), "XDG_DATA_HOME": str(home), "XDG_CACHE_HOME": str(home)}
    return subprocess.run(command, capture_output=True, text=True, cwd="/", env=environment, timeout=60)


def test_wheel_holds_shipped_folders(dist: Path) -> None:
    (path,) = dist.glob("*.whl")
    names = set(zipfile.ZipFile(path).namelist())
    assert {f"mktune/_data/{name}" for name in shipped_files()} <= names
    assert not [name for name in names if name.endswith(".pyc") or name.startswith(("tests/", "kernels/"))]


def test_wheel_core_needs_no_gpu_package(dist: Path) -> None:
    (path,) = dist.glob("*.whl")
    wheel = zipfile.ZipFile(path)
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = email.message_from_bytes(wheel.read(name))
    core = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert not [line for line in core if line.startswith(("torch", "numpy", "cuda", "nvidia", "sgl", "apache"))]
    assert {"compile", "gpu", "deepgemm", "postgres", "test"} <= set(metadata.get_all("Provides-Extra", []))


def test_sdist_holds_sources_and_tests(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert shipped_files() <= names
    assert {"pyproject.toml", "LICENSE", "Makefile", "constraints.txt", "tests/conftest.py"} <= names


def test_installed_program_answers_away_from_checkout(installed: Path, tmp_path: Path) -> None:
    result = run([installed / "mktune", "--help"], tmp_path)
    assert result.returncode == 0, result.stderr
    assert "tune" in result.stdout
    assert "lookup" in result.stdout


def test_installed_lookup_finds_bundled_plans_or_says_there_are_none(installed: Path, tmp_path: Path) -> None:
    question = ["glm52_attention_prefix", "--gpu", "NVIDIA H200", "--m", "8", "--kv", "4096"]
    result = run([installed / "mktune", "lookup", *question, "--json"], tmp_path)
    answer = json.loads(result.stdout)
    if result.returncode == 0:
        assert answer["plan_id"]
    else:
        assert result.returncode == 5, result.stderr
        assert answer["error"]["reason"]
        assert "bundled" in answer["error"]["message"]


def test_installed_data_is_the_wheels_own(installed: Path, tmp_path: Path) -> None:
    code = "from mktune import resources as r; print(r.kernels()); print(r.search_spaces()); print(r.migrations())"
    result = run([installed / "python", "-c", code], tmp_path)
    assert result.returncode == 0, result.stderr
    for line in result.stdout.splitlines():
        assert "/mktune/_data/" in line
        assert any(Path(line).iterdir())


def test_installed_runtime_alone(installed: Path, tmp_path: Path) -> None:
    code = """
import sys
for name in ("torch", "cuda", "optuna", "typer", "rich"):
    sys.modules[name] = None
import mktune.runtime
assert "_data" not in mktune.runtime.__file__ and "site-packages" in mktune.runtime.__file__
"""
    result = run([installed / "python", "-c", code], tmp_path)
    assert result.returncode == 0, result.stderr
