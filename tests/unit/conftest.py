"""Fixtures that tests of several rooms ask for by name."""

from __future__ import annotations

import pytest

from mktune.errors import SetupError


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU, whatever this one has."""

    def absent(index: int = 0) -> None:
        raise SetupError("no NVIDIA driver on this machine")

    monkeypatch.setattr("mktune.executors.discovery.find_device", absent)
