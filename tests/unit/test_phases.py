"""Time by phase adds up, and counts what raises too."""

from __future__ import annotations

import time

import pytest

from mktune.phases import Phases


def test_phases_add_up_also_when_they_raise() -> None:
    phases = Phases()
    with phases("a"):
        time.sleep(0.02)
    with pytest.raises(KeyError):
        _fail_in(phases)
    with phases("b"):
        pass
    assert list(phases.seconds) == ["a", "b"]
    assert phases.seconds["a"] >= 0.04 > phases.seconds["b"]


def _fail_in(phases: Phases) -> None:
    with phases("a"):
        time.sleep(0.02)
        raise KeyError
