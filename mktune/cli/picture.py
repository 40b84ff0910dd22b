"""What commands that draw a picture share: matplotlib, which need not be installed, and a file that can be written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mktune.errors import InputError, SetupError


def require_matplotlib() -> None:
    """Raises SetupError where there is none."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise SetupError("--png needs matplotlib: pip install 'mktune[trace]'") from None


def new_figure(width: float, height: float) -> Any:
    """An empty figure of so many inches, which no window shows. Raises SetupError without matplotlib."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def check_target(path: Path) -> None:
    """Raises InputError where no file can be written to `path`: asked before anything is measured."""
    if not path.name or os.path.isdir(path) or not os.path.isdir(path.absolute().parent):
        raise InputError(f"cannot write {path}: give the name of a file in a folder that is there")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises InputError in place of an OSError, naming the file."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
