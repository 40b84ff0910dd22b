"""The command line. One file per command group; `render` writes every table and every JSON document."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """The `mktune` program: run the command in `sys.argv` and exit with its code."""
    from mktune.cli.boundary import run

    sys.exit(run(sys.argv[1:]))
