"""Waiting for what other threads and processes do, on a machine however slow."""

from __future__ import annotations

import time
from collections.abc import Callable

FOREVER_S = 3600.0
"""Longer than any test: what lasts so long is never waited for."""
LIMIT_S = 240.0
"""What takes longer hangs. Nothing is proved by its size: it only ends a test that would never end."""


def until(condition: Callable[[], bool], seconds: float = LIMIT_S) -> None:
    """Returns as soon as it holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not come to hold"
        time.sleep(0.01)
