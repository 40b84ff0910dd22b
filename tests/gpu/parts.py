"""How the tests of this folder share a host: which process uses which GPU, how many there are, and what runs together.

Tests marked `gpu_alone` measure times or count what a GPU holds: nothing else may run beside them. All others run
together, a file in one process, but for tests whose ids name a group of their own (`tests/grouping.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

ALONE = "gpu_alone"
AT_ONCE = 6
"""Processes on one GPU, at most."""
BYTES_EACH = 22 << 30
"""Memory of the GPU that one of them may need, its context and torch's cache included."""


def visible(given: str | None, present: Sequence[str]) -> list[str]:
    """The GPUs that tests may use, as CUDA_VISIBLE_DEVICES names them: what it says, else all that are `present`."""
    if given is None:
        return list(present)
    return [name.strip() for name in given.split(",") if name.strip()]


def gpu_of(worker: str, gpus: Sequence[str]) -> str | None:
    """The GPU of xdist's process "gw3": they take turns. None where there is nothing to choose."""
    number = re.fullmatch(r"gw([0-9]+)", worker)
    if number is None or not gpus:
        return None
    return gpus[int(number[1]) % len(gpus)]


def processes(gpus: int, memory: int, alone: bool) -> int:
    """How many processes `-n auto` means, on GPUs of `memory` bytes each."""
    each = 1 if alone else max(1, min(AT_ONCE, memory // BYTES_EACH))
    return max(1, gpus * each)


def is_alone(expression: str) -> bool:
    """Whether `-m expression` may choose tests that run alone: unless it says that it does not."""
    return not re.search(rf"\bnot {ALONE}\b", expression)


def summary(stats: dict[str, list[Any]], seconds: float) -> str:
    """ "812 passed, 3 skipped in 340 s"."""
    names = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
    counts = [f"{len(stats[name])} {name}" for name in names if stats.get(name)]
    return f"{', '.join(counts) or 'nothing ran'} in {seconds:.0f} s"
