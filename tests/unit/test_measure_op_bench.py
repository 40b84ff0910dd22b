"""Ops alone: which plans are measured, and what becomes of their times."""

from __future__ import annotations

import json

import pytest
from command_line import run
from test_scale_format_key import unimplemented

from mktune.backends.models import KNOWN
from mktune.errors import CandidateError
from mktune.graph.workload import workload
from mktune.jit.build import build
from mktune.lowering.kernel_graph import specs_of
from mktune.measure import op_bench
from mktune.measure.op_bench import MODES, op_table, plans
from mktune.measure.stream import RINGS, graphs
from mktune.shape import Shape
from mktune.trial import Measurement, Outcome, Policy, Status
from mktune.validity import check

__all__ = ["unimplemented"]

PREFIX = workload("glm52_attention_prefix")
H200 = KNOWN["h200"]
SHAPE = Shape.from_m(16, 8192)


@pytest.mark.parametrize("op", PREFIX.ops)
def test_every_plan_may_be_built_and_configs_are_different(op):
    chosen = list(plans(PREFIX, op, SHAPE, H200, 6, seed=3))
    provided = op_bench._provided(PREFIX.graph.calls[op].op, SHAPE, H200)
    assert all(check(plan, H200) == [] for _, _, plan in chosen)
    configs = dict.fromkeys(plan.op[op] for _, _, plan in chosen)
    assert 1 < len(configs) <= 7 + len(provided)
    assert [*configs][1 : 1 + len(provided)] == provided
    assert next(iter(configs)) == PREFIX.graph.calls[op].op.default("sm_90a")
    for mode, is_default, plan in chosen:
        assert is_default == (plan.op[op] == next(iter(configs)))
        assert mode == MODES[0] or len(plan.kernels) == 2
        assert set(plan.edge.values()) <= {"full" if mode == MODES[0] else "programmatic"}
    assert chosen == list(plans(PREFIX, op, SHAPE, H200, 6, seed=3))
    fixed = [PREFIX.graph.calls[op].op.kernels(config) for config in [*configs][: 1 + len(provided)]]
    assert len(list(plans(PREFIX, op, SHAPE, H200, 0, seed=3))) == sum(map(len, fixed))


class FakeBench:
    """Times that follow from the mode; the peer has nothing for A0, and pdl is wrong for B1."""

    cold_bytes = 1000

    def __init__(self, problem):
        self.problem, self.ops = problem, problem.ops

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def alone(self, ops):
        return FakeBench(self.problem.part(ops))

    def stream_limit(self, size):
        return size / 4e6

    def peer(self, op):
        if op == "A0":
            raise CandidateError(Status.BUILD_ERROR, "KeyError: add_rmsnorm_quant")
        return 10.0

    def prepare(self, plans):
        assert {plan.op_names for plan in plans} == {self.ops}

    def measure(self, plan, incumbent_us):
        assert incumbent_us is None
        early = "programmatic" in plan.edge.values()
        if early and self.ops == ("B1",):
            return Outcome(Status.WRONG_RESULT, "k: 3 rows differ")
        us = 4.0 if early else 5.0
        return Outcome(Status.OK, "", Measurement(us, us - 0.1, us + 0.1, (us,), Policy("cuda", layers=8)))


class FakeBackend:
    device = H200

    def __init__(self, *args):
        self.opened = []

    def open(self, problem):
        problem.known.require_implementations(problem.ops, self.device.arch)
        self.opened.append(problem.ops)
        return FakeBench(problem)


@pytest.fixture
def nothing_provided(monkeypatch):
    """As where DeepGEMM is not installed."""
    monkeypatch.setattr(op_bench, "_provided", lambda op, shape, device: [])


def test_rows_are_sorted_by_time_and_failures_come_last(nothing_provided):
    backend = FakeBackend()
    rows, missing = op_table(backend, PREFIX.name, ("B0", "B1", "A0"), SHAPE, 0)
    assert backend.opened == [PREFIX.ops]
    assert [(row.op, row.mode, row.us) for row in rows] == [
        ("B0", "serial+pdl", 4.0), ("B0", "serial", 5.0), ("B1", "serial", 5.0), ("B1", "serial+pdl", None),
        ("A0", "serial", 5.0),
    ]  # fmt: skip
    assert [row.peer_us for row in rows] == [10.0] * 4 + [None]
    assert missing == {"A0": "KeyError: add_rmsnorm_quant"}
    assert rows[3].reason == "k: 3 rows differ"
    assert rows[0].limit_us == PREFIX.graph.calls["B0"].op.bytes_read(SHAPE) / 4e6


