"""How the GPU tests share a host: processes, GPUs, groups, what runs alone, what they name, and `make gpu-test`."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from grouping import scope_of

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
SUITE = ROOT / "tests" / "gpu"
FILES = sorted(SUITE.glob("test_*.py"))
GIB = 1 << 30


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"gpu_{name}", SUITE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


parts, conftest = load("parts"), load("../conftest")


@pytest.mark.parametrize(
    ("given", "found"), [(None, ["GPU-a", "GPU-b"]), ("1", ["1"]), ("3, GPU-b", ["3", "GPU-b"]), ("", [])]
)
def test_what_cuda_visible_devices_says_counts_before_what_is_present(given: str | None, found: list[str]) -> None:
    assert parts.visible(given, ["GPU-a", "GPU-b"]) == found


def test_processes_take_gpus_in_turn() -> None:
    assert [parts.gpu_of(f"gw{number}", ["0", "1", "2"]) for number in range(7)] == list("0120120")
    assert [parts.gpu_of(worker, ["0", "1"]) for worker in ("", "master", "gw")] == [None] * 3
    assert parts.gpu_of("gw0", []) is None


def test_as_many_processes_as_fit_in_the_memory_of_the_gpus_and_one_each_for_what_runs_alone() -> None:
    assert parts.processes(1, 141 * GIB, alone=False) == 6
    assert parts.processes(4, 141 * GIB, alone=False) == 24
    assert parts.processes(1, 80 * GIB, alone=False) == 3
    assert parts.processes(1, 16 * GIB, alone=False) == 1
    assert parts.processes(1, 0, alone=False) == 1  # not known
    assert [parts.processes(gpus, 141 * GIB, alone=True) for gpus in (1, 4)] == [1, 4]
    chosen = {"gpu and gpu_alone": True, "gpu and not gpu_alone": False, "gpu": True, "": True}  # these two: both kinds
    assert {text: parts.is_alone(text) for text in chosen} == chosen


def test_a_summary_is_one_line_of_what_there_was() -> None:
    assert parts.summary({"passed": [1] * 812, "skipped": [1] * 3, "": [1]}, 340.4) == "812 passed, 3 skipped in 340 s"
    assert parts.summary({}, 1.0) == "nothing ran in 1 s"


TIMES = re.compile(
    r"\.measure\(|\.rounds\(|\.trace\(|\.promote\(|\.stamps\(|GraphTimer|perf_counter|time\.monotonic|edge_table\(|"
    r'"tune"|elapsed_time'
)
"""What a test calls that measures times, or whose answer depends on them."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_measures_times_is_marked_to_run_alone(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert "pytest.mark.gpu" in source
    assert bool(TIMES.search(source)) == ("gpu_alone" in source)


@pytest.mark.parametrize(
    ("nodeid", "scope"),
    [
        ("tests/gpu/test_streams.py::test_it[serial-16]", "tests/gpu/test_streams.py"),
        ("tests/gpu/test_streams.py::test_it", "tests/gpu/test_streams.py"),
        ("tests/gpu/test_config_matrix.py::test_it[B0-wgmma-16@B0]", "@B0"),
        ("tests/gpu/test_config_matrix.py::test_other[B0-64@kv 64]", "@kv 64"),
        ("tests/packaging/test_wheel.py::test_it", "packaging"),
        ("tests/unit/test_gemm_emulated.py::test_it[1]", "tests/unit/test_gemm_emulated.py"),
        ("tests/unit/test_plan.py::test_it[user@host]", "tests/unit/test_plan.py::test_it[user@host]"),
    ],
)
def test_who_stays_together_is_told_from_ids_alone(nodeid: str, scope: str) -> None:
    assert scope_of(nodeid) == scope


_TESTS = """
import os, pytest
@pytest.mark.parametrize("number", [{ids}])
def test_it(number):
    with open({log!r}, "a") as log:
        log.write(f"{name} {{os.environ['PYTEST_XDIST_WORKER']}} {{os.environ.get('CUDA_VISIBLE_DEVICES')}}\\n")
"""


