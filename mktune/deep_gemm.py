"""DeepGEMM as a provider of kernels: where its device headers are, found without importing it.

The package's wheel ships the CUDA templates; mktune instantiates and launches them itself. Importing it would need
torch, a GPU and its own compiler. What is known here are the templates of one version, so no other one is used.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mktune.errors import SetupError

IMPL = "deep_gemm"
"""The value of an op's `impl` that stands for this provider."""

MODULE = "deep_gemm"
PACKAGE = "sgl-deep-gemm"
VERSION = "0.1.5.post1"
INSTALL = f"pip install {PACKAGE}=={VERSION}"


@dataclass(frozen=True)
class _Found:
    """The folder of its headers, or why there is none."""

    include: Path | None
    missing: str = ""


@cache
def _find() -> _Found:
    """Looked for once: a process that has started to plan with a package keeps it."""
    from importlib import machinery, metadata, util  # tens of milliseconds, for who asks only

    try:
        version = metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return _Found(None, f"{PACKAGE} is not installed: {INSTALL}")
    if version != VERSION:
        return _Found(None, f"{PACKAGE} {version} is installed, and mktune knows the templates of {VERSION}: {INSTALL}")
    spec = None
    with suppress(ValueError):
        spec = util.find_spec(MODULE)
    # Where a process has put a stand-in into sys.modules, the headers are where they were.
    spec = spec or machinery.PathFinder.find_spec(MODULE)
    places = list(spec.submodule_search_locations or ()) if spec else []
    include = Path(places[0]) / "include" if places else None
    if include is None or not (include / MODULE).is_dir():
        return _Found(None, f"{PACKAGE} {version} is installed without its headers: {INSTALL}")
    return _Found(include)


def missing() -> str:
    """Why its templates cannot be compiled here, in one line that says what to do; empty where they can."""
    return _find().missing


def include_folder() -> Path:
    """The folder that its headers are included from, as <deep_gemm/…>. Raises SetupError where it is missing."""
    found = _find()
    if found.include is None:
        raise SetupError(f"impl {IMPL} cannot be compiled: {found.missing}")
    return found.include
