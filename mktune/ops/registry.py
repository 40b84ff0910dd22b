"""Every op, found in the modules of this package."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache

from mktune import ops
from mktune.ops.base import Op


@cache
def all_ops() -> dict[str, Op]:
    """Title → op, sorted by title. An op's module has the title as its name."""
    found = {}
    for info in pkgutil.iter_modules(ops.__path__, f"{ops.__name__}."):
        for _, kind in inspect.getmembers(importlib.import_module(info.name), inspect.isclass):
            if issubclass(kind, Op) and not inspect.isabstract(kind) and kind.__module__ == info.name:
                found[kind.title] = kind()
    return dict(sorted(found.items()))
