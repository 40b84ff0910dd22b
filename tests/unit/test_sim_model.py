"""The model gives back the measurements that it is made from, and moves the right way where nothing was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mktune.backends.sim_constants import CONSTANTS
from mktune.backends.sim_model import SimKernel, span_us
from mktune.lowering.kernel_graph import Edge

H200 = CONSTANTS["h200"]
SMS = 132


def kernel(name: str, megabytes: float = 8.4, **changes: object) -> SimKernel:
    """A kernel that streams so many bytes through rings that leave room for a second kernel on each SM."""
    cold = megabytes * 1e6
    ring = min(cold, SMS * 6 * 16384.0)
    made = SimKernel(name, SMS, 2, cold, ring, 0.0, 1, 0.0, 0.0, "entry", "exit")
    return replace(made, **changes)


def chain_us(megabytes: float, kind: str, gdc: str, trigger: str, length: int = 16) -> float:
    """µs per kernel of a chain of equal streaming kernels."""
    ahead = min(megabytes * 1e6, SMS * 6 * 16384.0) if gdc == "prefetch" else 0.0
    kernels = [kernel(f"k{i}", megabytes, gdc=gdc, trigger=trigger, ahead_bytes=ahead) for i in range(length)]
    edges = [Edge(f"k{i}", f"k{i + 1}", kind) for i in range(length - 1)]
    return span_us(kernels, edges, SMS, H200)[0] / length


# MB → µs per kernel, boundary included: full edges, early edges, early edges with the ring filled before the wait.
# Measured on one H200 by streaming kernels that do nothing else.
STREAMED = {
    0.8: (2.4, 1.5, 1.5),
    8.4: (4.2, 3.1, 2.8),
    12.6: (5.2, 4.0, 3.5),
    16.1: (5.9, 4.8, 4.1),
    33.6: (9.7, 8.5, 7.4),
    74.0: (18.6, 17.7, 16.1),
}


@pytest.mark.parametrize("megabytes", STREAMED)
def test_it_gives_back_the_streaming_measurements(megabytes: float) -> None:
    full, early, prefetched = STREAMED[megabytes]
    assert chain_us(megabytes, "full", "entry", "exit") == pytest.approx(full, rel=0.07)
    assert chain_us(megabytes, "programmatic", "prologue", "start") == pytest.approx(early, rel=0.07)
    # A ring filled ahead: the model is coarse here, but never off by more than the wait that it hides.
    assert chain_us(megabytes, "programmatic", "prefetch", "start") == pytest.approx(prefetched, abs=1.0)


def test_boundaries_of_idle_kernels_are_those_measured() -> None:
    """11 dependent 2 µs kernels: 29.6 µs with full edges, 26.7 with early triggers, per copy of many."""

    def chain(kind: str, trigger: str, gdc: str) -> float:
        body = 2.0 - H200.drain - H200.cta_start - H200.set_up - H200.first_bytes
        kernels = [
            kernel(f"k{i}", 0.0, ctas=16, tail_us=body, trigger=trigger, gdc=gdc, ring_bytes=1.0) for i in range(11)
        ]
        edges = [Edge(f"k{i}", f"k{i + 1}", kind) for i in range(10)]
        return span_us(kernels, edges, SMS, H200)[0]

    assert chain("full", "exit", "entry") == pytest.approx(29.6, rel=0.02)
    assert chain("programmatic", "exit", "entry") < chain("full", "exit", "entry")
    early = chain("programmatic", "start", "entry")
    assert early < chain("programmatic", "exit", "entry")


def test_the_same_kernels_always_take_the_same_time() -> None:
    assert chain_us(16.1, "programmatic", "prefetch", "start") == chain_us(16.1, "programmatic", "prefetch", "start")


def test_no_bytes_move_faster_than_memory() -> None:
    kernels = [kernel(f"k{i}", 33.6, gdc="prefetch", ahead_bytes=33.6e6, trigger="start") for i in range(4)]
    edges = [Edge("k0", f"k{i}", "programmatic") for i in range(1, 4)]
    span, _ = span_us(kernels, edges, SMS, H200)
    assert 4 * 33.6e6 / span < H200.memory_rate


def test_two_branches_overlap_but_share_the_memory() -> None:
    root = kernel("root", 0.1)
    small = [root, kernel("a", 0.1, tail_us=5.0), kernel("b", 0.1, tail_us=5.0)]
    side_by_side = [Edge("root", "a", "full"), Edge("root", "b", "full")]
    in_line = [Edge("root", "a", "full"), Edge("a", "b", "full")]
    assert span_us(small, side_by_side, SMS, H200)[0] < span_us(small, in_line, SMS, H200)[0] - 5.0
    large = [root, kernel("a", 33.6), kernel("b", 33.6)]
    gained = span_us(large, in_line, SMS, H200)[0] - span_us(large, side_by_side, SMS, H200)[0]
    assert 0 < gained < 3.0  # a boundary, a start and a drain, but no bandwidth


def test_fewer_bytes_in_flight_than_latency_asks_for_are_slower() -> None:
    def alone(ctas: int, stages: int) -> float:
        return span_us([kernel("k", 16.1, ctas=ctas, ring_bytes=ctas * stages * 16384.0)], [], SMS, H200)[0]

    assert alone(21, 4) > alone(42, 4) > alone(84, 4) >= alone(126, 4)
    assert alone(126, 1) > alone(126, 2) >= alone(126, 6)


def test_a_partial_wave_and_a_second_reading_cost() -> None:
    def alone(**changes: object) -> float:
        return span_us([kernel("k", 16.1, **changes)], [], SMS, H200)[0]

    assert alone(ctas=2 * SMS + 1) > alone(ctas=2 * SMS)
    assert alone(passes=2) > alone()
    assert alone(busy_us=20.0) > 20.0


def test_a_kernel_starts_early_only_where_it_fits() -> None:
    """Beside a producer that fills the shared memory of every SM, a consumer cannot fetch anything ahead."""
    edges = [Edge("first", "second", "programmatic")]

    def pair(ctas_per_sm: int) -> float:
        first = kernel("first", 16.1, trigger="start", ctas_per_sm=ctas_per_sm)
        second = kernel("second", 16.1, gdc="prefetch", ahead_bytes=13e6, ctas_per_sm=ctas_per_sm)
        return span_us([first, second], edges, SMS, H200)[0]

    assert pair(2) < pair(1)


def test_each_kind_of_edge_and_trigger_is_worth_what_it_says() -> None:
    def pair(kind: str, trigger: str, gdc: str = "prologue") -> float:
        kernels = [kernel("first", 16.1, trigger=trigger), kernel("second", 16.1, gdc=gdc)]
        return span_us(kernels, [Edge("first", "second", kind)], SMS, H200)[0]

    full = pair("full", "start")
    assert full == pair("full", "exit")
    assert pair("programmatic", "exit") == pytest.approx(full - (H200.boundary_full - H200.boundary_exit))
    assert pair("programmatic", "start") < pair("programmatic", "exit")
    assert pair("launch_order", "exit") == pair("programmatic", "start")
    assert pair("programmatic", "start", "entry") == pytest.approx(pair("programmatic", "start") + H200.set_up)
    assert pair("programmatic", "before_epilogue") <= pair("programmatic", "exit")


def test_a_priority_decides_who_gets_the_slots() -> None:
    def ends(priority: int) -> tuple[float, float]:
        root = kernel("root", 0.1)
        rivals = [kernel("a", 16.1, ctas_per_sm=1), kernel("b", 16.1, ctas_per_sm=1, priority=priority)]
        edges = [Edge("root", "a", "full"), Edge("root", "b", "full")]
        _, times = span_us([root, *rivals], edges, SMS, H200)
        return times["a"][0], times["b"][0]

    a, b = ends(0)
    assert a < b
    a, b = ends(1)
    assert b < a
