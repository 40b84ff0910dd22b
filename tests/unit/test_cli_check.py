"""`show --check` says of any plan whether it may be built, and names everything that is wrong with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import run

from mktune.graph.builtin import make_plan
from mktune.plan import OpPlan, Plan
from tests.oracle.plans import H200, SHAPE, WORKLOAD, place


def written(folder: Path, plan: Plan) -> str:
    path = folder / "plan.json"
    path.write_text(plan.json)
    return str(path)


def early_pages() -> Plan:
    """E1 reads pages before its wait, and no full edge says that B1 has written them."""
    return place(make_plan(WORKLOAD, None, SHAPE, H200.arch, "branches+pdl"), E1={"gdc": "prefetch"})


def test_a_right_plan_may_be_built(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "show", "branches", "--check")
    assert "may be built for sm_90a" in out
    assert "direct edge" not in out
    out, _ = run(capsys, "show", "branches+pdl", "--check")
    assert "30 of its orders hold only because a kernel in between waits" in out
    document = json.loads(run(capsys, "show", "branches+pdl", "--check", "--json")[0])
    assert len(document["transitive"]) == 30
    assert "A0 writes h_q, h_s after its wait" in {each["message"].partition(";")[0] for each in document["transitive"]}


def test_every_violation_is_printed_and_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = early_pages()
    deep = {op: OpPlan.of("wgmma", {**dict(plan.op[op].config), "split_k": 5}) for op in ("B0", "D1")}
    wrong = replace(plan, ops=tuple({**plan.op, **deep}.items()), contract=9)
    out, _ = run(capsys, "show", written(tmp_path, wrong), "--check", code=1)
    assert "must not be built for sm_90a" in out
    assert [line.split(": ")[:2] for line in out.splitlines()[2:]] == [
        ["  contract", WORKLOAD.name],
        ["  config", "B0"],
        ["  config", "D1"],
    ]
    out, _ = run(capsys, "show", written(tmp_path, early_pages()), "--check", "--json", code=1)
    said = json.loads(out)
    assert [(v["rule"], v["where"]) for v in said["violations"]] == [("read_after_write", "B1f->E1")]
    assert said["transitive"] == []


def test_a_plan_is_judged_for_another_architecture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = make_plan(WORKLOAD, ("A0", "B0"), SHAPE, "sm_90a", "serial")
    run(capsys, "show", written(tmp_path, plan), "--check")
    out, _ = run(capsys, "show", written(tmp_path, plan), "--check", "--arch", "sm_103a", code=1)
    assert "impl: B0: qkv_a has no impl 'wgmma' on sm_103a" in out
    _, err = run(capsys, "show", written(tmp_path, plan), "--arch", "sm_103a", code=2)
    assert "--arch only make" in err


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["edges"].update({"A0->Z": "full"}),
        lambda data: data["edges"].update({"A0->B0p": "sometimes"}),
        lambda data: data["kernels"]["A0"].update(gdc="never"),
        lambda data: data["kernels"]["A0"].pop("trigger"),
        lambda data: data.update(order=["A0"]),
        lambda data: data.update(surprise=1),
    ],
)
@pytest.mark.parametrize("command", [("show",), ("show", "--check"), ("run", "--backend", "sim")])
def test_a_malformed_file_gets_one_line_and_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...], change: object
) -> None:
    data = json.loads(make_plan(WORKLOAD, ("A0", "B0"), SHAPE, "sm_90a", "serial").json)
    change(data)  # type: ignore[operator]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    _, err = run(capsys, command[0], str(path), *command[1:], code=2)
    assert err.count("\n") == 1
    assert str(path) in err


def test_run_refuses_a_plan_that_the_check_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = run(capsys, "run", written(tmp_path, early_pages()), "--backend", "sim", code=2)
    assert err.count("\n") == 1
    assert "read_after_write: B1f->E1" in err
    far = replace(early_pages(), workload="nothing")
    _, err = run(capsys, "run", written(tmp_path, far), "--backend", "sim", code=2)
    assert "unknown workload 'nothing'" in err
