"""Where files are that are no Python: kernel sources, search spaces, migrations and bundled plans.

An installed wheel holds them under `mktune/_data/`; a checkout (also an editable install) holds them beside the
package. The checkout is recognised from the package's own location, never from site-packages, where an editable
install may have left an old copy. Kernel sources and search spaces may also be one's own (see `extensions`).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from mktune import extensions
from mktune.errors import InputError

KERNEL_SUFFIXES = (".cu", ".cuh")
_PACKAGE = Path(__file__).resolve().parent


def _root() -> Path:
    installed = _PACKAGE / "_data"
    return installed if installed.is_dir() else _PACKAGE.parent


def kernels() -> Path:
    """The folder of CUDA sources that ship; also their include path."""
    return _root() / "kernels"


def kernel_source(path: str) -> Path:
    """The file at `path` under kernels/: the one that ships, else one's own. It need not exist.

    Raises InputError for a MKTUNE_PATH that cannot be used, also where one's own sources have a name twice.
    """
    shipped = kernels() / path
    return shipped if shipped.is_file() else _own_kernels().get(path, shipped)


@cache
def _own_kernels() -> dict[str, Path]:
    """Path under kernels/ → file."""
    found: dict[str, Path] = {}
    for folder in extensions.folders("kernels"):
        for file in sorted(file for file in folder.rglob("*") if file.suffix in KERNEL_SUFFIXES):
            path = file.relative_to(folder).as_posix()
            other = found.setdefault(path, kernels() / path if (kernels() / path).is_file() else file)
            if other != file:
                raise InputError(f"MKTUNE_PATH: {file} and {other} are both kernels/{path}: rename one")
    return found


def search_spaces() -> Path:
    """The folder of `<workload>.yaml` search spaces that ship."""
    return _root() / "search_spaces"


def search_space(workload: str) -> Path:
    """The search space of a workload: the one that ships, else one's own. It need not exist."""
    shipped = search_spaces() / f"{workload}.yaml"
    if shipped.is_file():
        return shipped
    own = [folder / shipped.name for folder in extensions.folders("search_spaces")]
    return next((path for path in own if path.is_file()), shipped)


def migrations() -> Path:
    """The folder of Alembic migrations."""
    return _root() / "db" / "migrations"


def bundled_plans() -> Path:
    """The folder of shipped winners, `<gpu>/<workload>.json`."""
    return _root() / "db" / "plans"
