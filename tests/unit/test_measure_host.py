"""The worker's host brings one problem after the other into memory, and never holds two."""

from __future__ import annotations

import random
import weakref
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mktune.backends.models import KNOWN  # noqa: E402
from mktune.errors import CandidateError, InputError  # noqa: E402
from mktune.graph.builtin import make_plan  # noqa: E402
from mktune.graph.workload import workload  # noqa: E402
from mktune.measure import host as module  # noqa: E402
from mktune.measure.host import CudaHost  # noqa: E402
from mktune.measure.memory import make_memory  # noqa: E402
from mktune.shape import Shape  # noqa: E402

LAYERS = {("A0",): 3, ("C0",): 2, ("A0", "C0"): 2}


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> CudaHost:
    """A host whose device is the CPU, and few layers."""
    monkeypatch.setattr(module, "layers_for", lambda graph, shape, device: LAYERS[tuple(graph.calls)])
    made = CudaHost.__new__(CudaHost)
    made._device, made._workload, made._shape = KNOWN["h200"], workload("glm52_attention_prefix"), Shape(1, 4, 64)
    made._seed, made._place, made._held, made._spoilt = 5, "cpu", None, False
    made._timer = SimpleNamespace(layers=0)  # type: ignore[assignment]
    return made


def test_the_problem_before_is_freed_before_the_next_is_made(host: CudaHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host._do_open(["A0"])
    assert (list(host._opened.graph.calls), host._timer.layers, host._opened.memory.layers) == (["A0"], 3, 3)
    before = weakref.ref(host._opened.memory)
    alive: list[Any] = []
    monkeypatch.setattr(module, "make_memory", lambda *args: alive.append(before()) or make_memory(*args))
    host._do_open(["C0"])
    assert alive == [None]
    assert (list(host._opened.graph.calls), host._timer.layers) == (["C0"], 2)


def test_the_same_ops_in_any_order_are_the_same_problem_with_what_it_knows(host: CudaHost) -> None:
    host._do_open(["A0", "C0"])
    opened = host._opened
    host._do_open(["C0", "A0"])
    assert host._opened is opened


def test_a_problem_that_comes_back_has_the_same_inputs(host: CudaHost) -> None:
    host._do_open(["A0"])
    first = {name: tensor.clone() for name, tensor in host._opened.memory.args.items()}
    host._do_open(["C0"])
    host._do_open(["A0"])
    assert all(torch.equal(tensor, first[name]) for name, tensor in host._opened.memory.args.items())


def test_a_problem_that_does_not_fit_leaves_none_and_the_next_is_opened(
    host: CudaHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host._do_open(["A0"])

    def full(*args: object) -> None:
        raise MemoryError("too large")

    with monkeypatch.context() as patched:
        patched.setattr(module, "make_memory", full)
        with pytest.raises(MemoryError):
            host._do_open(["C0"])
    with pytest.raises(AssertionError, match="no problem was opened"):
        _ = host._opened
    host._do_open(["A0"])
    assert list(host._opened.graph.calls) == ["A0"]
    with pytest.raises(InputError, match="unknown op"):
        host._do_open(["Z9"])
    assert list(host._opened.graph.calls) == ["A0"]


def asked(host: CudaHost, monkeypatch: pytest.MonkeyPatch, raises: Exception | None, fault: Exception | None) -> None:
    """One request, which ends with `raises`; its kernels' fault shows when the device is waited for."""

    def verify(plan: str) -> dict[str, Any]:
        if raises:
            raise raises
        return {}

    def synchronize() -> None:
        if fault:
            raise fault

    monkeypatch.setattr(host, "_do_verify", verify)
    monkeypatch.setattr(module, "synchronize", synchronize)
    host.handle({"do": "verify", "plan": ""})


@pytest.mark.parametrize("raises", [None, RuntimeError("CUDA error"), CandidateError("wrong_result", "h_q")])
def test_a_fault_that_shows_late_is_charged_to_the_plan_that_ran(
    host: CudaHost, monkeypatch: pytest.MonkeyPatch, raises: Exception | None
) -> None:
    with pytest.raises(CandidateError) as caught:
        asked(host, monkeypatch, raises, CandidateError("illegal_access", "cuCtxSynchronize: illegal address"))
    assert caught.value.status == "illegal_access"  # whatever was noticed first: the process must end


def test_what_a_wrong_plan_may_have_written_over_is_made_anew(host: CudaHost, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host._do_open(["A0"]) == {"made": True}
    first = {name: tensor.clone() for name, tensor in host._opened.memory.args.items()}
    asked(host, monkeypatch, None, None)
    assert host._do_open(["A0"]) == {"made": False}
    with pytest.raises(CandidateError):
        asked(host, monkeypatch, CandidateError("noisy", "the clock moved"), None)
    assert host._do_open(["A0"]) == {"made": False}
    for tensor in host._opened.memory.args.values():
        tensor.zero_()
    with pytest.raises(CandidateError):
        asked(host, monkeypatch, CandidateError("wrong_result", "h_q"), None)
    assert host._do_open(["A0"]) == {"made": True}
    assert all(torch.equal(tensor, first[name]) for name, tensor in host._opened.memory.args.items())
    assert host._do_open(["A0"]) == {"made": False}


def test_only_launches_behind_one_of_the_same_graph_count(host: CudaHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def sample(graphs: list[str]) -> list[float]:
        before = ["", *graphs]
        return [1.0 if graph == before[place] else 9.0 for place, graph in enumerate(graphs)]

    host._timer = SimpleNamespace(sample=sample)  # type: ignore[assignment]
    monkeypatch.setattr(host, "_timed", nullcontext)
    found = host._palindromes({"a": ("A",), "b": ("B",), "c": ("C",)}, 4)  # type: ignore[dict-item]
    assert found == dict.fromkeys("abc", [1.0] * 4)


def test_every_build_has_its_activations_elsewhere(host: CudaHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host._do_open(["A0"])
    host._draw = random.Random(3)
    host._timer = SimpleNamespace(stream=SimpleNamespace(cuda_stream=0))  # type: ignore[assignment]
    built: list[Any] = []

    def build(lowered: object, kernels: object, buffers: object) -> Any:
        built.append(buffers)
        return nullcontext(SimpleNamespace(upload=lambda stream: None))

    monkeypatch.setattr(module, "EXECUTABLES", {"cuda_graph": build})
    plan = make_plan(host._workload, ["A0"], host._shape, "sm_90a", "serial")
    with host._timed(plan, None, {}), host._timed(plan, None, {}):  # type: ignore[arg-type]
        one, other = (buffers.layers for buffers in built)
    bound = {name for name, spec in host._opened.graph.tensors.items() if spec.kind in ("weight", "cache")}
    for mine, theirs in zip(one, other, strict=True):
        assert {name for name in mine if mine[name] == theirs[name]} == bound & mine.keys()
