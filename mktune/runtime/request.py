"""What is asked of a book, checked: a number of the wrong type is an error, never a guess."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mktune.device import Device
from mktune.errors import InputError
from mktune.gpu_name import normalise_gpu
from mktune.shape import Shape

_LARGEST = 2**31 - 1


class RequestError(InputError, ValueError):
    """A look-up was asked with something that can be no workload, shape or GPU."""


@dataclass(frozen=True)
class Request:
    """A look-up. `m` and `kv` may be beyond what mktune tunes; that is a miss, not an error.

    gpu           normalised name; `device` where the caller gave more than a name, then also its compute capability
                  (empty: not known)
    ops           sorted names; None: as many of the workload's ops as a stored plan has
    scale_format  how the caller's scales are represented; None: as the workload's own are
    """

    workload: str
    m: int
    kv: int
    tokens_per_request: int
    gpu: str
    device: Device | None
    ops: tuple[str, ...] | None
    allow_simulated: bool
    compute_capability: str = ""
    scale_format: str | None = None


def make_request(
    workload: str,
    shape: Shape | None,
    numbers: tuple[int | None, int | None, int | None],
    gpu: str | Device,
    ops: Sequence[str] | None,
    allow_simulated: bool,
    scale_format: str | None = None,
) -> Request:
    """Check everything; `numbers` are m, kv and tokens per request. Raises RequestError."""
    if not isinstance(workload, str):
        raise RequestError(f"a workload is a name, not {workload!r}")
    m, kv, tokens = _sizes(shape, *numbers)
    device = gpu if isinstance(gpu, Device) else None
    name = gpu.name if isinstance(gpu, Device) else gpu
    if not isinstance(name, str) or not name.strip():
        raise RequestError(f"a GPU is a name or a Device, not {gpu!r}")
    if scale_format is not None and not isinstance(scale_format, str):
        raise RequestError(f"a scale format is a name such as 'fp32', not {scale_format!r}")
    return Request(
        workload,
        m,
        kv,
        tokens,
        normalise_gpu(name),
        device,
        _ops(ops),
        bool(allow_simulated),
        _capability(device),
        scale_format,
    )


def _capability(device: Device | None) -> str:
    try:
        return "" if device is None else device.compute_capability
    except IndexError:  # an architecture without digits: a device that nobody asked about its own
        return ""


def _sizes(shape: Shape | None, m: int | None, kv: int | None, tokens: int | None) -> tuple[int, int, int]:
    if shape is not None:
        if not isinstance(shape, Shape):
            raise RequestError(f"a shape is a mktune.shape.Shape, not {shape!r}; or give m= and kv=")
        if (m, kv, tokens) != (None, None, None):
            raise RequestError("give a shape, or m and kv, not both")
        return shape.m, shape.kv, shape.tokens_per_request
    m, kv = _whole("m", m), _whole("kv", kv)
    tokens = math.gcd(m, 8) if tokens is None else _whole("tokens_per_request", tokens)
    if m % tokens:
        raise RequestError(f"tokens per request ({tokens}) must divide M = {m}")
    if tokens > kv:
        raise RequestError(f"tokens per request ({tokens}) exceed KV ({kv})")
    return m, kv, tokens


def _whole(name: str, value: int | None) -> int:
    if type(value) is not int or not 1 <= value <= _LARGEST:
        raise RequestError(f"{name} must be a whole number from 1 to {_LARGEST}, not {value!r}")
    return value


def _ops(ops: Sequence[str] | None) -> tuple[str, ...] | None:
    if ops is None:
        return None
    names = tuple(ops) if isinstance(ops, Iterable) and not isinstance(ops, str) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise RequestError(f"ops are names such as ('A0', 'B0'), not {ops!r}")
    return tuple(sorted(names))
