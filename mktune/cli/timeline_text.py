"""A traced layer drawn in text: a row for each kernel, a last one for the SMs in use."""

from __future__ import annotations

from itertools import pairwise

from mktune.cli.sm_activity import Activity, sm_activity
from mktune.trace import KernelTimes, Trace

WAITS, WORKS = "░", "█"
LEGEND = f"{WAITS} begun, waits   {WORKS} behind its wait   ● critical path   SMs: share with a CTA behind its wait"
_LEVELS = " ▁▂▃▄▅▆▇█"
_LEAST = 20


def timeline(trace: Trace, width: int) -> list[str]:
    """The lines, none wider than `width` where that leaves room for any picture."""
    names = [f"{'●' if kernel.name in trace.path.kernels else ' '} {kernel.name}" for kernel in trace.kernels]
    margin = max(len(name) for name in (*names, "  SMs")) + 1
    cells = max(_LEAST, width - margin)
    scale = trace.path.length_us / cells
    lines = [_axis(trace.path.length_us, margin, cells)]
    for name, kernel in zip(names, trace.kernels, strict=True):
        lines.append(f"{name:{margin}}{_row(kernel.times, scale, cells)}".rstrip())
    activity = "".join(_LEVELS[round(share * 8)] for share in _shares(sm_activity(trace), trace.sms, scale, cells))
    return [*lines, f"{'  SMs':{margin}}{activity}".rstrip()]


def _axis(length: float, margin: int, cells: int) -> str:
    """Whole µs, as many as fit."""
    step = next((step for step in (1, 2, 5, 10, 20, 50, 100) if length / step <= cells / 7), 1000)
    text = ""
    for number in range(0, int(length) + 1, step):
        mark = str(number) if number else "0 µs"
        place = round(number * cells / length)
        if place >= len(text) and place + len(mark) <= cells:
            text = f"{text:{place}}{mark}"
    return f"{'':{margin}}{text}"


def _row(times: KernelTimes, scale: float, cells: int) -> str:
    """A kernel has at least one cell."""
    begin = min(cells - 1, int(times.begin / scale))
    ready, end = round(times.ready / scale), max(begin + 1, round(times.end / scale))
    return " " * begin + "".join(WAITS if cell < ready else WORKS for cell in range(begin, min(end, cells)))


def _shares(steps: list[Activity], sms: int, scale: float, cells: int) -> list[float]:
    """Of each cell's time, the mean share of SMs that work."""
    found = [0.0] * cells
    for step, after in pairwise(steps):
        for cell in range(max(0, int(step.time / scale)), min(cells, int(after.time / scale) + 1)):
            lasts = min(after.time, (cell + 1) * scale) - max(step.time, cell * scale)
            found[cell] += max(0.0, lasts) / scale * step.working / sms
    return [min(1.0, share) for share in found]
