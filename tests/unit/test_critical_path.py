"""The critical path: what held each kernel by edge, wait or room, and how much later others could have run."""

from __future__ import annotations

import pytest

from mktune.measure.critical_path import critical_path, typical_path
from mktune.trace import CriticalPath, KernelTimes


def times(
    begin: float,
    ready: float,
    end: float,
    triggered: float | None = None,
    placed: float | None = None,
    late: float | None = None,
    begin_room: str = "",
    late_room: str = "",
) -> KernelTimes:
    placed = begin if placed is None else placed
    return KernelTimes(begin, placed, ready, triggered, end, begin if late is None else late, begin_room, late_room)


def found(path: CriticalPath) -> list[tuple[str, str | None, str, str]]:
    return [(step.kernel, step.source, step.event, step.at) for step in path.steps]


def added(path: CriticalPath) -> float:
    return sum(step.after_us + step.held_us for step in path.steps)


def test_a_kernel_behind_a_full_edge_was_held_by_the_end_before_it() -> None:
    path = critical_path({"A": times(0, 0.1, 2), "B": times(2.7, 2.8, 5)}, [(("A", "B"), "full")])
    assert found(path) == [("A", None, "layer", "begin"), ("B", "A", "end", "begin")]
    assert [step.after_us for step in path.steps] == pytest.approx([0, 0.7])
    assert [step.held_us for step in path.steps] == pytest.approx([2, 2.3])
    assert path.length_us == added(path) == 5


def test_a_kernel_that_had_begun_was_held_by_its_wait() -> None:
    kernels = {"A": times(0, 0.1, 2, triggered=0), "B": times(1, 2.4, 5)}
    path = critical_path(kernels, [(("A", "B"), "programmatic")])
    assert found(path)[-1] == ("B", "A", "end", "wait")
    assert path.steps[-1].after_us == pytest.approx(0.4)


@pytest.mark.parametrize(("kind", "event", "time"), [("programmatic", "trigger", 3.0), ("launch_order", "placed", 2.5)])
def test_a_kernel_that_began_when_all_had_ended_was_held_by_what_let_it_begin(
    kind: str, event: str, time: float
) -> None:
    kernels = {"A": times(0, 0.1, 3.5, triggered=3.0, placed=2.5), "B": times(4.2, 4.3, 6)}
    path = critical_path(kernels, [(("A", "B"), kind)])
    assert found(path)[-1] == ("B", "A", event, "begin")
    assert path.steps[-1].after_us == pytest.approx(4.2 - time)
    assert added(path) == pytest.approx(6)


def test_a_programmatic_edge_from_a_kernel_that_never_triggers_lets_go_at_its_end() -> None:
    path = critical_path({"A": times(0, 0.1, 2), "B": times(2.5, 2.6, 4)}, [(("A", "B"), "programmatic")])
    assert found(path)[-1] == ("B", "A", "end", "begin")


def test_the_source_that_ended_last_holds_a_join() -> None:
    kernels = {
        "A": times(0, 0, 1, 0),
        "B": times(0.5, 1.3, 4, 0.5),
        "C": times(0.5, 1.3, 3, 0.5),
        "D": times(1, 4.4, 6),
    }
    edges = [((source, target), "programmatic") for source, target in ("AB", "AC", "BD", "CD")]
    path = critical_path(kernels, edges)
    assert path.kernels == ("A", "B", "D")
    assert path.slack == pytest.approx({"A": 0, "B": 0, "C": 1, "D": 0})


def test_a_kernel_that_ends_early_at_the_end_has_what_is_left_of_the_layer() -> None:
    kernels = {"A": times(0, 0, 1, 0), "B": times(0.5, 1.3, 9, 0.5), "C": times(0.5, 1.3, 3, 0.5)}
    path = critical_path(kernels, [(("A", "B"), "programmatic"), (("A", "C"), "programmatic")])
    assert path.slack == pytest.approx({"A": 0, "B": 0, "C": 6})


