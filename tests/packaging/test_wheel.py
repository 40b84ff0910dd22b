"""The wheel and the sdist hold what a user needs, and an installed wheel works away from the checkout."""

from __future__ import annotations

import email
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).resolve().parents[2]
SHIPPED = ("kernels", "search_spaces", "db")


PARTS = ("mktune", *SHIPPED, "tests", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile")
WORKLOAD = "glm52_attention_prefix"
SHAPE = ["--m", "24", "--kv", "4096"]
SIM = [*SHAPE, "--backend", "sim"]
PLANTED = "db/plans/nvidia-h200/planted.json"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is built, with one more plan to ship: one that only the simulator has timed."""
    root = tmp_path_factory.mktemp("checkout")
    for part in (*PARTS, *(path.name for path in CHECKOUT.glob("constraints*.txt"))):
        source = CHECKOUT / part
        if source.is_dir():
            shutil.copytree(source, root / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, root / part)
    store = str(root.parent / "planted.db")
    mktune = [sys.executable, "-m", "mktune"]
    question = [WORKLOAD, "--ops", "A0,B0", *SIM, "--trials", "8", "--sampler", "random"]
    subprocess.run([*mktune, "tune", *question, "--store", store, "--json"], check=True, capture_output=True)
    (root / PLANTED).parent.mkdir(parents=True, exist_ok=True)
    export = ["export", "--simulated", "--out", str(root / PLANTED), "--store", store]
    subprocess.run([*mktune, *export], check=True, capture_output=True)
    return root


def shipped_files(root: Path) -> set[str]:
    """Every file of the shipped folders, relative to `root`."""
    paths = (path for folder in SHIPPED for path in (root / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(root)) for path in paths if path.suffix != ".pyc" and path.name != ".gitkeep"}


@pytest.fixture(scope="module")
def dist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and with the wheel built from that sdist."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(checkout)]
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


def run(command: list[str | Path], home: Path, cwd: str = "/") -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MKTUNE_", "PYTHON"))}
    environment |= {"HOME": str(home), "XDG_DATA_HOME": str(home), "XDG_CACHE_HOME": str(home)}
    # NVRTC is a dependency too, but is looked for in the environment's own folder only.
    environment["LD_LIBRARY_PATH"] = str(Path(sysconfig.get_path("purelib"), "nvidia", "cu13", "lib"))
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=600)


def test_wheel_holds_shipped_folders(dist: Path, checkout: Path) -> None:
    (path,) = dist.glob("*.whl")
    names = set(zipfile.ZipFile(path).namelist())
    assert {f"mktune/_data/{name}" for name in shipped_files(checkout)} <= names
    assert f"mktune/_data/{PLANTED}" in names
    assert not [name for name in names if name.endswith(".pyc") or name.startswith(("tests/", "kernels/"))]


def test_wheel_core_needs_no_gpu_package(dist: Path) -> None:
    (path,) = dist.glob("*.whl")
    wheel = zipfile.ZipFile(path)
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = email.message_from_bytes(wheel.read(name))
    core = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert not [line for line in core if line.startswith(("torch", "cuda", "nvidia", "sgl", "apache"))]
    assert {"compile", "gpu", "deepgemm", "postgres", "test"} <= set(metadata.get_all("Provides-Extra", []))


def test_sdist_holds_sources_and_tests(dist: Path, checkout: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert shipped_files(checkout) <= names
    assert {"pyproject.toml", "LICENSE", "Makefile", "constraints.txt", "tests/conftest.py"} <= names


def test_installed_program_answers_away_from_checkout(installed: Path, tmp_path: Path) -> None:
    result = run([installed / "mktune", "--help"], tmp_path)
    assert result.returncode == 0, result.stderr
    assert "tune" in result.stdout
    assert "lookup" in result.stdout


@pytest.mark.parametrize("cwd", ["/", "/tmp", "checkout"])
def test_installed_program_finds_the_bundled_plan_from_any_folder(
    installed: Path, checkout: Path, tmp_path: Path, cwd: str
) -> None:
    (winner,) = json.loads((checkout / PLANTED).read_text())["winners"]
    question = [WORKLOAD, "--gpu", "NVIDIA H200", *SHAPE, "--ops", "A0,B0", "--allow-simulated", "--json"]
    place = str(checkout) if cwd == "checkout" else cwd
    result = run([installed / "mktune", "lookup", *question], tmp_path, place)
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert (answer["plan_id"], answer["source"], answer["simulated"]) == (winner["plan_id"], "bundle", True)
    assert list(tmp_path.iterdir()) == []  # a look-up makes nothing


ANSWERS: dict[str, list[str]] = {
    "tune": [WORKLOAD, "--ops", "A0,B0", *SIM, "--trials", "3", "--sampler", "random", "--study", "s"],
    "worker": ["--study", "s", "--trials", "4"],
    "leaderboard": [],
    "matrix": [WORKLOAD, "--ops", "A0,B0", *SIM],
    "coverage": [WORKLOAD, "--gpu", "NVIDIA H200", "--allow-simulated"],
    "lookup": [WORKLOAD, "--gpu", "NVIDIA H200", *SHAPE, "--allow-simulated"],
    "show": ["branches"],
    "run": ["serial", "--ops", "A0", *SIM],
    "trace": ["serial", "--ops", "A0", *SIM, "--out", "~/layer.json"],
    "ablate": [WORKLOAD, "--ops", "A0,B0", *SIM],
    "grow": [WORKLOAD, "--ops", "A0,B0", *SIM],
    "edge": ["A0", "B0", *SIM],
    "compile": ["--ops", "A0"],
    "export": ["--simulated", "--out", "~/plans.json"],
    "import": ["~/plans.json"],
    "record": [WORKLOAD, "--ops", "B0", *SIM, "--free", "B0.tile:2", "--out", "~/recorded.gz"],
    "compare-samplers": ["~/recorded.gz", "--seeds", "2"],
    "doctor": [],
}
"""Command → arguments that it answers on a machine without a GPU, in this order."""
NEED_A_GPU = {"bench-ops"}


def test_every_command_of_the_installed_program_works(installed: Path, tmp_path: Path) -> None:
    offered = run([installed / "mktune", "__complete", ""], tmp_path).stdout.split()
    assert set(ANSWERS) | NEED_A_GPU == set(offered)
    for name in offered:
        assert run([installed / "mktune", name, "--help"], tmp_path).returncode == 0, name
    for name, more in ANSWERS.items():
        args = [word.replace("~", str(tmp_path)) for word in more]
        result = run([installed / "mktune", name, *args, "--json"], tmp_path)
        assert result.returncode == 0, (name, result.stderr)
        assert "error" not in json.loads(result.stdout), name
    for name in NEED_A_GPU:
        assert run([installed / "mktune", name, "--json"], tmp_path).returncode in (0, 3), name
    assert (tmp_path / "mktune" / "mktune.db").is_file()


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
