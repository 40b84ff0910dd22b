"""The commands that look at this machine: doctor, compile, run on the model, edge without a GPU."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from test_store_migrations import RELEASED, restored

from mktune.cli import doctor
from mktune.device import ARCHITECTURES
from mktune.errors import CandidateError
from mktune.location import SCHEMA
from mktune.trial import Status

pytestmark = pytest.mark.usefixtures("no_gpu")


def states(text: str) -> dict[str, str]:
    return {check["name"]: check["state"] for check in json.loads(text)["checks"]}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_compile_reports_the_machine_code_of_every_kernel(capsys: pytest.CaptureFixture[str], arch: str) -> None:
    out, _ = run(capsys, "compile", "--ops", "A0,B0", "--arch", arch, "--json")
    document: dict[str, Any] = json.loads(out)
    assert document["arch"] == arch
    found = {(kernel["kernel"], kernel["plan"]): kernel for kernel in document["kernels"]}
    assert {name for name, _ in found} == {"A0", "B0p", "B0f"}
    assert all(kernel["spill_bytes"] == 0 and kernel["registers"] > 0 for kernel in found.values())
    assert all(kernel["sass"]["unproven_loads"] == 0 for kernel in found.values())
    early, serial = found["B0p", "branches+pdl"]["sass"], found["B0p", "serial"]["sass"]
    assert early["mma"] == (["QGMMA"] if arch == "sm_90a" else ["HMMA"])
    assert (early["trigger"], serial["trigger"]) == ("before_wait", "exit")
    assert early["loads_before_wait"] > 0
    assert serial["loads_before_wait"] == 0
    assert found["B0p", "branches+pdl"]["early_buffers"] == ["W_a", "W_a_s"]
    assert found["B0p", "serial"]["early_buffers"] == []
    assert (early["trigger_place"], serial["trigger_place"]) == ("start", "exit")
    assert early["unproven"] == []
    assert all(kernel["sass"]["local_accesses"] == 0 for kernel in found.values())
    assert early["waits"] == serial["waits"] == "always"


def test_compile_table_and_wrong_input(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run(capsys, "compile", "--arch", "sm_90a")
    assert "QGMMA" in out
    assert "no kernels yet" in err or err == ""
    for args in (["--arch", "sm_75"], ["--ops", "Z"], ["nope"], ["--m", "0"]):
        _, err = run(capsys, "compile", *args, code=2)
        assert err.count("\n") == 1


def test_doctor_is_content_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "doctor", "--json")
    found = states(out)
    assert found["GPU"] in ("absent", "broken")  # broken where there are GPUs that the test hides
    assert found["compiler"] == "ok"
    assert found["store"] == "ok"
    out, _ = run(capsys, "doctor")
    assert "no NVIDIA driver" in out


def test_doctor_finds_a_damaged_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "x.db"
    place.write_bytes(b"\0" * 4096)
    out, err = run(capsys, "doctor", "--store", str(place), "--json", code=3)
    assert states(out)["store"] == "broken"
    assert "store" in err
    assert place.read_bytes() == b"\0" * 4096


def test_doctor_finds_a_cache_that_cannot_be_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MKTUNE_CACHE_DIR", "/proc/version/x")
    out, _ = run(capsys, "doctor", "--json", code=3)
    assert states(out)["kernel cache"] == "broken"


def test_doctor_finds_a_compiler_that_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args: object) -> None:
        raise CandidateError(Status.COMPILE_ERROR, "internal error")

    monkeypatch.setattr("mktune.jit.nvrtc.compile_program", failing)
    out, _ = run(capsys, "doctor", "--json", code=3)
    assert states(out)["compiler"] == "broken"


def test_doctor_finds_missing_core_packages(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "CORE", ("optuna", "no-such-package"))
    out, _ = run(capsys, "doctor", "--json", code=3)
    assert states(out)["core packages"] == "broken"


def test_run_on_the_model_says_simulated(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    question = ["run", "serial+pdl", "--ops", "A0,B0", "--m", "16", "--kv", "8192", "--backend", "sim"]
    out, _ = run(capsys, *question)
    assert out.count("simulated") >= 2
    out, _ = run(capsys, *question, "--json")
    document = json.loads(out)
    assert document["simulated"]
    assert document["status"] == "ok"
    assert document["measurement"]["span_us"] > 0
    assert not (Path(os.environ["MKTUNE_HOME"])).exists()


def test_run_refuses_a_plan_that_is_not_valid(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from mktune.graph.builtin import make_plan
    from mktune.graph.workload import workload
    from mktune.shape import Shape

    data = make_plan(
        workload("glm52_attention_prefix"), ("A0", "B0"), Shape.from_m(16, 8192), "sm_90a", "serial"
    ).to_dict()
    data["ops"]["B0"]["config"]["split_k"] = 5
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    _, err = run(capsys, "run", str(path), "--backend", "sim", code=2)
    assert "split_k" in err


def test_edge_wants_two_ops_with_an_edge_and_a_gpu_where_it_is_told_so(
    capsys: pytest.CaptureFixture[str], no_gpu: None
) -> None:
    _, err = run(capsys, "edge", "A0", "B0", "--backend", "cuda", code=3)
    assert err.startswith("mktune: error: ")
    for args in (["A0", "Z"], ["B0", "A0"], ["A0", "E1"], ["A0", "B0", "--m", "0"], ["A0", "B0", "--m", "a"]):
        _, err = run(capsys, "edge", *args, code=2)
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("ops", "workload", "waits"), [("A0 B0", "glm52_attention_prefix", 3), ("G N", "gemm_rmsnorm", 2)]
)
def test_edge_has_a_line_for_each_wait_and_says_what_the_edge_should_be(
    capsys: pytest.CaptureFixture[str], ops: str, workload: str, waits: int
) -> None:
    args = ["edge", *ops.split(), "--workload", workload, "--m", "16,128", "--backend", "sim"]
    out, _ = run(capsys, *args)
    lines = out.splitlines()
    assert lines[0].startswith(f"{workload} {ops.replace(' ', ' → ')}, KV 8192, NVIDIA H200 simulated")
    assert len(lines) == 1 + 1 + 2 * waits + 1 + 1 + 2
    out, _ = run(capsys, *args, "--json")
    document = json.loads(out)
    assert (document["gpu"], document["simulated"]) == ("NVIDIA H200", True)
    assert [row["m"] for row in document["rows"]] == [16] * waits + [128] * waits
    row, choice = document["rows"][0], document["choices"][0]
    assert lines[2].split()[:6] == [
        "16",
        "entry",
        row["trigger"],
        *(f"{row[k]:.2f}" for k in ("off_us", "on_us", "saved_us")),
    ]
    assert lines[-2].split()[:3] == ["16", choice["kind"], f"{choice['saved']['median']:.2f}"]


def test_doctor_finds_a_home_that_nobody_has(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MKTUNE_CACHE_DIR", "~nobody-of-that-name/x")
    out, _ = run(capsys, "doctor", "--json", code=3)
    assert states(out)["kernel cache"] == "broken"


@pytest.mark.parametrize("command", [["tune", "glm52_attention_prefix", "--m", "1", "--kv", "8"], ["run", "serial"]])
@pytest.mark.parametrize("seed", ["-1", str(2**32), "9" * 30])
def test_a_seed_out_of_range_is_wrong_input(capsys: pytest.CaptureFixture[str], command: list[str], seed: str) -> None:
    _, err = run(capsys, *command, "--backend", "sim", "--seed", seed, code=2)
    assert "--seed" in err


@pytest.mark.parametrize("dump", RELEASED, ids=lambda dump: dump.stem)
def test_doctor_is_content_with_a_store_of_every_schema(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = restored(dump, tmp_path / "x.db")
    before = place.read_bytes()
    checks = json.loads(run(capsys, "doctor", "--store", str(place), "--json")[0])["checks"]
    (found,) = [check for check in checks if check["name"] == "store"]
    assert found["state"] == "ok"
    old = f"schema {dump.stem[-4:]}, which look-ups read; the next `mktune tune` with it upgrades it to {SCHEMA}"
    assert (old in found["detail"]) == (dump != RELEASED[-1])
    assert "1 measured and 0 simulated winners" in found["detail"]
    assert place.read_bytes() == before
