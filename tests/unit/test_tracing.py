"""Notes of CTAs become times; the build that takes them is another one, and the plain one does not know of it."""

from __future__ import annotations

import array
import ctypes
import json
from dataclasses import replace

import pytest
from fake_bench import H200, SHAPE, WORKLOAD

from mktune.backends.base import Problem
from mktune.graph.builtin import make_plan
from mktune.jit.build import build
from mktune.jit.source import load, source_fingerprint
from mktune.launch import KernelSpec
from mktune.lowering.graph import lower
from mktune.lowering.kernel_graph import KernelGraph, specs_of
from mktune.measure import cuda_bench, stamps, tracing
from mktune.measure.tracing import PRELUDE, Notes, layer_times, reply, trace_of, traced
from mktune.plan import Plan
from mktune.trace import Cta

BASE = 1_000_000_000_000_000  # of a timer that counts from some day
OPS = ("A0", "B0")


def plan(mode: str = "serial+pdl") -> Plan:
    return make_plan(WORKLOAD, OPS, SHAPE, "sm_90a", mode)


def lowered(mode: str = "serial+pdl") -> KernelGraph:
    return lower(plan(mode), WORKLOAD.subgraph(OPS), SHAPE, H200, launches=True)


def notes(shift: int = 0) -> Notes:
    """Two CTAs each; `shift` ns later from B0p's end on."""
    made = {
        "A0": [[0, 0, 100, 0, 1500], [1, 64, 100, 0, 1400]],
        "B0p": [[0, 1600, 1700, 1650, 6000 + shift], [2, 500, 1700, 600, 5000]],
        "B0f": [[2, 5100, 6500 + shift, 0, 8000 + shift], [0, 6100 + shift, 6500 + shift, 0, 8100 + shift]],
    }
    return {
        name: [[sm, *(BASE + time if time or n == 0 else 0 for n, time in enumerate(times))] for sm, *times in rows]
        for name, rows in made.items()
    }


def test_a_kernel_begins_with_its_first_cta_and_ends_with_its_last() -> None:
    found = layer_times(notes())
    a0, b0p = found["A0"], found["B0p"]
    assert (a0.begin, a0.placed, a0.ready, a0.triggered, a0.end) == pytest.approx((0, 0.064, 0.1, None, 1.5))
    assert (b0p.begin, b0p.placed, b0p.ready, b0p.triggered, b0p.end) == pytest.approx((0.5, 1.6, 1.7, 1.65, 6.0))


def test_the_cta_that_ended_last_says_whose_place_it_took() -> None:
    found = layer_times(notes())
    assert (found["B0p"].late, found["B0p"].late_room, found["B0p"].begin_room) == (1.6, "A0", "")
    assert (found["B0f"].late, found["B0f"].late_room, found["B0f"].begin_room) == (6.1, "B0p", "B0p")


def test_a_cta_that_exits_without_a_trigger_has_triggered_then() -> None:
    one = notes()
    one["B0p"][1][3] = 0
    assert layer_times(one)["B0p"].triggered == pytest.approx(5.0)


def test_a_trace_is_medians_over_rounds_and_the_ctas_of_the_round_in_the_middle() -> None:
    rounds = [notes(shift) for shift in (900, 0, 300)]
    answer = json.loads(json.dumps(reply({"plain": [8.0, 8.1], "stamped": [8.2, 8.3]}, rounds)))
    graph, chosen = lowered(), plan()
    trace = trace_of(chosen, graph, H200.name, H200.sms, answer)
    assert trace.times["B0p"].end == pytest.approx(6.3)
    assert trace.times["A0"].triggered is None
    by_name = {kernel.name: kernel for kernel in trace.kernels}
    assert by_name["B0p"].ctas[0] == Cta(0, 1.6, 1.7, 1.65, pytest.approx(6.3))
    assert (by_name["B0p"].grid, by_name["B0p"].sms) == (2, 2)
    assert trace.path.kernels == ("A0", "B0p", "B0f")
    assert trace.path.agreement == 1.0
    assert trace.path.length_us == pytest.approx(8.4)
    assert (trace.replays, trace.plain_us, trace.stamped_us) == (3, (8.0, 8.1), (8.2, 8.3))
    assert json.loads(json.dumps(trace.to_dict()))["path"]["slack_us"]["A0"] == 0.0


def test_every_kernel_is_built_to_note_and_nothing_else_about_the_graph_changes() -> None:
    graph = lowered()
    noted = traced(graph)
    assert (noted.kernels, noted.edges, noted.priorities) == (graph.kernels, graph.edges, graph.priorities)
    for (name, plain), (same, other) in zip(graph.launches, noted.launches, strict=True):
        assert name == same
        ctas = plain.grid[0] * plain.grid[1] * plain.grid[2]
        assert dict(other.kernel.defines) == {"MKTUNE_STAMPS": str(ctas)}
        assert other == replace(plain, kernel=replace(plain.kernel, defines=other.kernel.defines, prelude=PRELUDE))


