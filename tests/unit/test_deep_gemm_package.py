"""DeepGEMM's headers are found without importing it; where they are missing, what needs them says so in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
import stored_values
from command_line import run
from fake_bench import H200, SHAPE, WORKLOAD
from stored_values import make_fingerprint, make_winner

from mktune import deep_gemm
from mktune.cli import doctor
from mktune.errors import PlanError, SetupError
from mktune.graph.builtin import make_plan
from mktune.graph.workload import workload
from mktune.jit import nvrtc
from mktune.jit.build import build
from mktune.jit.fingerprint import Sources, kernels_fingerprint
from mktune.launch import KernelSpec
from mktune.measure.admission import refuse_invalid
from mktune.measure.cuda_bench import fingerprint_of_plan
from mktune.ops.deep_gemm import WithDeepGemm
from mktune.ops.registry import all_ops
from mktune.plan import OpPlan
from mktune.runtime import Hit, Miss, PlanBook, versions
from mktune.shape import Shape
from mktune.space import Question, SearchSpace
from mktune.validity import check
from mktune.validity.limits import judged_graph

installed = pytest.mark.skipif(bool(deep_gemm.missing()), reason=deep_gemm.missing())
CONFIG = {"block_m": 16, "block_n": 32, "stages": 8, "ctas": 132, "multicast": "none"}
PLAN = OpPlan.of("deep_gemm", {**CONFIG, "finalizer": "kernel", "finalizer_threads": 256})


@pytest.fixture
def version(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Says which version is installed; None: none is."""

    def say(found: str | None) -> None:
        def answer(name: str) -> str:
            if found is None or name != deep_gemm.PACKAGE:
                raise metadata.PackageNotFoundError(name)
            return found

        monkeypatch.setattr(metadata, "version", answer)
        _forget()

    yield say
    monkeypatch.undo()
    _forget()


def _forget() -> None:
    """A process asks once what is installed, and keeps what it has found of configs."""
    deep_gemm._find.cache_clear()
    judged_graph.cache_clear()


def test_without_the_package_the_space_lacks_its_values_and_says_so_once(version) -> None:
    version(None)
    space = SearchSpace.load(WORKLOAD, None, SHAPE, H200)
    (line,) = space.left_out
    assert line.startswith("without impl deep_gemm of B0, ")
    assert line.endswith("sgl-deep-gemm is not installed: pip install sgl-deep-gemm==0.1.5.post1")
    offered: list[str] = []

    def pick(question: Question) -> str:
        offered.extend(question.options)
        return next(iter(question.options))

    space.walk(pick)
    assert any("impl=wgmma" in label for label in offered)
    assert not [label for label in offered if "deep_gemm" in label]