def test_the_command_prints_a_table_or_json(capsys, monkeypatch, nothing_provided):
    monkeypatch.setattr("mktune.backends.cuda.CudaBackend", FakeBackend)
    out, _ = run(capsys, "bench-ops", "--m", "16", "--ops", "B0,A0")
    lines = [line.split() for line in out.splitlines()]
    assert lines[2][:7] == ["B0", "4.00", "4.03", "0.99", "10.00", "0.40", "pdl"]
    assert any("no peer for A0: KeyError" in line for line in out.splitlines())
    out, _ = run(capsys, "bench-ops", "--ops", "B0", "--json")
    found = json.loads(out)
    assert (found["m"], found["kv"], found["gpu"]) == (16, 8192, "NVIDIA H200")
    assert [row["us"] for row in found["rows"]] == [4.0, 5.0]
    assert found["rows"][0]["config"]["impl"] == "wgmma"


@pytest.mark.usefixtures("unimplemented")
def test_a_format_that_some_ops_lack_is_measured_of_the_others_one_by_one(capsys, monkeypatch, nothing_provided):
    """D2 and C0 are not connected, and no process can have an op that nothing computes."""
    backend = FakeBackend()
    rows, _ = op_table(backend, PREFIX.name, ("D2", "C0"), SHAPE, 0, scale_format="ue8m0")
    assert [(row.op, row.plan.scale_format) for row in rows] == [("D2", "ue8m0"), ("C0", "ue8m0")]
    assert backend.opened == [("D2",), ("C0",)]
    monkeypatch.setattr("mktune.backends.cuda.CudaBackend", FakeBackend)
    out, _ = run(capsys, "bench-ops", "--ops", "D2,C0", "--scale-format", "ue8m0", "--json")
    assert json.loads(out)["scale_format"] == "ue8m0"
    out, _ = run(capsys, "bench-ops", "--ops", "D2,C0", "--scale-format", "ue8m0")
    assert out.startswith(f"{PREFIX.name} ue8m0, M 16")


@pytest.mark.usefixtures("unimplemented")
@pytest.mark.parametrize(
    ("ops", "lacking"), [(("--ops", "C0,B0"), "B0"), ((), "A0, B0, B1, D0, D1")], ids=lambda each: str(each)
)
def test_a_format_that_nothing_computes_is_refused_before_anything_is_measured(capsys, monkeypatch, ops, lacking):
    monkeypatch.setattr("mktune.backends.cuda.CudaBackend", FakeBackend)
    monkeypatch.setattr(FakeBackend, "open", lambda *args: pytest.fail("the device was asked for"))
    _, error = run(capsys, "bench-ops", *ops, "--scale-format", "ue8m0", code=2)
    assert error.startswith(f"mktune: error: no implementation of {lacking} computes scale_format ue8m0 on sm_90a")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "args", [("--ops", "Z9"), ("--scale-format", "ue9"), ("--m", "0"), ("--all", "--configs", "0")]
)
def test_bad_input_is_refused_without_a_gpu(capsys, args):
    run(capsys, "bench-ops", *args, code=2)


def test_without_a_gpu_the_command_says_so(capsys):
    _, error = run(capsys, "bench-ops", "--ops", "B0", code=3)
    assert "bench-ops needs a GPU" in error


def test_the_limit_is_tried_with_every_ring_that_fits_and_reads_every_byte(tmp_path):
    found = graphs(16_121_856, H200)
    assert len({launch.kernel for graph in found for _, launch in graph.launches}) == len(RINGS)
    for graph in found:
        ((_, launch),) = graph.launches
        chunk = launch.smem // int(launch.kernel.name_expression.split(", ")[1].rstrip(">"))
        assert launch.args[1].value * chunk >= 16_121_856 > (launch.args[1].value - 1) * chunk
    kernels = build(list({spec for graph in found for spec in specs_of(graph)}), "sm_90a", cache_dir=tmp_path)
    for kernel in kernels:
        assert kernel.spill_bytes == 0
        assert kernel.facts is not None
        assert kernel.facts.tma
