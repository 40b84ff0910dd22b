"""What the JSON documents of several commands have in common: a shape, the device that was asked, an interval."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mktune.backends.base import Backend
    from mktune.measure.stats import Interval
    from mktune.shape import Shape


def shape_document(shape: Shape) -> dict[str, int]:
    """A shape as JSON data."""
    requests, tokens = shape.requests, shape.tokens_per_request
    return {"m": shape.m, "requests": requests, "tokens_per_request": tokens, "kv": shape.kv}


def device_document(backend: Backend) -> dict[str, Any]:
    """A back end and its device as JSON data."""
    device = backend.device
    return {
        "backend": backend.name,
        "simulated": backend.simulated,
        "gpu": device.name,
        "driver": device.driver,
        "cuda": device.cuda,
    }


def interval_document(interval: Interval, unit: str = "us", factor: float = 1.0) -> dict[str, float]:
    """{"us": …, "low_us": …, "high_us": …}."""
    parts = (("", interval.median), ("low_", interval.low), ("high_", interval.high))
    return {f"{name}{unit}": factor * value for name, value in parts}