@pytest.mark.parametrize(
    "command", [["tune", "--trials", "2", "--json"], ["record", "--free", "B0.tile:2", "--out", "r.gz", "--json"]]
)
def test_a_search_says_in_one_line_what_it_leaves_out_on_a_model_too(
    version, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    problem = [WORKLOAD.name, "--ops", "B0", "--m", "16", "--kv", "8192", "--backend", "sim", "--store", "x.db"]
    why = "mktune: without impl deep_gemm of B0: sgl-deep-gemm is not installed: pip install sgl-deep-gemm==0.1.5.post1"
    version(None)
    out, err = run(capsys, command[0], *problem, *command[1:])
    assert err.splitlines().count(why) == err.count("deep_gemm") == 1
    assert json.loads(out)["simulated"]


@installed
def test_with_the_package_a_search_says_nothing_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem = [WORKLOAD.name, "--ops", "B0", "--m", "16", "--kv", "8192", "--backend", "sim", "--trials", "2"]
    _, err = run(capsys, "tune", *problem, "--store", str(tmp_path / "x.db"))
    assert "without impl" not in err


@installed
def test_with_the_package_nothing_is_left_out() -> None:
    assert SearchSpace.load(WORKLOAD, None, SHAPE, H200).left_out == ()


def test_without_the_package_a_plan_that_runs_it_is_refused_in_one_line(version) -> None:
    version(None)
    plan = make_plan(WORKLOAD, ("A0", "B0"), SHAPE, "sm_90a", "serial", {"B0": PLAN})
    assert [str(one) for one in check(plan, H200)] == [
        "package: B0: sgl-deep-gemm is not installed: pip install sgl-deep-gemm==0.1.5.post1"
    ]
    with pytest.raises(SetupError, match=r"impl deep_gemm cannot be compiled: sgl-deep-gemm is not installed: pip"):
        build([KernelSpec("providers/deep_gemm/sm90_fp8_gemm.cu", "x")], "sm_90a")


@installed
def test_a_stored_plan_that_runs_it_is_served_only_where_it_is(version, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(WORKLOAD, ("A0", "B0"), SHAPE, "sm_90a", "serial", {"B0": PLAN})
    general = make_fingerprint(kernels_fingerprint(WORKLOAD.name, ("A0", "B0")), stored_values.H200)
    winner = make_winner(plan, fingerprint=fingerprint_of_plan(general, plan))
    monkeypatch.setattr(versions, "installed", lambda name: "0.1.5.post1")

    def found() -> Hit | Miss:
        return PlanBook.of([winner]).lookup(WORKLOAD.name, SHAPE, gpu=stored_values.H200, ops=("A0", "B0"))

    assert found()
    monkeypatch.setattr(versions, "installed", lambda name: "")
    version(None)
    missed = found()
    assert isinstance(missed, Miss)
    assert missed.reason == "packages"
    assert "sgl-deep-gemm 0.1.5.post1 (here not installed)" in missed.message


@installed
def test_without_the_package_another_plan_of_the_shape_is_served(version, monkeypatch: pytest.MonkeyPatch) -> None:
    general = make_fingerprint(kernels_fingerprint(WORKLOAD.name, ("A0", "B0")), stored_values.H200)
    needing, plain = (make_plan(WORKLOAD, ("A0", "B0"), SHAPE, "sm_90a", "serial", ops) for ops in ({"B0": PLAN}, {}))
    winners = [
        make_winner(plan, span, fingerprint=fingerprint_of_plan(general, plan))
        for plan, span in ((needing, 10.0), (plain, 11.0))
    ]
    for found, served in (("0.1.5.post1", needing), ("", plain)):
        monkeypatch.setattr(versions, "installed", lambda name, found=found: found)
        version(found or None)
        hit = PlanBook.of(winners).lookup(WORKLOAD.name, SHAPE, gpu=stored_values.H200, ops=("A0", "B0"))
        assert isinstance(hit, Hit)
        assert hit.plan == served


def test_another_version_is_not_used(version) -> None:
    version("0.1.6")
    assert deep_gemm.missing().startswith(
        "sgl-deep-gemm 0.1.6 is installed, and mktune knows the templates of 0.1.5.post1"
    )


@installed
@pytest.mark.parametrize("stand_in", [None, ModuleType("deep_gemm")], ids=["blocked", "empty"])
def test_a_stand_in_for_the_module_hides_no_headers(
    version, monkeypatch: pytest.MonkeyPatch, stand_in: ModuleType | None
) -> None:
    version(deep_gemm.VERSION)
    found = deep_gemm.include_folder()
    deep_gemm._find.cache_clear()
    monkeypatch.setitem(sys.modules, "deep_gemm", stand_in)
    assert deep_gemm.missing() == ""
    assert deep_gemm.include_folder() == found


def test_doctor_says_that_another_version_is_not_used(version, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DEEPGEMM", (deep_gemm.PACKAGE,))
    version("0.1.6")
    check = doctor._deep_gemm()
    assert check.state == doctor.ABSENT
    assert "0.1.6 is installed, and mktune knows the templates of 0.1.5.post1" in check.detail


def test_fields_of_a_config_are_looked_at_before_the_package(version) -> None:
    version(None)
    wrong = OpPlan.of("deep_gemm", {**dict(PLAN.config), "block_n": 24})
    assert [one.rule for one in all_ops()["qkv_a"].config_violations(wrong, SHAPE, H200)] == ["config"]


@installed
def test_headers_are_found_and_compiled_without_importing_the_package() -> None:
    code = (
        "import sys; from mktune import deep_gemm; from mktune.jit.source import load\n"
        "assert (deep_gemm.include_folder() / 'cutlass').is_dir()\n"
        "assert len(load('providers/deep_gemm/sm90_fp8_gemm.cu').files) > 10\n"
        "assert not {'deep_gemm', 'tvm_ffi', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@installed
def test_the_build_of_a_plan_depends_on_the_headers_where_it_runs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    own = make_plan(WORKLOAD, ("A0", "B0"), SHAPE, "sm_90a", "serial")
    plan = make_plan(WORKLOAD, ("A0", "B0"), SHAPE, "sm_90a", "serial", {"B0": PLAN})
    assert (Sources.of(own).provided, Sources.of(own).packages) == ((), ())
    assert Sources.of(plan).provided == ("B0",)
    assert Sources.of(plan).packages == (("sgl-deep-gemm", "0.1.5.post1"),)
    ours = kernels_fingerprint(WORKLOAD.name, ("A0", "B0"))
    theirs = kernels_fingerprint(WORKLOAD.name, ("A0", "B0"), provided=("B0",))
    assert ours != theirs
    monkeypatch.setattr(deep_gemm, "VERSION", "0.1.5.post2")
    assert kernels_fingerprint(WORKLOAD.name, ("A0", "B0"), provided=("B0",)) != theirs
    assert kernels_fingerprint(WORKLOAD.name, ("A0", "B0")) == ours


@installed
def test_headers_of_two_packages_need_not_share_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {"cudart": "/runtime/include", "cccl": "/toolkit/include/cccl"}
    monkeypatch.setattr("cuda.pathfinder.find_nvidia_header_directory", places.get)
    nvrtc._include_folders.cache_clear()
    try:
        folders = [flag.removeprefix("--include-path=") for flag in nvrtc._include_folders()]
    finally:
        nvrtc._include_folders.cache_clear()
    # <cuda/std/utility> and <cccl/cuda/std/utility>, which are the same file
    assert folders == [str(deep_gemm.include_folder()), "/runtime/include", "/toolkit/include/cccl", "/toolkit/include"]


@installed
@pytest.mark.parametrize(("kv", "refused"), [(262, True), (263, False)])
def test_scores_of_rows_that_see_too_little_are_refused(kv: int, refused: bool) -> None:
    shape, op = Shape(2, 8, kv), workload("glm52_attention_prefix").graph.calls["E1"].op
    assert isinstance(op, WithDeepGemm)
    found = op.config_violations(op.heuristic(shape, H200), shape, H200)
    assert [violation.rule for violation in found] == ["kv"] * refused
    if refused:
        assert "a request's first row sees 255 tokens" in found[0].message


@pytest.mark.parametrize("command", ["run", "trace"])
def test_running_a_plan_whose_package_is_missing_is_this_machines_lack(
    version, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version(None)
    plan = make_plan(WORKLOAD, ("A0", "B0"), SHAPE, "sm_90a", "serial", {"B0": PLAN})
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_dict()))
    _, err = run(capsys, command, str(tmp_path / "plan.json"), "--backend", "sim", code=3)
    assert err == f"mktune: error: plan {plan.short_id} cannot run here: B0: {deep_gemm.missing()}\n"


def test_what_is_wrong_with_a_plan_comes_before_a_package_that_is_missing(version) -> None:
    version(None)
    wrong = OpPlan.of("mktune", {"threads": 7})
    plan = make_plan(WORKLOAD, ("A0", "B0"), SHAPE, "sm_90a", "serial", {"B0": PLAN})
    plan = replace(plan, ops=(("A0", wrong), *plan.ops[1:]))
    assert {one.rule for one in check(plan, H200)} == {"config", "package"}
    with pytest.raises(PlanError, match="config: A0"):
        refuse_invalid({"it": plan}, H200)


def test_doctor_and_the_check_of_a_plan_give_the_same_hint(
    version, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version(None)
    said = doctor._deep_gemm().detail
    assert said == deep_gemm.missing()
    path = tmp_path / "plan.json"
    path.write_text(make_plan(WORKLOAD, ("A0", "B0"), SHAPE, "sm_90a", "serial", {"B0": PLAN}).json)
    out, _ = run(capsys, "show", str(path), "--check", "--json", code=1)
    assert said in {violation["message"] for violation in json.loads(out)["violations"]}
