"""The command line. One file per command group; `render` writes every table and every JSON document."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """The `mktune` program: run the command in `sys.argv` and exit with its code."""
    try:
        from mktune.cli.boundary import run
    except KeyboardInterrupt:  # Ctrl-C in the first tenth of a second, before there is anything that must be ended
        if "--json" in sys.argv:
            sys.stdout.write('{"error": {"type": "Interrupted", "message": "interrupted", "exit_code": 130}}\n')
        sys.stderr.write("mktune: error: interrupted\n")
        sys.exit(130)
    sys.exit(run(sys.argv[1:]))
