"""Packages of one's own workloads, ops and kernels, beside those that ship.

    my_kernels/                       a Python package anywhere, laid out like mktune
        __init__.py
        workloads/<name>.py           WORKLOAD, a `mktune.graph.workload.Workload` of that name
        ops/<op>.py                   a subclass of `mktune.ops.base.Op` with that title
        ops/launch/<op>.py            `launches` and `dynamic_smem` of that op, as in `mktune.ops.launch`
        ops/launch/<op>_<op>.py       `fused` of two ops that the workload's `fusions` name, if there are any
        kernels/standalone/<op>.cu    its kernels, and those of <op>_<op>; they may include mktune's headers
        search_spaces/<name>.yaml     what to tune

    MKTUNE_PATH=~/my_kernels mktune tune my_workload --m 16 --kv 8192

MKTUNE_PATH holds one or more such folders, separated as in PATH. Each is imported under its folder's name, once
something is asked for that mktune does not ship; the processes that compile and measure do the same. No two may have a
workload, an op or a kernel source of one name, and none can take the place of what ships.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from mktune import knobs
from mktune.errors import InputError, MktuneError

_T = TypeVar("_T")


@dataclass(frozen=True)
class Package:
    """One package of MKTUNE_PATH: its name and its folder."""

    name: str
    folder: Path


_SHIPPED = Package("mktune", Path(__file__).resolve().parent)
_PARTS = {"workloads": "graph.workloads", "ops.launch": "ops.launch"}
"""Parts of a package → where mktune has them."""


@cache
def packages() -> tuple[Package, ...]:
    """Those of MKTUNE_PATH, imported, in its order; read once in a process.

    Raises InputError for a folder that is no package, that cannot be imported, or whose name is another package's, and
    for a module that two of them have or that ships.
    """
    found = tuple(_imported(folder) for folder in dict.fromkeys(knobs.own_packages()))
    for part, place in _PARTS.items():
        taken = dict.fromkeys(_stems(_SHIPPED, place), f"mktune.{place}")
        for own in found:
            for name in _stems(own, part):
                if name in taken:
                    raise InputError(f"MKTUNE_PATH: {own.name}.{part} and {taken[name]} both have {name}: rename one")
                taken[name] = f"{own.name}.{part}"
    return found


def module(part: str, name: str) -> ModuleType | None:
    """Module `name` of `part` ("workloads", "ops.launch") in one of the packages; None where none has it.

    Raises InputError as `packages` does, and where importing it fails.
    """
    for own in packages():
        if name in _stems(own, part):
            return _run(importlib.import_module, f"{own.name}.{part}.{name}")
    return None


def names(part: str) -> list[str]:
    """Every module of `part`, over all packages. Raises InputError as `packages` does."""
    return [name for own in packages() for name in _stems(own, part)]


def folders(part: str) -> list[Path]:
    """The folder `part` ("kernels") of each package that has it. Raises InputError as `packages` does."""
    return [folder for own in packages() if (folder := own.folder / part).is_dir()]


def _stems(package: Package, part: str) -> list[str]:
    folder = package.folder.joinpath(*part.split("."))
    return [found.name for found in pkgutil.iter_modules([str(folder)]) if not found.ispkg]


def _imported(folder: Path) -> Package:
    name, start = folder.name, folder / "__init__.py"
    if not (name.isidentifier() and os.path.isfile(start)):  # unlike start.is_file(), no error for an odd name
        needs = "it needs an __init__.py and a name to import it by"
        raise InputError(f"MKTUNE_PATH: {folder} is no Python package: {needs}")
    other = _run(importlib.util.find_spec, name)
    if other is not None and Path(other.origin or "").resolve() != start:
        raise InputError(f"MKTUNE_PATH: {folder} has the name of another package, {other.origin}: rename it")
    if name not in sys.modules:
        _run(lambda name: _execute(name, start), name)
    return Package(name, folder)


def _execute(name: str, start: Path) -> None:
    """Import the package that starts with the file `start`, wherever it is, as `name`."""
    spec = importlib.util.spec_from_file_location(name, start, submodule_search_locations=[str(start.parent)])
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(made)
    except BaseException:
        del sys.modules[name]
        raise


def _run(work: Callable[[str], _T], module: str) -> _T:
    """`work`, which runs code of others: whatever it raises becomes an InputError that says what is wrong with it."""
    try:
        return work(module)
    except MktuneError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"MKTUNE_PATH: {module} cannot be imported: {type(error).__name__}: {error}") from error
