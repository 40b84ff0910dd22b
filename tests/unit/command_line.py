"""Commands run inside the test's process, as a user types them."""

from __future__ import annotations

import pytest

from mktune.cli import boundary


def run(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> tuple[str, str]:
    """What one command wrote to stdout and stderr; it must end with `code`."""
    capsys.readouterr()
    assert boundary.run(args) == code, capsys.readouterr().err
    streams = capsys.readouterr()
    return streams.out, streams.err
