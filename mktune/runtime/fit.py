"""Whether a stored plan may be built for what is asked: every rule that a search knows, at the shape asked for.

A plan's range says what it was stored for; this says that its configs exist here and fit the GPU and the shape, and
that its edges are safe. A file may state any range.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mktune.device import ARCHITECTURES
from mktune.shape import Shape

if TYPE_CHECKING:
    from mktune.device import Device
    from mktune.runtime.entries import Entry
    from mktune.runtime.request import Request


def misfit(entry: Entry, request: Request) -> str:
    """The first rule that the plan breaks at the shape and on the GPU of the request; empty where it breaks none.

    Where only a GPU's name was given the limits are those of the architecture that the plan was measured on.
    """
    from mktune.validity import check

    shape = Shape(request.m // request.tokens_per_request, request.tokens_per_request, request.kv)
    for violation in check(replace(entry.plan, shape=shape), request.device or _limits(entry)):
        return str(violation)
    return ""


def _limits(entry: Entry) -> Device:
    from mktune.backends.models import gpu_of

    name = "sm_" + entry.compute_capability.replace(".", "")
    return gpu_of(f"{name}a" if f"{name}a" in ARCHITECTURES else name)
