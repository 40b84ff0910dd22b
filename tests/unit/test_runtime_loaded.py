"""A loaded plan hands its stream and its addresses to the graph and to the launches alike. The driver is not asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import pytest

torch = pytest.importorskip("torch")

from mktune.device import Device  # noqa: E402
from mktune.errors import CandidateError  # noqa: E402
from mktune.executors.torch_memory import allocate  # noqa: E402
from mktune.graph.builtin import make_plan  # noqa: E402
from mktune.graph.workload import workload  # noqa: E402
from mktune.runtime import replay  # noqa: E402
from mktune.shape import Shape  # noqa: E402

H200 = Device("NVIDIA H200", "sm_90a", 132, 232448, 60 << 20, 4.8e12)
KNOWN = workload("glm52_attention_prefix")
GRAPH = KNOWN.subgraph(("A0", "B0"))
SHAPE = Shape.from_m(2, 128)


class Executor:
    """Notes what is asked of it in `log`."""

    log: ClassVar[list[tuple[object, ...]]] = []
    stricter = (("A0", "B0p", "launch_order", "programmatic"),)

    def __init__(self, lowered, kernels, buffers):
        self.name = type(self).__name__
        self.log.append((self.name, "built", buffers.layers[0]["x"]))

    def replay(self, stream):
        self.log.append((self.name, "replay", stream))

    def rebind(self, buffers):
        self.log.append((self.name, "rebind", buffers.layers[0]["x"]))

    def close(self):
        self.log.append((self.name, "close"))


class Graph(Executor):
    pass


class Launches(Executor):
    pass


@pytest.fixture
def log(monkeypatch):
    found: list[tuple[object, ...]] = []
    monkeypatch.setattr(Executor, "log", found)
    monkeypatch.setattr(replay, "CudaGraph", Graph)
    monkeypatch.setattr(replay, "Streams", Launches)
    monkeypatch.setattr(replay, "build", lambda specs, arch, facts: [])
    monkeypatch.setattr(replay, "compiled_for", lambda specs, built: {})
    monkeypatch.setattr(replay, "use_device", lambda index: None)
    monkeypatch.setattr(replay, "check_tensors", lambda *checked: None)
    monkeypatch.setattr(replay, "workspaces", lambda *asked: {})
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: SimpleNamespace(cuda_stream=100 + index))
    return found


def loaded(index=0):
    tensors = {name: allocate(spec, SHAPE, "cpu") for name, spec in GRAPH.tensors.items()}
    plan = make_plan(KNOWN, ("A0", "B0"), SHAPE, "sm_90a", "serial")
    return replay.LoadedPlan(plan, SHAPE, GRAPH, tensors, H200, index)


@pytest.mark.parametrize(("way", "executor"), [("replay", "Graph"), ("launch", "Launches")])
@pytest.mark.parametrize(("stream", "address"), [(None, 103), (0, 0), (7, 7), (SimpleNamespace(cuda_stream=9), 9)])
def test_a_stream_may_be_given_in_any_form(log, way, executor, stream, address):
    getattr(loaded(index=3), way)(stream)
    assert log[-1] == (executor, "replay", address)


def test_both_ways_run_on_the_same_memory_and_take_other_tensors_together(log):
    plan = loaded()
    first = plan.tensors["x"].data_ptr()
    other = torch.empty_like(plan.tensors["x"])
    plan.rebind({"x": other})
    assert log == [
        ("Graph", "built", first),
        ("Launches", "built", first),
        ("Graph", "rebind", other.data_ptr()),
        ("Launches", "rebind", other.data_ptr()),
    ]


def test_closing_frees_both_and_stricter_edges_are_told(log):
    with loaded() as plan:
        assert plan.stricter == Executor.stricter
    assert {entry[0] for entry in log if entry[1] == "close"} == {"Graph", "Launches"}


def test_launches_that_cannot_be_built_leave_no_graph(log, monkeypatch):
    def refuse(*given):
        raise CandidateError("build_error", "cuStreamCreate: out of memory")

    monkeypatch.setattr(replay, "Streams", refuse)
    with pytest.raises(CandidateError, match="cuStreamCreate"):
        loaded()
    assert log[-1] == ("Graph", "close")
