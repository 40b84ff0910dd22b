"""Curves of compared samplers as a picture. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mktune.cli.picture import new_figure

if TYPE_CHECKING:
    from mktune.search.comparison import Standing

SMALLEST = 0.05  # percent: where the logarithmic axis ends
LARGEST = 100.0


def draw(path: Path, standings: Sequence[Standing], title: str) -> None:
    """Write a PNG: for each sampler the loss of its incumbent by evaluation, median and quartiles over seeds.

    Raises SetupError without matplotlib, OSError where it cannot be written.
    """
    figure = new_figure(8, 4.8)
    axes: Any = figure.add_subplot()
    for standing in standings:
        numbers = range(1, len(standing.median) + 1)
        (line,) = axes.step(numbers, _percent(standing.median), where="post", label=standing.sampler, linewidth=1.6)
        band = (_percent(standing.low), _percent(standing.high))
        axes.fill_between(numbers, *band, step="post", color=line.get_color(), alpha=0.15, linewidth=0)
    for within in (5, 2, 1):
        axes.axhline(within, color="grey", linewidth=0.6, linestyle=":")
    axes.set(title=title, xlabel="evaluations", ylabel="above the recorded optimum, %", yscale="log")
    axes.set_ylim(SMALLEST, LARGEST)
    axes.set_xlim(1, max(len(standing.median) for standing in standings))
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150, format="png")


def _percent(losses: Sequence[float]) -> list[float]:
    return [min(max(100 * loss, SMALLEST), LARGEST) for loss in losses]