def test_a_kernel_that_is_launched_twice_notes_in_two_modules() -> None:
    graph = lowered()
    (name, launch), *rest = graph.launches
    second = replace(graph.kernels[0], name="again")
    twice = replace(graph, kernels=(*graph.kernels, second), launches=((name, launch), *rest, ("again", launch)))
    assert len(specs_of(twice)) == 3
    assert len(specs_of(traced(twice))) == 4


def test_a_prelude_makes_another_unit_and_leaves_the_plain_one_as_it_is() -> None:
    path = "standalone/add_rmsnorm_quant.cu"
    plain, noted = load(path), load(path, prelude=PRELUDE)
    assert PRELUDE not in dict(plain.files)
    assert {PRELUDE, path, *dict(plain.files)} < set(dict(noted.files))
    assert noted.text.index(PRELUDE) < noted.text.index(path)
    assert plain.digest != noted.digest
    spec = KernelSpec(path, "")
    assert source_fingerprint([spec]) != source_fingerprint([replace(spec, prelude=PRELUDE)])


@pytest.mark.parametrize("mode", ["serial", "serial+pdl"])
def test_noting_kernels_compile_wait_and_trigger_where_the_plain_ones_do(mode: str) -> None:
    graph = lowered(mode)
    plain, noted = build(specs_of(graph), "sm_90a"), build(specs_of(traced(graph)), "sm_90a")
    for one, other in zip(plain, noted, strict=True):
        assert one.facts is not None
        assert other.facts is not None
        assert (one.facts.waits, one.facts.trigger) == (other.facts.waits, other.facts.trigger)
        assert other.spill_bytes == one.spill_bytes == 0
        assert b"mktune_notes" in other.cubin
        assert b"mktune_notes" not in one.cubin


class Module:
    """The memory of one kernel's module, in which a replay leaves what `notes` says."""

    def __init__(self, rows: list[list[int]]) -> None:
        self.stamps = array.array("Q", [time for _, begin, *_, end in rows for time in (begin, end)])
        self.notes = array.array("Q", [value for sm, _, ready, trigger, _ in rows for value in (ready, trigger, sm)])


class Graph:
    """Replays of a plan whose kernels note: each replay moves its notes on."""

    def __init__(self, graph: KernelGraph) -> None:
        self.graph, self.replays = graph, 0

    def symbol(self, kernel: str, name: str) -> tuple[int, int]:
        module = Module(notes(100 * self.replays)[kernel])
        self.kept = {"mktune_stamps": module.stamps, "mktune_notes": module.notes}[name]
        address, count = self.kept.buffer_info()
        return address, 8 * count


class Timer:
    def sample(self, graphs: list[Graph]) -> list[float]:
        for graph in graphs:
            graph.replays += 1
        return [float(graph.replays) for graph in graphs]


def test_notes_are_read_after_each_round_from_the_modules_of_the_noting_build(monkeypatch: pytest.MonkeyPatch) -> None:
    def copy(name: str, target: int, source: int, size: int) -> None:
        assert name == "cuMemcpyDtoH"
        ctypes.memmove(target, source, size)

    monkeypatch.setattr(stamps, "call", copy)
    plain, noting = Graph(lowered()), Graph(traced(lowered()))
    samples, found = tracing.trace_rounds(plain, noting, Timer(), 3)  # type: ignore[arg-type]
    assert found == [notes(100 * replays) for replays in (4, 6, 8)]  # two of the warm-up, two of each round
    assert {name: len(spans) for name, spans in samples.items()} == {"plain": 6, "stamped": 6}
    assert plain.replays == noting.replays == 8


def test_the_bench_has_both_builds_compiled_before_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_bench, "fingerprint_of", lambda device, problem: None)
    happened: list[object] = []

    def answer(request: dict[str, object], seconds: float) -> dict[str, object]:
        happened.append((request["do"], request["plan"]))
        return reply({"plain": [8.0], "stamped": [8.2]}, [notes()])

    with cuda_bench.CudaBench(H200, 0, Problem(WORKLOAD.name, OPS, SHAPE)) as bench:
        monkeypatch.setattr(bench._compiler, "wait", happened.append)
        monkeypatch.setattr(bench, "_ask", answer)
        trace = bench.trace(plan())
    assert happened == [[*specs_of(lowered()), *specs_of(traced(lowered()))], ("trace", plan().json)]
    assert (trace.plan_id, trace.gpu, trace.simulated) == (plan().plan_id, H200.name, False)
    assert trace.times["B0p"].end == pytest.approx(6.0)
