"""Packages of one's own: what they hold is found like what ships, and what is wrong with one is said in a line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import LIMIT_S

import mktune
from mktune import extensions, resources
from mktune.errors import InputError
from mktune.graph.workload import workload, workload_names
from mktune.jit.fingerprint import kernels_fingerprint
from mktune.jit.source import load
from mktune.ops.launch import has_kernels

OWN = Path(__file__).resolve().parents[1] / "gemm_rmsnorm"


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch):
    """Reads MKTUNE_PATH as a fresh process would."""

    def packages(*folders: Path | str) -> tuple[extensions.Package, ...]:
        monkeypatch.setenv("MKTUNE_PATH", ":".join(map(str, folders)))
        return extensions.packages.__wrapped__()

    return packages


def package(folder: Path, **files: str) -> Path:
    """A package in `folder`; "workloads__x" stands for workloads/x.py."""
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(files.pop("start", ""))
    for name, text in files.items():
        path = folder.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_what_a_package_holds_is_found_by_name() -> None:
    assert {"gemm_rmsnorm", "glm52_attention_prefix"} <= set(workload_names())
    assert workload("gemm_rmsnorm").ops == ("G", "N")
    assert has_kernels("row_norm")
    assert resources.search_space("gemm_rmsnorm") == OWN / "search_spaces" / "gemm_rmsnorm.yaml"
    assert resources.kernel_source("standalone/row_norm.cu") == OWN / "kernels" / "standalone" / "row_norm.cu"


def test_own_sources_include_shipped_headers_and_have_a_fingerprint() -> None:
    files = dict(load("standalone/output_projection.cu").files)
    assert {"standalone/output_projection.cu", "ops/bf16_gemm.cuh", "common/ptx.cuh"} <= files.keys()
    whole, norm = kernels_fingerprint("gemm_rmsnorm"), kernels_fingerprint("gemm_rmsnorm", ("N",))
    assert len({whole, norm, kernels_fingerprint("glm52_attention_prefix")}) == 3


def test_mktune_itself_names_nothing_of_it() -> None:
    words = ("gemm_rmsnorm", "output_projection", "row_norm", "OutputProjection", "RowNorm")
    files = [path for path in Path(mktune.__file__).parent.rglob("*.py") if "_data" not in path.parts]
    assert [path for path in files if any(word in path.read_text(encoding="utf-8") for word in words)] == []


def test_no_path_is_no_package(use) -> None:
    assert use() == ()
    assert use("", "") == ()


def test_a_folder_twice_is_one_package(use) -> None:
    assert use(OWN, OWN) == (extensions.Package("gemm_rmsnorm", OWN),)


@pytest.mark.parametrize("name", ["absent", "no-name", "x" * 300], ids=["absent", "no-name", "too-long"])
def test_a_folder_that_is_no_package_is_refused(use, tmp_path: Path, name: str) -> None:
    (tmp_path / "no-name").mkdir()
    (tmp_path / "no-name" / "__init__.py").touch()
    with pytest.raises(InputError, match=f"MKTUNE_PATH: .*/{name} is no Python package"):
        use(tmp_path / name)


def test_a_package_that_ends_the_process_is_refused_like_one_that_raises(use, tmp_path: Path) -> None:
    folder = package(tmp_path / "own_leaving", start="raise SystemExit(0)")
    with pytest.raises(InputError, match="own_leaving cannot be imported: SystemExit: 0"):
        use(folder)


def test_the_name_of_another_package_is_refused(use, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"json has the name of another package, .*json/__init__\.py: rename it"):
        use(package(tmp_path / "json"))


def test_a_package_that_cannot_be_imported_says_why(use, tmp_path: Path) -> None:
    folder = package(tmp_path / "own_broken", start="import nothing_of_that_name")
    with pytest.raises(InputError, match=r"own_broken cannot be imported: ModuleNotFoundError: .*nothing_of_that_name"):
        use(folder)
    assert "own_broken" not in sys.modules


def test_names_are_not_shared(use, tmp_path: Path) -> None:
    one, two = (package(tmp_path / name, workloads__same="") for name in ("own_one", "own_two"))
    with pytest.raises(InputError, match=r"own_two\.workloads and own_one\.workloads both have same: rename one"):
        use(one, two)
    shipped = package(tmp_path / "own_three", ops__launch__qkv_a="")
    with pytest.raises(InputError, match=r"own_three\.ops\.launch and mktune\.ops\.launch both have qkv_a"):
        use(shipped)


def test_a_kernel_source_cannot_take_the_place_of_one_that_ships(monkeypatch, tmp_path: Path) -> None:
    source = tmp_path / "kernels" / "common" / "ptx.cuh"
    source.parent.mkdir(parents=True)
    source.write_text("mine")
    monkeypatch.setattr(extensions, "packages", lambda: (extensions.Package("own", tmp_path),))
    with pytest.raises(InputError, match=r"MKTUNE_PATH: .*/kernels/common/ptx\.cuh and .* are both kernels/common/ptx"):
        resources._own_kernels.__wrapped__()
    assert resources.kernel_source("common/ptx.cuh") == resources.kernels() / "common" / "ptx.cuh"


def test_a_fresh_process_tells_of_a_file_without_a_workload(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MKTUNE_PATH", str(package(tmp_path / "own_empty", workloads__empty="", workloads__bad="1 / 0")))
    for name, says in (("empty", "must define WORKLOAD, a Workload called 'empty'"), ("bad", "ZeroDivisionError")):
        command = [sys.executable, "-m", "mktune", "compile", name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert says in done.stderr
        assert "Traceback" not in done.stderr


def test_what_ships_needs_no_path(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MKTUNE_PATH", str(tmp_path / "absent"))
    code = "from mktune.graph.workload import workload as w; print(w('glm52_attention_prefix').contract)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.stdout == "1\n", done.stderr


def test_doctor_lists_packages_and_says_what_is_wrong_with_one(monkeypatch, tmp_path: Path) -> None:
    for path, code, says in ((OWN, 0, "workloads gemm_rmsnorm"), (tmp_path / "absent", 3, "is no Python package")):
        monkeypatch.setenv("MKTUNE_PATH", str(path))
        command = [sys.executable, "-m", "mktune", "doctor", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        (check,) = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "own packages"]
        assert (done.returncode, check["state"]) == (code, "broken" if code else "ok")
        assert says in check["detail"]


def test_doctor_says_what_a_workload_of_ones_own_lacks(monkeypatch, tmp_path: Path) -> None:
    mine = tmp_path / OWN.name
    shutil.copytree(OWN, mine)
    (mine / "workloads" / "broken.py").write_text("import nothing_of_that_name\n")
    (mine / "search_spaces" / "gemm_rmsnorm.yaml").unlink()
    monkeypatch.setenv("MKTUNE_PATH", str(mine))
    command = [sys.executable, "-m", "mktune", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert found["workload broken"]["state"] == found["workload gemm_rmsnorm"]["state"] == "broken"
    assert "nothing_of_that_name" in found["workload broken"]["detail"]
    assert "no search_spaces/gemm_rmsnorm.yaml" in found["workload gemm_rmsnorm"]["detail"]
