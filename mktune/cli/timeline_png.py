"""A trace as a picture: kernels as rows of CTAs above the number of SMs in use. Needs matplotlib."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from mktune.cli.picture import new_figure
from mktune.cli.sm_activity import sm_activity
from mktune.trace import PathStep, Trace, TracedKernel

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # of streams; told apart by everyone
_PATH = "#222222"
_PALE = 0.28
_ROW = 0.8  # of the distance between rows


def draw_png(trace: Trace, title: str, path: Path) -> None:
    """Write the picture to `path`. Raises SetupError without matplotlib, OSError where it cannot be written."""
    figure = new_figure(12, 2.6 + 0.42 * len(trace.kernels))
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[0.42 * len(trace.kernels), 1.7])
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    _rows(above, trace)
    _path(above, trace)
    _activity(below, trace)
    below.set_xlim(0, trace.path.length_us)
    below.set_xlabel("µs from the layer's first begin")
    figure.savefig(path, dpi=150, format="png")


def _rows(axes: Any, trace: Trace) -> None:
    for row, kernel in enumerate(trace.kernels):
        colour = _COLOURS[kernel.stream % len(_COLOURS)]
        _band(axes, kernel, row, colour)
        if kernel.times.triggered is not None:
            axes.plot([kernel.times.triggered] * 2, [row - 0.5, row + 0.5], color=colour, lw=1, ls=":")
    axes.set_yticks(range(len(trace.kernels)), [f"{k.name}  {k.grid}" for k in trace.kernels])
    for label, kernel in zip(axes.get_yticklabels(), trace.kernels, strict=True):
        label.set_fontweight("bold" if kernel.name in trace.path.kernels else "normal")
    axes.set_ylim(len(trace.kernels) - 0.4, -0.6)
    axes.grid(axis="x", color="#dddddd", lw=0.6)
    axes.set_axisbelow(True)
    axes.set_ylabel("kernel and its CTAs")
    _frame(axes)
    _caption(
        axes, "pale: begun, waits · full: behind its wait · dotted: triggered · black: critical path · colour: stream"
    )


def _band(axes: Any, kernel: TracedKernel, row: int, colour: str) -> None:
    """A line for each CTA, in the order in which they begin; one thick line where only the kernel's times are known."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgb

    ctas = sorted(kernel.ctas, key=lambda cta: (cta.begin, cta.end))
    spans = [(cta.begin, cta.ready, cta.end) for cta in ctas]
    spans = spans or [(kernel.times.begin, kernel.times.ready, kernel.times.end)]
    tops = [row - _ROW / 2 + place * _ROW / len(spans) for place in range(len(spans) + 1)]
    pale = tuple(1 - _PALE * (1 - part) for part in to_rgb(colour))
    for part, shade in ((0, pale), (1, colour)):
        corners = [
            [(span[part], top), (span[part + 1], top), (span[part + 1], bottom), (span[part], bottom)]
            for span, (top, bottom) in zip(spans, pairwise(tops), strict=True)
        ]
        axes.add_collection(PolyCollection(corners, facecolors=[shade], lw=0), autolim=False)


def _path(axes: Any, trace: Trace) -> None:
    """The critical path: along each kernel while it held the layer, down or up to the next one."""
    rows = {kernel.name: row for row, kernel in enumerate(trace.kernels)}
    now = 0.0
    for step in trace.path.steps:
        left, went = now, now + step.after_us
        now = went + step.held_us
        if step.source is not None:
            axes.annotate(
                "",
                (went, rows[step.kernel]),
                (left, rows[step.source]),
                arrowprops={"arrowstyle": "-|>", "color": _PATH, "lw": 1.1, "shrinkA": 0, "shrinkB": 0},
            )
            _label(axes, step, (went, rows[step.kernel] - 0.5), went > 0.8 * trace.path.length_us)
        axes.plot([went, now], [rows[step.kernel]] * 2, color=_PATH, lw=1.6, solid_capstyle="butt")


def _label(axes: Any, step: PathStep, at: tuple[float, float], to_the_left: bool) -> None:
    axes.annotate(
        f"{step.source} {step.event} +{step.after_us:.2f}",
        at,
        xytext=(-3 if to_the_left else 3, 0),
        textcoords="offset points",
        fontsize=6.5,
        color=_PATH,
        va="center",
        ha="right" if to_the_left else "left",
        bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.6},
    )


def _activity(axes: Any, trace: Trace) -> None:
    steps = sm_activity(trace)
    times = [step.time for step in steps]
    axes.fill_between(times, [step.active for step in steps], step="post", color="#bbbbbb", lw=0)
    axes.fill_between(times, [step.working for step in steps], step="post", color="#444444", lw=0)
    axes.set_ylim(0, trace.sms * 1.02)
    axes.set_ylabel(f"SMs of {trace.sms}")
    _caption(axes, "grey: hold a CTA · dark: hold one behind its wait")
    _frame(axes)


def _frame(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _caption(axes: Any, text: str) -> None:
    axes.set_title(text, fontsize=8, loc="left", color="#555555")
