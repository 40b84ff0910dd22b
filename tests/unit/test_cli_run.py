"""`mktune run --executor`: the plan as a graph or as launches, said in what is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run

from mktune.graph.builtin import make_plan
from mktune.graph.workload import workload
from mktune.plan import Plan
from mktune.shape import Shape

QUESTION = ("run", "branches+pdl", "--ops", "A0,B0", "--backend", "sim")


@pytest.mark.parametrize(("executor", "how"), [("cuda_graph", "in one graph"), ("streams", "captured into one graph")])
def test_the_executor_and_what_is_timed_are_said(capsys: pytest.CaptureFixture[str], executor: str, how: str) -> None:
    out, _ = run(capsys, *QUESTION, "--executor", executor)
    rows = dict(line.split(maxsplit=1) for line in out.splitlines() if " " in line)
    assert rows["executor"].strip() == executor
    assert how in rows["policy"]
    assert ("captured" in out) == (executor == "streams")


def test_the_plan_keeps_its_id_whatever_runs_it(capsys: pytest.CaptureFixture[str]) -> None:
    said = [json.loads(run(capsys, *QUESTION, "--json", *more)[0]) for more in ((), ("--executor", "streams"))]
    assert [document["executor"] for document in said] == ["cuda_graph", "streams"]
    assert said[0]["plan_id"] == said[1]["plan_id"]


def test_a_plan_names_its_own_executor(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = make_plan(workload("glm52_attention_prefix"), ("A0", "B0"), Shape.from_m(16, 8192), "sm_90a", "serial+pdl")
    data = {**plan.to_dict(), "executor": "streams"}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    document = json.loads(run(capsys, "run", str(path), "--backend", "sim", "--json")[0])
    assert document["executor"] == "streams"
    assert document["plan_id"] == Plan.from_dict(data).plan_id != plan.plan_id


@pytest.mark.parametrize("value", ["graph", "", "STREAMS", "cuda_graph,streams"])
def test_an_unknown_executor_is_one_line(capsys: pytest.CaptureFixture[str], value: str) -> None:
    out, err = run(capsys, *QUESTION, "--executor", value, code=2)
    assert out == ""
    assert err == f"mktune: error: --executor {value!r} is unknown; allowed: cuda_graph, streams\n"


@pytest.mark.parametrize("command", ["run", "trace", "show"])
@pytest.mark.parametrize(
    "given",
    [("--m", "16"), ("--kv", "8192"), ("--ops", "A0,B0"), ("--tokens-per-request", "8"), ("--scale-format", "fp32"),
     ("--workload", "glm52_attention_prefix")],
)  # fmt: skip
def test_what_makes_a_built_in_plan_is_refused_beside_another(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, given: tuple[str, str]
) -> None:
    plan = make_plan(workload("glm52_attention_prefix"), ("A0", "B0"), Shape.from_m(16, 8192), "sm_90a", "serial+pdl")
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_dict()))
    for name in (str(tmp_path / "plan.json"), "17f86a21"):
        _, err = run(capsys, command, name, *given, code=2)
        assert err.startswith(f"mktune: error: {given[0]} only make a built-in plan (serial, ")