def test_a_kernel_that_found_no_room_was_held_by_the_one_that_left() -> None:
    kernels = {
        "A": times(0, 0, 1, 0),
        "B": times(0.5, 1.3, 9, 0.5),
        "C": times(9.1, 9.2, 11, begin_room="B"),
    }
    path = critical_path(kernels, [(("A", "B"), "programmatic"), (("A", "C"), "programmatic")])
    assert found(path)[-1] == ("C", "B", "room", "begin")
    assert path.kernels == ("A", "B", "C")
    assert added(path) == pytest.approx(11)


def test_a_kernel_that_began_as_soon_as_launches_do_was_not_held_by_whoever_left_its_sm() -> None:
    kernels = {"A": times(0, 0, 3, 0), "B": times(0.5, 3.3, 3.9, 0.5), "C": times(4.5, 4.6, 11, begin_room="B")}
    path = critical_path(kernels, [(("A", "B"), "programmatic"), (("A", "C"), "full")])
    assert path.kernels == ("A", "C")


def test_a_ctas_wait_for_room_holds_a_kernel_that_was_ready_long_before() -> None:
    """D0 of branches+pdl at M 16, KV 8192 on an H200: ready at 11.7, its last CTA placed at 16.2, behind D1f."""
    kernels = {
        "B0f": times(4.19, 9.44, 11.26, triggered=9.47),
        "D1p": times(6.59, 11.68, 13.95, triggered=6.98),
        "D1f": times(8.77, 14.40, 15.58, triggered=9.22),
        "D0": times(8.35, 11.68, 24.90, triggered=16.2, placed=16.19, late=16.06, late_room="D1f"),
        "D2": times(19.01, 25.41, 31.71),
    }
    edges = [(pair, "programmatic") for pair in (("B0f", "D1p"), ("D1p", "D1f"), ("B0f", "D0"), ("D0", "D2"))]
    path = critical_path(kernels, edges)
    assert path.kernels == ("B0f", "D1p", "D1f", "D0", "D2")
    assert found(path)[3] == ("D0", "D1f", "room", "late")
    assert added(path) == pytest.approx(path.length_us)
    without_room = {**kernels, "D0": times(8.35, 11.68, 24.90, triggered=16.2)}
    assert critical_path(without_room, edges).kernels == ("B0f", "D0", "D2")


def test_kernels_that_hold_each_others_room_end_the_path() -> None:
    """Medians over replays need not be possible: the path must end all the same."""
    kernels = {"A": times(5, 5, 9, begin_room="B"), "B": times(5, 5, 8.9, begin_room="A"), "R": times(0, 0, 1)}
    path = critical_path(kernels, [(("R", "A"), "full"), (("R", "B"), "full")])
    assert path.kernels == ("R", "B", "A")


def test_slack_of_a_trigger_counts_where_it_decides() -> None:
    kernels = {"A": times(0, 0, 2.0, 1.0), "B": times(0, 0, 2.9, 2.8), "C": times(3.5, 3.6, 6)}
    path = critical_path(kernels, [(("A", "C"), "programmatic"), (("B", "C"), "programmatic")])
    assert found(path)[-1] == ("C", "B", "trigger", "begin")
    assert path.slack["A"] == pytest.approx(1.6)  # its end would reach C's wait before its trigger decides C's begin


def test_agreement_is_the_share_of_replays_with_that_path() -> None:
    edges = [(("A", "C"), "full"), (("B", "C"), "full")]
    through_a = {"A": times(0, 0, 2), "B": times(0, 0, 1), "C": times(2.5, 2.5, 4)}
    through_b = {"A": times(0, 0, 1), "B": times(0, 0, 2), "C": times(2.5, 2.5, 4)}
    path = typical_path(through_a, [through_a, through_a, through_a, through_b], edges)
    assert (path.kernels, path.agreement) == (("A", "C"), 0.75)
