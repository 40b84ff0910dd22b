"""Curves of compared samplers as a picture. Needs matplotlib (extra `search`)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mktune.errors import SetupError

if TYPE_CHECKING:
    from mktune.search.comparison import Standing

SMALLEST = 0.05  # percent: where the logarithmic axis ends
LARGEST = 100.0


def check_installed() -> None:
    """Raises SetupError where matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise SetupError("--png needs matplotlib: pip install 'mktune[search]'")


def draw(path: Path, standings: Sequence[Standing], title: str) -> None:
    """Write a PNG: for each sampler the loss of its incumbent by evaluation, median and quartiles over seeds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.8), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
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
    figure.savefig(path)


def _percent(losses: Sequence[float]) -> list[float]:
    return [min(max(100 * loss, SMALLEST), LARGEST) for loss in losses]
