"""Which kernels the probe puts behind a late producer, what it writes late, and what refutes one. Launches are scripted
on the CPU's memory."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mktune.device import Device  # noqa: E402
from mktune.errors import CandidateError  # noqa: E402
from mktune.graph.builtin import make_plan  # noqa: E402
from mktune.graph.workload import workload  # noqa: E402
from mktune.launch import CompiledKernel, KernelSpec  # noqa: E402
from mktune.lowering.graph import lower  # noqa: E402
from mktune.lowering.kernel_graph import specs_of  # noqa: E402
from mktune.measure import probe as module  # noqa: E402
from mktune.measure.memory import make_memory  # noqa: E402
from mktune.measure.probe import PRODUCER, WITNESS, Probe, ran_ahead  # noqa: E402
from mktune.ops.evaluate import evaluate  # noqa: E402
from mktune.shape import Shape  # noqa: E402

KNOWN = workload("glm52_attention_prefix")
GRAPH = KNOWN.subgraph(("A0", "B0"))
SHAPE = Shape.from_m(2, 128)
H200 = Device("NVIDIA H200", "sm_90a", 132, 232448, 60 << 20, 4.8e12)
PLAN = make_plan(KNOWN, ("A0", "B0"), SHAPE, "sm_90a", "serial+pdl")
LOWERED = lower(PLAN, GRAPH, SHAPE, H200, launches=True)
WRITES = {"A0": ("residual_out", "h", "h_q", "h_s"), "B0p": (), "B0f": ("q_lora_q", "q_lora_s", "mla_cache")}


def compiled(specs: list[KernelSpec]) -> dict[KernelSpec, CompiledKernel]:
    """As of one cubin, in which each has a name of its own."""
    return {spec: CompiledKernel(spec, "sm_90a", b"all", f"{spec}", 32, 0, 0, 0, "nvrtc", None) for spec in specs}


class Script:
    """In the place of a CudaGraph: a kernel computes rightly from what is right, and poison from poison."""

    def __init__(self, copies: Any) -> None:
        self.copies, self.without_wait = copies, ""
        self.ran: list[tuple[str, ...]] = []
        self.ends_early = False
        memory = copies.memory
        self.right = evaluate(GRAPH, {**memory.args, **memory.bound[0]}, SHAPE)

    def __call__(self, graph: Any, kernels: Any, buffers: Any) -> Script:
        self._graph, self._at = graph, buffers.layers[0]
        launches = dict(graph.launches)
        assert all(launch.kernel in kernels for launch in launches.values())
        return self

    def replay(self, stream: int) -> None:
        names = tuple(kernel.name for kernel in self._graph.kernels)
        self.ran.append(names)
        if len(names) == 1:
            return self._kernel(names[0])
        assert (names[0], names[2]) == (PRODUCER, WITNESS)
        assert [(edge.kind, edge.target) for edge in self._graph.edges] == [
            ("programmatic", names[1]),
            ("full", WITNESS),
        ]
        if names[1] == self.without_wait:
            self._kernel(names[1])
            self._producer()
        else:
            self._producer()
            self._kernel(names[1])
        self._report()[2] = 900 if self.ends_early else 1100
        return None

    def close(self) -> None: ...

    def _kernel(self, name: str) -> None:
        made = self.copies.made[0]
        reads = {"A0": self.copies.memory.args["x"], "B0p": made["h_q"], "B0f": made["h_q"]}[name]
        broken = bool((reads.view(torch.uint8) == 0xFF).all())
        for tensor in WRITES[name]:
            if broken:
                made[tensor].view(torch.uint8).zero_()
            else:
                made[tensor].copy_(self.right[tensor])

    def _producer(self) -> None:
        count = next(arg.value for arg in dict(self._graph.launches)[PRODUCER].args if hasattr(arg, "value"))
        rows = (ctypes.c_uint64 * (5 * count)).from_address(self._at["probe.pieces"])
        for row in range(count):
            address, first, words, written, poisoned = rows[5 * row : 5 * row + 5]
            place = (ctypes.c_uint32 * words).from_address(address)
            saved = (ctypes.c_uint32 * words).from_address(self._at["probe.saved"] + 4 * first)
            if written:
                self._report()[0] += sum(
                    now != (0xFFFFFFFF if poisoned else was) for now, was in zip(place, saved, strict=True)
                )
            ctypes.memmove(place, saved, 4 * words)
        self._report()[1] = 1000

    def _report(self) -> Any:
        return (ctypes.c_uint64 * 3).from_address(self._at["probe.report"])


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    script = Script(make_memory(GRAPH, SHAPE, 2, 0, "cpu").verification())
    driver: dict[str, Callable[..., Any]] = {"cuMemcpyDtoD": ctypes.memmove, "cuMemsetD8": ctypes.memset}
    monkeypatch.setattr(module, "call", lambda name, *args: driver[name](*args))
    monkeypatch.setattr(module, "synchronize", lambda: None)
    monkeypatch.setattr(module, "CudaGraph", script)
    return script


def check(probe: Probe, script: Script, lowered: Any = LOWERED) -> str:
    script.ran.clear()
    return probe.check(PLAN, lowered, compiled(specs_of(lowered)), script.copies)


def test_every_kernel_is_probed_once(script: Script) -> None:
    probe = Probe(compiled)
    args = {name: value.clone() for name, value in script.copies.memory.args.items()}
    assert check(probe, script) == "3 kernels held"
    assert script.ran == [(PRODUCER, name, WITNESS) for name in WRITES]
    assert all(torch.equal(script.copies.memory.args[name], value) for name, value in args.items())
    assert check(probe, script) == "3 kernels held"
    assert script.ran == [(name,) for name in WRITES]


def test_a_kernel_without_a_wait_has_no_part(script: Script) -> None:
    kernels = tuple(dataclasses.replace(kernel, waits=kernel.name != "B0p") for kernel in LOWERED.kernels)
    assert check(Probe(compiled), script, dataclasses.replace(LOWERED, kernels=kernels)) == "2 kernels held"
    assert [len(names) for names in script.ran] == [3, 1, 3]


@pytest.mark.parametrize("name", ["A0", "B0f"])
def test_one_that_does_not_wait_is_refuted_and_never_held(script: Script, name: str) -> None:
    probe = Probe(compiled)
    script.without_wait = name
    for _ in range(2):
        with pytest.raises(
            CandidateError, match=f"{name}: behind a late producer it had changed [0-9]+ words"
        ) as caught:
            check(probe, script)
        assert caught.value.status == "wrong_result"
    script.without_wait = ""
    assert check(probe, script) == "3 kernels held"


def test_a_grid_that_ends_first_is_refuted(script: Script) -> None:
    script.ends_early = True
    with pytest.raises(CandidateError, match="A0: behind a late producer its grid ended 100 ns before"):
        check(Probe(compiled), script)


def test_wrong_results_refute(script: Script) -> None:
    script.right["q_lora_s"] = script.right["q_lora_s"] * 2
    with pytest.raises(CandidateError, match="behind a late producer: layer 0: B0: q_lora_s"):
        check(Probe(compiled), script)


def test_a_report_in_words() -> None:
    assert ran_ahead(0, 1000, 1000) == ""
    assert "3 words" in ran_ahead(3, 1000, 2000)
    assert "ended 32 ns" in ran_ahead(0, 1032, 1000)
