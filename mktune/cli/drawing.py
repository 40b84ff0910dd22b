"""A plan drawn in text: a lane per stream, and an arc per edge from the kernel it leaves to the kernel it enters.

A kernel has two lines: its name with the edges that enter it, then the edges that leave it. An arc's column is shared
by edges that do not overlap, the shortest nearest to the names.
"""

from __future__ import annotations

from dataclasses import dataclass

from mktune.plan import Plan

VERTICAL = {"full": "│", "programmatic": "┆", "launch_order": "┊"}
LEGEND = "│ full   ┆ programmatic (may start after the trigger)   ┊ launch order (may start at block start)"


@dataclass(frozen=True)
class _Arc:
    """An edge between line `first` (below its source's name) and line `last` (its target's name) in `column`."""

    first: int
    last: int
    column: int
    kind: str


def draw(plan: Plan) -> list[str]:
    """The lines of the drawing, top to bottom in issue order."""
    arcs = _arcs(plan)
    lanes = _lanes(plan)
    name_width = max(len(name) for name in plan.order)
    columns = 1 + max((arc.column for arc in arcs), default=-1)
    lines = [_head(plan)]
    for row, name in enumerate(plan.order):
        entering = _line(arcs, 2 * row, columns)
        origins = _origins(plan, name)
        lines.append(f"{lanes[2 * row]}  {name:{name_width}} {entering}  {origins}".rstrip())
        if row < len(plan.order) - 1:
            lines.append(f"{lanes[2 * row + 1]}  {'':{name_width}} {_line(arcs, 2 * row + 1, columns)}".rstrip())
    return lines


def _head(plan: Plan) -> str:
    streams = sorted({kernel.stream for _, kernel in plan.kernels})
    return " ".join(f"{stream % 10}" for stream in streams) + "  streams"


def _origins(plan: Plan, name: str) -> str:
    """Where the edges into a kernel come from, and what it waits for on its stream beside them."""
    parts = [f"{source} {_words(kind)}" for (source, target), kind in plan.edges if target == name]
    before = plan.chain_predecessors().get(name)
    if before is not None and (before, name) not in plan.edge:
        parts.append(f"{before} {plan.kernel[name].chain} (same stream)")
    return ", ".join(parts)


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def _lanes(plan: Plan) -> list[str]:
    """Per line: a dot in the lane of the kernel's stream, bars where a stream goes on."""
    rows = {name: row for row, name in enumerate(plan.order)}
    uses: dict[int, list[int]] = {}
    for name, kernel in plan.kernels:
        uses.setdefault(kernel.stream, []).append(2 * rows[name])
    lines = []
    for line in range(2 * len(plan.order)):
        marks = []
        for stream in sorted(uses):
            inside = min(uses[stream]) < line < max(uses[stream])
            marks.append("●" if line in uses[stream] else "│" if inside else " ")
        lines.append(" ".join(marks))
    return lines


def _arcs(plan: Plan) -> list[_Arc]:
    rows = {name: row for row, name in enumerate(plan.order)}
    spans = sorted(
        (2 * rows[target] - 2 * rows[source] - 1, 2 * rows[source] + 1, 2 * rows[target], kind)
        for (source, target), kind in plan.edges
    )
    placed: list[_Arc] = []
    for _, first, last, kind in spans:
        taken = {arc.column for arc in placed if first <= arc.last and arc.first <= last}
        column = next(number for number in range(len(spans)) if number not in taken)
        placed.append(_Arc(first, last, column, kind))
    return placed


def _line(arcs: list[_Arc], line: int, columns: int) -> str:
    """The arcs' part of one line: even lines end arcs (with an arrow to the name), odd lines begin them."""
    ends = {arc.column for arc in arcs if line in (arc.first, arc.last)}
    passing = {arc.column: VERTICAL[arc.kind] for arc in arcs if arc.first < line < arc.last}
    entering = line % 2 == 0
    reach = max(ends, default=-1)
    text = ("◀" if entering else "─") if ends else " "
    for column in range(columns):
        along = column <= reach
        if column in ends:
            corner = "╯" if entering else "╮"
            tee = "┴" if entering else "┬"
            mark = corner if column == reach else tee
        elif along:
            mark = "┼" if column in passing else "─"
        else:
            mark = passing.get(column, " ")
        text += ("─" if along else " ") + mark
    return text
