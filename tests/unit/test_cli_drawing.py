"""A drawn plan shows every kernel, every edge once, and lines that meet."""

from __future__ import annotations

import pytest

from mktune.cli.drawing import VERTICAL, draw
from mktune.graph.builtin import MODES, make_plan
from mktune.graph.workload import workload
from mktune.plan import Plan
from mktune.shape import Shape

LEFT, RIGHT, UP, DOWN = "left", "right", "up", "down"
OPENINGS = {
    "─": {LEFT, RIGHT},
    "╮": {LEFT, DOWN},
    "╯": {LEFT, UP},
    "┬": {LEFT, RIGHT, DOWN},
    "┴": {LEFT, RIGHT, UP},
    "┼": {LEFT, RIGHT, UP, DOWN},
    "◀": {RIGHT},
    **{mark: {UP, DOWN} for mark in VERTICAL.values()},
}


def plan(mode: str, ops: tuple[str, ...] | None) -> Plan:
    return make_plan(workload("glm52_attention_prefix"), ops, Shape.from_m(16, 8192), "sm_90a", mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ops", [None, ("A0", "B0"), ("A0",), ("D1", "E1")], ids=str)
def test_every_kernel_has_a_line_and_every_edge_its_words(mode: str, ops: tuple[str, ...] | None) -> None:
    drawn = plan(mode, ops)
    lines = draw(drawn)
    assert len(lines) == 2 * len(drawn.order)
    for row, name in enumerate(drawn.order):
        line = lines[1 + 2 * row]
        assert f"  {name}" in line
        assert "●" in line
        for (source, target), kind in drawn.edges:
            if target == name:
                assert f"{source} {kind}" in line


@pytest.mark.parametrize("mode", MODES)
def test_lines_of_arcs_meet(mode: str) -> None:
    drawn = plan(mode, None)
    streams = {kernel.stream for _, kernel in drawn.kernels}
    start = 2 * len(streams) + 1 + max(len(name) for name in drawn.order)
    width = max(map(len, draw(drawn)))
    # The words behind the arcs hold no drawing characters, so they read as blanks.
    rows = [[OPENINGS.get(char, set()) for char in line[start:].ljust(width)] for line in draw(drawn)[1:]]
    for y, row in enumerate(rows):
        for x, openings in enumerate(row):
            if DOWN in openings:
                assert UP in rows[y + 1][x], (y, x)
            if UP in openings:
                assert DOWN in rows[y - 1][x], (y, x)
            if LEFT in openings and x > 1:
                assert RIGHT in row[x - 1], (y, x)
            if RIGHT in openings:
                assert LEFT in row[x + 1], (y, x)


def test_arcs_begin_and_end_as_often_as_there_are_edges() -> None:
    drawn = plan("branches", None)
    corners = "".join(draw(drawn)[1:])
    starts = sum(corners.count(mark) for mark in "╮┬")
    ends = sum(corners.count(mark) for mark in "╯┴")
    assert starts == ends == len(drawn.edges)
