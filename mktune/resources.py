"""Where the files that ship with mktune are: kernel sources, search spaces, migrations and bundled plans.

An installed wheel holds them under `mktune/_data/`; a checkout (also an editable install) holds them beside the
package. The checkout is recognised from the package's own location, never from site-packages, where an editable
install may have left an old copy.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _root() -> Path:
    installed = _PACKAGE / "_data"
    return installed if installed.is_dir() else _PACKAGE.parent


def kernels() -> Path:
    """The folder of CUDA sources; also their include path."""
    return _root() / "kernels"


def search_spaces() -> Path:
    """The folder of `<workload>.yaml` search spaces."""
    return _root() / "search_spaces"


def migrations() -> Path:
    """The folder of Alembic migrations."""
    return _root() / "db" / "migrations"


def bundled_plans() -> Path:
    """The folder of shipped winners, `<gpu>/<workload>.json`."""
    return _root() / "db" / "plans"