def suite_of(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, gpus: str) -> Path:
    """A folder with this suite's own conftests, where a run of pytest knows nothing of the run that it is part of."""
    folder = pytester.mkdir("gpu")
    for name in ("conftest.py", "parts.py"):
        shutil.copy(SUITE / name, folder)
    shutil.copy(SUITE.parent / "grouping.py", pytester.path)
    hook = inspect.getsource(conftest.pytest_xdist_make_scheduler)
    (pytester.path / "conftest.py").write_text(f"import pytest\n\n{hook}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    for name in [name for name in os.environ if name.startswith("PYTEST_XDIST")]:
        monkeypatch.delenv(name)
    return folder


@pytest.mark.parametrize(("gpus", "how"), [("0,1", ()), ("GPU-x", ("--dist", "loadgroup"))])
def test_files_and_groups_stay_in_one_process_with_one_gpu(
    gpus: str, how: tuple[str, ...], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """xdist itself, over tests that need no GPU."""
    folder, log = suite_of(pytester, monkeypatch, gpus), pytester.path / "log"
    for name, group in (("a", ""), ("b", ""), ("c", ""), ("d", "@one"), ("e", "@one")):
        ids = ", ".join(f"pytest.param(0, id='{number}{group}')" for number in range(6))
        (folder / f"test_{name}.py").write_text(_TESTS.format(ids=ids, log=str(log), name=name))
    monkeypatch.setenv("MKTUNE_TEST_SUMMARY", str(pytester.path / "said"))
    done = pytester.runpytest_subprocess("-n", "2", *how, folder)
    done.assert_outcomes(passed=30)
    assert re.fullmatch(r"30 passed in [0-9]+ s\n", (pytester.path / "said").read_text())
    ran = [line.split() for line in log.read_text().splitlines()]
    workers = {name: {worker for each, worker, _ in ran if each == name} for name in "abcde"}
    assert all(len(found) == 1 for found in workers.values()), workers
    assert workers["d"] == workers["e"]  # one group, though two files
    chosen = {worker: {gpu for _, each, gpu in ran if each == worker} for worker in {w for _, w, _ in ran}}
    assert set(chosen) == {"gw0", "gw1"}
    listed = gpus.split(",")
    assert chosen == {worker: {listed[int(worker[2:]) % len(listed)]} for worker in chosen}


def test_auto_is_as_many_as_fit(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = suite_of(pytester, monkeypatch, "0,1,2")
    (folder / "test_a.py").write_text("def test_it(): pass\n")
    nvml = "class I:\n total = 50 << 30\n" + "\n".join(
        f"def {name}(*given): return {value}"
        for name, value in {
            "nvmlInit": "None",
            "nvmlDeviceGetCount": "3",
            "nvmlDeviceGetHandleByIndex": "given[0]",
            "nvmlDeviceGetUUID": "f'GPU-{given[0]}'",
            "nvmlDeviceGetMemoryInfo": "I",
        }.items()
    )
    (pytester.path / "pynvml.py").write_text(nvml)
    monkeypatch.setenv("PYTHONPATH", str(pytester.path), prepend=os.pathsep)
    (pytester.path / "pytest.ini").write_text("[pytest]\nmarkers = gpu_alone: x\n")
    done = pytester.runpytest_subprocess("-n", "auto", "-m", "not gpu_alone", folder)
    done.stdout.fnmatch_lines(["*6 workers*"])
    done = pytester.runpytest_subprocess("-n", "auto", "-m", "gpu_alone", folder)
    done.stdout.fnmatch_lines(["*3 workers*"])


GONE = re.compile(r"^(.+?):[0-9]+: error: .*\[(?:attr-defined|call-arg|name-defined)\]$", re.MULTILINE)
"""What mypy says of a name that is not there, or of an argument that is missing or not known."""


@pytest.mark.slow
def test_what_gpu_tests_and_benchmarks_name_is_there(tmp_path: Path) -> None:
    """They run seldom, and on a GPU it is late to find that something they use has another name by now."""
    planted = tmp_path / "planted.py"
    planted.write_text("from mktune.measure.validation import validate\nvalidate().endswith('x')\n")
    path = os.pathsep.join(map(str, (ROOT, SUITE, ROOT / "tests" / "unit")))
    options = ("--explicit-package-bases", "--implicit-reexport", "--cache-dir", str(tmp_path / "cache"))
    command = [sys.executable, "-m", "mypy", *options, "tests/gpu", "tests/benchmarks", str(planted)]
    environment = {**os.environ, "MYPYPATH": path}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    found = [match for match in GONE.finditer(done.stdout) if not match[1].endswith(planted.name)]
    assert len(found) == len(GONE.findall(done.stdout)) - 2, done.stdout[-2000:] + done.stderr
    assert [match[0] for match in found] == []


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
@pytest.mark.parametrize("fails", ["", "together", "alone", "both", "dies"])
def test_make_runs_both_parts_whatever_becomes_of_the_first_and_sums_up(fails: str, tmp_path: Path) -> None:
    """With a Python that only pretends: it has a GPU, and its pytest says what it was asked."""
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        "if sys.argv[1] == '-c': sys.exit(0)\n"
        f"open({str(tmp_path / 'asked')!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
        "part = 'together' if 'not gpu_alone' in ' '.join(sys.argv) else 'alone'\n"
        f"if {fails!r} == 'dies' and part == 'together': os.abort()\n"
        "open(os.environ['MKTUNE_TEST_SUMMARY'], 'a').write(f'7 passed {part}\\n')\n"
        f"sys.exit({fails!r} in (part, 'both'))\n"
    )
    python.chmod(0o755)
    command = ["make", "--no-print-directory", "gpu-test", f"PYTHON={python}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode != 0) == bool(fails), done.stderr
    first, second = (tmp_path / "asked").read_text().splitlines()
    assert "-m gpu and not gpu_alone -n auto tests/gpu" in first
    assert "-m gpu and gpu_alone -n auto tests/gpu" in second
    said = "did not end" if fails == "dies" else "7 passed together"
    assert done.stdout.splitlines()[-2:] == [f"gpu-test together: {said}", "gpu-test alone: 7 passed alone"]
