"""Fixtures that tests of several rooms ask for by name."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mktune.errors import SetupError


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU, whatever this one has."""

    def absent(index: int = 0) -> None:
        raise SetupError("no NVIDIA driver on this machine")

    monkeypatch.setattr("mktune.executors.discovery.find_device", absent)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], check=False)
    if done.returncode:
        pytest.skip("cannot mount a tmpfs here")
    yield place
    subprocess.run(["umount", str(place)], check=True)
